"""The difference between two configs as they are written, with secrets left out.

A file may be wrong in any way, so that a secret can be anywhere in it: what is shown is what stands in a place where
the schema has something else, and all that is not is hidden.
"""

import difflib
import re
from collections.abc import Iterator

import yaml

from gateway.config import schema
from gateway.config.history import Copy
from gateway.config.problems import ConfigError, Path, Problem, is_secret

_KNOWN = frozenset(
    name
    for kind in vars(schema).values()
    if isinstance(kind, type) and issubclass(kind, schema.Section)
    for name in kind.__struct_encode_fields__
)
_BESIDE_KEYS = frozenset({"class", "name"})
_REFERENCES = re.compile(r"(?:\$\{\w+\})+")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)


def difference(old: Copy, new: Copy, old_name: str, new_name: str) -> str:
    """A unified diff of their files; empty where only comments, which are hidden too, are different.

    What is hidden has a number instead, so that a change of it can be seen.

    Raises:
        ConfigError: one of them is no YAML, so that nothing in it can be taken for harmless.
    """
    numbers: dict[str, int] = {}
    before, after = masked(old.config, numbers, old_name), masked(new.config, numbers, new_name)
    return _unified(before, after, old_name, new_name) + _unified(
        old.policy or "", new.policy or "", f"the policy of {old_name}", f"the policy of {new_name}"
    )


def masked(text: str, numbers: dict[str, int], source: str) -> str:
    """The text of a config with a number for all that is hidden; `numbers` gets those that are not in it yet.

    Raises:
        ConfigError: it is no YAML.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        hidden = {} if root is None else {node.start_mark.index: node for node in _hidden(root, (), set())}
    except (yaml.YAMLError, ValueError, RecursionError):  # its own words quote the file
        message = "not valid YAML, so that its secrets cannot be told from the rest; `sluice check` says more"
        raise ConfigError(source, [Problem(0, "", message)]) from None
    shown, end = "", 0
    for start, node in sorted(hidden.items()):
        number = numbers.setdefault(node.value, len(numbers) + 1)
        shown += _COMMENT.sub("# ...", text[end:start]) + f"<hidden {number}>"
        end = start + len(text[start : node.end_mark.index].rstrip())
    return shown + _COMMENT.sub("# ...", text[end:])


def _hidden(node: yaml.Node, path: Path, seen: set[tuple[int, Path]]) -> Iterator[yaml.ScalarNode]:
    """What is hidden of a node at a place; an alias can stand for a node that holds it."""
    if (id(node), path) in seen or len(path) > len(_KNOWN):
        return
    seen.add((id(node), path))
    if isinstance(node, yaml.ScalarNode):
        if not _may_show(node, path):
            yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _hidden(item, path, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if not _may_name(name, value, path):
                yield from _hidden(key, (*path, ""), seen)
            yield from _hidden(value, (*path, name), seen)


def _may_show(node: yaml.ScalarNode, path: Path) -> bool:
    if not node.value or _REFERENCES.fullmatch(node.value):
        return True
    if is_secret(path):
        return path[-1] in _BESIDE_KEYS and "headers" not in path
    one_line = node.start_mark.line == node.end_mark.line
    return one_line and path != () and (path[-1] in _KNOWN or path[:-1] == ("models",))


def _may_name(name: str, value: yaml.Node, path: Path) -> bool:
    """Whether a key may be shown: one of the schema's, or a name of the user's own."""
    if path[-1:] == ("headers",):  # a misplaced colon can make a secret a part of it
        return isinstance(value, yaml.ScalarNode) and bool(value.value)
    return name in _KNOWN or path in (("engines",), ("models",)) or path[-1:] == ("pins",)


def _unified(old: str, new: str, old_name: str, new_name: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="")
    return "".join(f"{line}\n" for line in lines)
