"""One YAML scalar as a value of the schema: text, a number, or true or false."""

import re
from collections.abc import Iterator

from msgspec.inspect import BoolType, FloatType, IntType, LiteralType, StrType, Type, type_info

from gateway.config.document import Broken, Listing, Mapping, Node, Scalar
from gateway.config.problems import listed, nearest
from gateway.config.schema import Seconds, Wait

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# Decimal numbers alone: YAML reads `0100` as 64 and `10:00` as 600, which nobody means.
_INTEGER = re.compile(r"[-+]?(?!0[0-9])[0-9](?:_?[0-9]){0,14}")
_NUMBER = re.compile(r"[-+]?(?!0[0-9])(?=\.?[0-9])[0-9]{0,15}(?:\.[0-9]{0,15})?(?:[eE][-+]?[0-9]{1,3})?")
_TIMES = (type_info(Seconds), type_info(Wait))
_LONGEST_QUOTE = 60


class Mismatch(Exception):
    """A value is not what the schema asks for; the text says what it asks for and what was found."""


def is_null(node: Node) -> bool:
    """Whether nothing is written, or a reference to the environment that comes out empty."""
    return isinstance(node, Scalar) and node.bare and node.text in _NULLS


def shown(node: Node, *, secret: bool = False) -> str:
    """A value as a message may repeat it: the environment's values and secrets are only described."""
    match node:
        case Mapping():
            return "a mapping"
        case Listing():
            return "a list"
        case Broken():
            return "something unreadable"
        case Scalar(variables=[_, *_]):
            return "the value of " + listed(f"${{{name}}}" for name in node.variables)
    if is_null(node):
        return "nothing"
    if secret:
        return "something else"
    text = " ".join(node.text.split())
    text = text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
    return f"`{text}`" if node.bare else f'`"{text}"`'


def read_scalar(node: Node, kind: Type, *, secret: bool = False) -> str | int | float | bool:
    """The value of `node` as a `kind`; a `secret` one is not repeated in messages. Raises Mismatch."""
    match kind:
        case StrType():
            return _text(node, kind, secret)
        case LiteralType():
            return _choice(node, [str(value) for value in kind.values])
        case IntType() | FloatType():
            return _number(node, kind, secret)
        case BoolType():
            if isinstance(node, Scalar) and node.bare and node.text in _BOOLS:
                return _BOOLS[node.text]
            raise Mismatch(f"expected `true` or `false`, got {shown(node, secret=secret)}")
    raise NotImplementedError(f"no value of the config has the type {kind}")


def _text(node: Node, kind: StrType, secret: bool) -> str:
    if not isinstance(node, Scalar) or (is_null(node) and not node.variables):
        raise Mismatch(f"expected text, got {shown(node, secret=secret)}")
    if node.bare and not node.variables and (node.tag != "str" or _NUMBER.fullmatch(node.text)):
        raise Mismatch(f"expected text, got {shown(node, secret=secret)}: put it in quotes")
    if not node.text.isprintable():
        raise Mismatch("the text holds a line break or another invisible character")
    if len(node.text) < (kind.min_length or 0):
        raise Mismatch(f"expected at least {kind.min_length} characters" if node.text else "must not be empty")
    if kind.max_length is not None and len(node.text) > kind.max_length:
        raise Mismatch(f"expected at most {kind.max_length} characters, got {len(node.text)}")
    return node.text


def _choice(node: Node, values: list[str]) -> str:
    if isinstance(node, Scalar) and node.text in values:
        return node.text
    near = nearest(node.text, values) if isinstance(node, Scalar) else ""
    raise Mismatch(f"expected {listed(values, 'or')}, got {shown(node)}{near}")


def _number(node: Node, kind: IntType | FloatType, secret: bool) -> int | float:
    words = "a whole number" if isinstance(kind, IntType) else "a number"
    if kind in _TIMES:
        words = "a number of seconds"
    value = _parse(node.text, kind) if isinstance(node, Scalar) else None
    if value is None:
        raise Mismatch(f"expected {words}, got {shown(node, secret=secret)}")
    if isinstance(node, Scalar) and not node.bare:
        way_out = "write the reference alone" if node.variables else "remove the quotes"
        raise Mismatch(f"expected {words}, got {shown(node, secret=secret)}: {way_out}")
    if not _inside(value, kind):
        raise Mismatch(f"expected {words} {' and '.join(_bounds(kind))}, got {shown(node, secret=secret)}")
    return value


def _parse(text: str, kind: IntType | FloatType) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text) if isinstance(kind, IntType) else float(text)
    return float(text) if isinstance(kind, FloatType) and _NUMBER.fullmatch(text) else None


def _inside(value: float, kind: IntType | FloatType) -> bool:
    return not (
        (kind.gt is not None and value <= kind.gt)
        or (kind.ge is not None and value < kind.ge)
        or (kind.lt is not None and value >= kind.lt)
        or (kind.le is not None and value > kind.le)
    )


def _bounds(kind: IntType | FloatType) -> Iterator[str]:
    if kind.ge is not None and kind.le is not None:
        yield f"from {kind.ge} to {kind.le}"
        return
    if kind.gt is not None:
        yield f"above {kind.gt}"
    if kind.ge is not None:
        yield f"of at least {kind.ge}"
    if kind.lt is not None:
        yield f"below {kind.lt}"
    if kind.le is not None:
        yield f"at most {kind.le}"
