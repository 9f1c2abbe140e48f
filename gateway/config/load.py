"""`sluice.yaml` as a checked Config, or as the list of all that is wrong with it.

document.py reads YAML with its lines, shape.py holds it against the types in schema.py, checks.py against each other.
"""

import os
import pathlib
from collections.abc import Collection, Mapping

import msgspec

from gateway.config import document
from gateway.config.checks import Checks
from gateway.config.document import Broken, Listing, Node, NotYaml, Scalar, read_document
from gateway.config.problems import ConfigError, Problem, Problems
from gateway.config.schema import Config, Engine, Server, Target
from gateway.config.shape import Reader
from gateway.config.values import is_null

__all__ = ["ConfigError", "Problem", "load_config", "parse_config"]

_EMPTY = """the file is empty; this is the least that works:
engines:
  local: {kind: llamacpp, url: http://127.0.0.1:8080}"""


def load_config(path: pathlib.Path, *, environ: Mapping[str, str] = os.environ, kinds: Collection[str]) -> Config:
    """Read and check the config file at `path`; see parse_config. Raises ConfigError, also for an unreadable file."""
    return parse_config(read_text(path), str(path), environ=environ, kinds=kinds)


def parse_config(text: str, source: str, *, environ: Mapping[str, str] = os.environ, kinds: Collection[str]) -> Config:
    """Check the config in `text`. Raises ConfigError with every problem found.

    `source` names the text in messages, `environ` answers its `${NAME}` references, and `kinds` are the known kinds
    of engines.
    """
    try:
        root = read_document(text, environ)
    except NotYaml as error:
        raise ConfigError(source, [Problem(error.line, "", error.message)]) from None
    if root is None or is_null(root):
        raise ConfigError(source, [Problem(1, "", _EMPTY)])
    problems = Problems()
    shape = msgspec.inspect.type_info(Config)
    reader = Reader(shape, problems)
    data = reader.read(_long_form(root), shape)
    if isinstance(data, dict):
        _check(data, Checks(reader.places, problems, kinds), problems)
    if problems.found:
        raise ConfigError(source, problems.found)
    return msgspec.convert(data, Config, strict=True)


def read_text(path: pathlib.Path) -> str:
    """The text of a config file. Raises ConfigError where it cannot be read."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file") from None
    except IsADirectoryError:
        raise _unreadable(path, "this is a directory, not a file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _unreadable(path, f"cannot be read: {reason or 'not a valid path'}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, "not UTF-8; save the file in that encoding", line) from None


def _unreadable(path: pathlib.Path, message: str, line: int = 0) -> ConfigError:
    return ConfigError(str(path), [Problem(line, "", message)])


def _check(data: Mapping[str, object], checks: Checks, problems: Problems) -> None:
    """Run the checks on every section that can be read without its parts that have problems."""
    written = _section(data, "engines")
    engines = {
        name: engine for name, raw in written.items() if (engine := problems.sound(raw, Engine, ("engines", name)))
    }
    for name, engine in engines.items():
        checks.engine(name, engine)
    for name, targets in _section(data, "models").items():
        if written and problems.none_in(("models", name)):
            checks.model(name, msgspec.convert(targets, list[Target]), written, engines)
    if server := problems.sound(data.get("server"), Server, ("server",)):
        checks.server(server)


def _section(data: Mapping[str, object], name: str) -> dict[str, object]:
    section = data.get(name)
    return section if isinstance(section, dict) else {}


def _long_form(root: Node) -> Node:
    """The tree with each model's short form written out: `small: fast` is `small: [{engine: fast}]`."""
    if not isinstance(root, document.Mapping):
        return root
    entries = [
        (key, _models(value) if isinstance(key, Scalar) and key.text == "models" else value)
        for key, value in root.entries
    ]
    return document.Mapping(root.line, entries)


def _models(node: Node) -> Node:
    if not isinstance(node, document.Mapping):
        return node
    return document.Mapping(node.line, [(name, long_targets(targets)) for name, targets in node.entries])


def long_targets(node: Node) -> Node:
    """A list of targets with each one written out: `fast`, alone or in a list, is `{engine: fast}`."""
    if isinstance(node, Broken) or is_null(node):
        return node
    items = node.items if isinstance(node, Listing) else [node]
    return Listing(node.line, [_target(item) for item in items])


def _target(node: Node) -> Node:
    if not isinstance(node, Scalar) or is_null(node):
        return node
    return document.Mapping(node.line, [(Scalar(node.line, "engine", bare=True), node)])
