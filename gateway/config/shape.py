"""A YAML tree against the types of the schema: plain values out, every mismatch reported."""

import re
from collections.abc import Iterator

from msgspec.inspect import DictType, ListType, NoneType, StructType, Type, UnionType

from gateway.config.document import Broken, Listing, Mapping, Node, Scalar
from gateway.config.problems import Path, Problems, dotted, is_secret, listed, nearest
from gateway.config.values import Mismatch, is_null, read_scalar, shown

_ANY = "NAME"  # stands in a path for a name of the user's own
# What may be repeated as an unknown key. Others can be secrets in the wrong place, such as the end of one with a comma.
_KEY = re.compile("[a-z_-]{1,30}")


class Reader:
    """Reads a tree as a type. `places` tells afterwards where each value was written."""

    def __init__(self, root: Type, problems: Problems) -> None:
        self.places: dict[Path, Node] = {}
        self._problems = problems
        self._sections = list(_sections(root, ()))

    def read(self, node: Node, kind: Type, path: Path = ()) -> object:
        """The value of `node` as plain data for msgspec; of use only when no problem was added for it."""
        self.places[path] = node
        if isinstance(node, Broken):
            self._problems.add(node.line, path, node.message)
            return None
        match kind:
            case UnionType():
                member = next(t for t in kind.types if not isinstance(t, NoneType))
                return None if is_null(node) else self.read(node, member, path)
            case StructType():
                return self._struct(node, kind, path)
            case DictType():
                return self._dict(node, kind, path)
            case ListType():
                return self._list(node, kind, path)
        try:
            return read_scalar(node, kind, secret=is_secret(path))
        except Mismatch as mismatch:
            self._problems.add(node.line, path, str(mismatch))
            return None

    def _struct(self, node: Node, kind: StructType, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        fields = {field.encode_name: field for field in kind.fields}
        for key, value in self._entries(node, path):
            field = fields.get(key.text)
            if field is None:
                self._problems.add(key.line, path, self._unknown(key.text, value, kind, path))
            elif self._is_new(key, path):
                values[key.text] = self.read(value, field.type, (*path, key.text))
        if isinstance(node, Mapping):
            missing = [field.encode_name for field in kind.fields if field.required and field.encode_name not in values]
            for name in missing:
                self._problems.add(node.line, path, f"`{name}` is missing")
        return values

    def _dict(self, node: Node, kind: DictType, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in self._entries(node, path):
            try:
                name = str(read_scalar(key, kind.key_type, secret=is_secret(path)))
            except Mismatch as mismatch:
                self._problems.add(key.line, path, f"a key: {mismatch}")
                continue
            if self._is_new(key, path):
                values[name] = self.read(value, kind.value_type, (*path, name))
        if isinstance(node, Mapping) and len(node.entries) < (kind.min_length or 0):
            self._problems.add(node.line, path, f"expected at least {kind.min_length} entry")
        return values

    def _list(self, node: Node, kind: ListType, path: Path) -> list[object]:
        if isinstance(node, Listing):
            return [self.read(item, kind.item_type, (*path, i)) for i, item in enumerate(node.items)]
        self._problems.add(node.line, path, f"expected a list, got {_found(node)}")
        return []

    def _entries(self, node: Node, path: Path) -> Iterator[tuple[Scalar, Node]]:
        if not isinstance(node, Mapping):
            self._problems.add(node.line, path, f"expected a mapping of `key: value` lines, got {_found(node)}")
            return
        for key, value in node.entries:
            if isinstance(key, Broken):
                self._problems.add(key.line, path, key.message)
            elif key.bare and key.text == "<<":
                self._problems.add(key.line, path, "`<<` is not read; use `*name` for a whole section, or write it out")
            else:
                yield key, value

    def _is_new(self, key: Scalar, path: Path) -> bool:
        first = self.places.get((*path, key.text))
        if first is not None:
            name = "key" if is_secret(path) else f"key `{key.text}`"
            self._problems.add(key.line, path, f"duplicate {name}, first on line {first.line}")
        return first is None

    def _unknown(self, key: str, value: Node, kind: StructType, path: Path) -> str:
        known = [field.encode_name for field in kind.fields]
        head, colon, _ = key.partition(":")
        if colon and head in known:
            return f"a space is missing after `{head}:`"
        near = nearest(key, known)
        homes = [_here(home, path) for home, names in self._sections if key in names]
        if not near and not homes and (is_secret(path) or is_null(value) or not _KEY.fullmatch(key)):
            hint = " without a value (a text that holds a comma needs quotes)" if is_null(value) else ""
            return f"unknown key{hint}; known here: {listed(known)}"
        name = f"unknown key {shown(Scalar(0, key, bare=True))}{near}"
        if homes:
            belongs = f"it is a key of {' or '.join(homes)}"
            return f"{name} ({belongs})" if near else f"{name}; {belongs}"
        return name if near else f"{name}; known here: {listed(known)}"


def _found(node: Node) -> str:
    """What stands in a section's place; a text is not repeated, as a header of the wrong indentation can be one."""
    text = isinstance(node, Scalar) and not node.variables and not is_null(node)
    return "a single value" if text else shown(node)


def _sections(kind: Type, path: Path) -> Iterator[tuple[Path, list[str]]]:
    """The path of each section of the schema, and its keys."""
    match kind:
        case StructType():
            yield path, [field.encode_name for field in kind.fields]
            for field in kind.fields:
                yield from _sections(field.type, (*path, field.encode_name))
        case DictType():
            yield from _sections(kind.value_type, (*path, _ANY))
        case ListType():
            yield from _sections(kind.item_type, path)
        case UnionType():
            for member in kind.types:
                yield from _sections(member, path)


def _here(home: Path, path: Path) -> str:
    """A section's dotted path, with the name of the engine or model at hand as far as `path` goes the same way."""
    parts: list[str | int] = []
    for i, part in enumerate(home):
        parts.append(path[i] if part == _ANY and path[:i] == tuple(parts) and i < len(path) else part)
    return f"`{dotted(tuple(parts))}`" if parts else "the top level"
