"""Types in conditions: what each part of one is, what operators take, and what is said where that does not fit."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.config.problems import listed, nearest
from gateway.policy.facts import CHOICES
from gateway.policy.tokens import shortened


class Kind(NamedTuple):
    """A type.

    Attributes:
        words: its name in messages.
        item: of what a list holds.
        choices: all that a text can be, where that is known.
        values: the texts that are written there.
    """

    words: str
    item: "Kind | None" = None
    choices: Sequence[str] = ()
    values: Sequence[str] = ()

    def same(self, other: "Kind") -> bool:
        if self.item is None or other.item is None or UNKNOWN in (self.item, other.item):
            return self.words == other.words
        return self.item.same(other.item)

    def anything(self) -> "Kind":
        """The same type, of a value that is not known."""
        return Kind(self.words, self.item)


TRUTH = Kind("true or false")
WHOLE = Kind("a whole number")
FRACTION = Kind("a decimal number")
TEXT = Kind("a text")
UNKNOWN = Kind("not known")
"""Of what has a problem already, so that it gets no further one."""
LIST = Kind("a list", UNKNOWN)

ORDER = ("<", "<=", ">", ">=")
_NUMBERS = {WHOLE.words, FRACTION.words}
_KINDS = {bool: TRUTH, int: WHOLE, float: FRACTION, str: TEXT}
_NO_TEXT = re.compile(r"-?\d+(\.\d+)?|true|false")


class Part(NamedTuple):
    """A part of a condition, as it is written, and its type."""

    kind: Kind
    said: str

    def __str__(self) -> str:
        return f"`{shortened(self.said)}`"

    @property
    def sentence(self) -> str:
        return f"{self} is {self.kind.words}"


FUNCTIONS: Mapping[str, tuple[Kind, Sequence[Kind]]] = {
    "size": (WHOLE, (TEXT, LIST)),
    "int": (WHOLE, (FRACTION, WHOLE, TEXT)),
    "double": (FRACTION, (WHOLE, FRACTION, TEXT)),
    "string": (TEXT, (WHOLE, FRACTION, TEXT)),
}
"""What each function gives, and what it takes."""


def of_fact(name: str, examples: Mapping[str, object]) -> Kind:
    """The type of a fact, by an example of its value."""
    return _KINDS[type(examples[name])]._replace(choices=CHOICES.get(name, ()))


def of_list(items: Sequence[Kind]) -> Kind:
    """The type of a list with these items, which are all of one type."""
    values = [value for item in items for value in item.values]
    return Kind(LIST.words, items[0]._replace(values=values) if items else UNKNOWN)


def must(part: Part, kinds: Sequence[Kind], rule: str) -> Iterator[str]:
    """What is wrong with a part that must be of one of `kinds`."""
    if not any(part.kind.same(kind) for kind in (*kinds, UNKNOWN)):
        yield f"{rule}, and {part.sentence}"


def compared(mark: str, left: Part, right: Part) -> Iterator[str]:
    """What is wrong with `left mark right`."""
    one, other = left.kind, right.kind
    if mark == "in":
        if other.item is None:
            hint = f"; write `{right.said}.contains({left.said})`" if one.same(TEXT) and other.same(TEXT) else ""
            yield from (f"{wrong}{hint}" for wrong in must(right, (), '`in` looks in a list, as in `["a", "b"]`'))
            return
        other = other.item
    if UNKNOWN in (one, other):
        return
    if not one.same(other) and not {one.words, other.words} <= _NUMBERS:
        chained = mark in ORDER and one.same(TRUTH) and any(order in left.said for order in ORDER)
        hint = "; between two numbers is written `1 < images && images < 5`" if chained else ""
        yield _mismatch(left, right, "they cannot be compared") + hint
    elif mark in ORDER and not {one.words, other.words} <= {*_NUMBERS, TEXT.words}:
        yield f"`{mark}` compares numbers, and {left.sentence}"
    for part, fact, texts in ((left, one, other), (right, other, one)):
        never = [value for value in texts.values if fact.choices and value not in fact.choices]
        if never:
            near = nearest(never[0], fact.choices)
            yield f"{part} is {listed(fact.choices, 'or')}, never `{never[0]}`{near}"


def calculated(mark: str, left: Part, right: Part) -> Iterator[str]:
    """What is wrong with `left mark right`, which is of the type of `left`."""
    one, other = left.kind, right.kind
    if UNKNOWN in (one, other):
        return
    if {one.words, other.words} == _NUMBERS and mark != "%":
        whole = left if one.same(WHOLE) else right
        instead = f"{whole.said}.0" if whole.said.isdigit() else f"double({whole.said})"
        yield f"`{mark}` takes two whole or two decimal numbers: write `{instead}`"
        return
    joins = mark == "+" and (one.same(TEXT) or one.same(LIST))
    if not one.same(other) or not (joins or one.same(WHOLE) or (one.same(FRACTION) and mark != "%")):
        yield _mismatch(left, right, f"`{mark}` has no meaning for them")


def logic(mark: str, left: Part, right: Part) -> Iterator[str]:
    """What is wrong with `left mark right`, which is true or false as both of them are."""
    for part in (left, right):
        yield from must(part, (TRUTH,), f"both sides of `{mark}` must be true or false")


def alike(left: Part, right: Part, rule: str) -> Iterator[str]:
    """What is wrong with two parts that must be of the same type."""
    if UNKNOWN not in (left.kind, right.kind) and not left.kind.same(right.kind):
        yield _mismatch(left, right, rule)


def _mismatch(left: Part, right: Part, why: str) -> str:
    quoted = [value for part in (left, right) for value in part.kind.values if _NO_TEXT.fullmatch(value)]
    hint = f"; write `{quoted[0]}` without quotes" if quoted else ""
    return f"{left.sentence} and {right.sentence}: {why}{hint}"
