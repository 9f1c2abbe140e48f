"""YAML text as a tree that knows the line of everything in it."""

import itertools
import re
from collections.abc import Mapping as Map
from typing import TypeAlias

import msgspec
import yaml

from gateway.config.environment import expand

_MAX_NODES = 50_000  # far above any real config; a few lines of aliases to aliases can stand for billions
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {"str", "int", "float", "bool", "null", "timestamp", "merge", "value", "map", "seq"}

_SYNTAX = (
    ("'\\\\t'", "a tab; YAML indents with spaces only"),
    ("found character", "a text that starts with a character such as `@`, `%` or a backtick needs quotes"),
    ("alias|anchor|tag|directive", "`&`, `*`, `!` and `%` start something else than text; text that does needs quotes"),
    ("mapping values are not", "a `:` is not expected here; check the indentation, and quote a text that holds `: `"),
    ("expected ':'", "this line is not `key: value`; a `:` or the space after it may be missing"),
    ("expected <block end>", "this line fits nothing above it; check the indentation and the quotes"),
    ("expected ',' or", "an open bracket or a lost comma; inside brackets a text such as `${NAME}` needs quotes"),
    ("end of stream", "a quote is not closed"),
    ("another document", "a second document starts here; a config is one document"),
)
"""Patterns of what PyYAML says, and what to say instead: its own words quote the file, which can hold secrets."""

_BEGAN_EARLIER = re.compile("end of stream|expected ':'")


class Scalar(msgspec.Struct, frozen=True):
    """A single value. `line` is that of its key, where it has one.

    `bare` means: not in quotes, so it may be a number, a truth value or nothing; a whole reference to the environment
    is bare too. `tag` is what YAML takes the value for when it is bare: `str`, `int`, `bool`, `null`, ...
    """

    line: int
    text: str
    bare: bool
    tag: str = "str"
    variables: tuple[str, ...] = ()


class Broken(msgspec.Struct, frozen=True):
    """A key or value that cannot be read, and why."""

    line: int
    message: str


class Listing(msgspec.Struct, frozen=True):
    line: int
    items: "list[Node]"


class Mapping(msgspec.Struct, frozen=True):
    """Keys and values in the order of the file; a key may be there twice."""

    line: int
    entries: "list[tuple[Scalar | Broken, Node]]"


Node: TypeAlias = Scalar | Listing | Mapping | Broken


class NotYaml(Exception):
    """The text is not YAML. `line` counts from 1, 0 where it is not known; `message` holds nothing of the text."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def read_document(text: str, environ: Map[str, str]) -> Node | None:
    """The tree of a YAML text, or None for an empty one, with references to the environment replaced.

    Raises NotYaml.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return _Builder(environ).node(root, root.start_mark.line + 1) if root else None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotYaml(line, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error) from None
    except (ValueError, OverflowError):
        raise NotYaml(0, "not valid YAML: an escape such as `\\U` or a version number is out of range") from None
    except (RecursionError, _TooLarge):
        raise NotYaml(0, "too deep or too large for a config; an alias (`*name`) may contain itself") from None


def _syntax_error(error: yaml.MarkedYAMLError) -> NotYaml:
    problem = error.problem or ""
    mark = error.context_mark if _BEGAN_EARLIER.search(problem) else error.problem_mark
    line = mark.line + 1 if mark else 0
    for pattern, words in _SYNTAX:
        if re.search(pattern, f"{error.context} {problem}"):
            return NotYaml(line, f"not valid YAML: {words}")
    return NotYaml(line, f"not valid YAML: {re.split(r',? but |[^a-z -]', problem)[0].strip()}")


class _TooLarge(Exception):
    pass


class _Builder:
    def __init__(self, environ: Map[str, str]) -> None:
        self._environ = environ
        self._count = itertools.count()

    def node(self, source: yaml.Node, line: int) -> Node:
        if next(self._count) > _MAX_NODES:
            raise _TooLarge
        if source.tag.removeprefix(_TAG) not in _PLAIN_TAGS:
            return Broken(line, "tags (`!...`) have no meaning here; a text that starts with `!` needs quotes")
        if isinstance(source, yaml.MappingNode):
            return Mapping(line, [self._entry(key, value) for key, value in source.value])
        if isinstance(source, yaml.SequenceNode):
            return Listing(line, [self.node(item, item.start_mark.line + 1) for item in source.value])
        assert isinstance(source, yaml.ScalarNode)  # noqa: S101 - YAML has these three
        return self._scalar(source, line)

    def _entry(self, key: yaml.Node, value: yaml.Node) -> tuple[Scalar | Broken, Node]:
        line = key.start_mark.line + 1
        name: Scalar | Broken
        if not isinstance(key, yaml.ScalarNode):
            name = Broken(line, "a key is a text; `{...}` or `[...]` as a text needs quotes")
        elif "${" in key.value:
            name = Broken(line, "`${...}` is read in values, not in keys")
        else:
            name = Scalar(line, key.value, bare=key.style is None, tag=key.tag.removeprefix(_TAG))
        return name, self.node(value, line)

    def _scalar(self, source: yaml.ScalarNode, line: int) -> Scalar | Broken:
        expanded = expand(source.value, self._environ)
        if expanded.mistakes:
            return Broken(line, "; ".join(expanded.mistakes))
        bare = expanded.whole or (source.style is None and not expanded.variables)
        return Scalar(line, expanded.text, bare, source.tag.removeprefix(_TAG), expanded.variables)
