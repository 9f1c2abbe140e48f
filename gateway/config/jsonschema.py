"""JSON Schemas of `sluice.yaml` and of policy files, with which an editor completes keys and marks mistakes."""

import ast
import inspect
from collections.abc import Collection, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec

from gateway.config import policy, schema
from gateway.config.policy import Policy
from gateway.config.schema import Config

_WHOLE_REFERENCE = {"$ref": "#/$defs/Reference"}
_TEXT_WITH_REFERENCE = {"type": "string", "pattern": r"\$\{"}


def json_schema(kinds: Collection[str]) -> dict[str, object]:
    """The schema, of draft 2020-12, for engines of these kinds.

    It knows what each value may be, not how values must fit together; that is left to the loader.
    """
    generated = msgspec.json.schema(Config)
    definitions = generated["$defs"]
    definitions["Engine"]["properties"]["kind"] = {"enum": sorted(kinds)}
    definitions["Config"]["properties"]["models"]["additionalProperties"] = _targets()
    return _finished("sluice.yaml", generated, schema)


def policy_json_schema() -> dict[str, object]:
    """The same for policy files. What a condition may say is left to the loader too."""
    generated = msgspec.json.schema(Policy)
    generated["$defs"]["ModelPolicy"]["properties"]["tiers"]["additionalProperties"] = _targets()
    return _finished("A policy of Sluice", generated, policy)


def _finished(title: str, generated: dict[str, Any], source: ModuleType) -> dict[str, object]:
    """A schema that msgspec has made of the types in `source`, with their docstrings and with references."""
    definitions = generated["$defs"]
    for section, name, text in _docstrings(source):
        [key] = [field.encode_name for field in msgspec.structs.fields(vars(source)[section]) if field.name == name]
        definitions[section]["properties"][key]["description"] = text
    definitions = {name: _with_references(definition) for name, definition in definitions.items()}
    definitions["Reference"] = {
        "title": "Reference",
        "description": "A value from the environment: `${NAME}`, or `${NAME:-default}`.",
        "type": "string",
        "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}]*)?\}$",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "$ref": generated["$ref"],
        "$defs": definitions,
    }


def _targets() -> dict[str, Any]:
    target = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Target"}]}
    return {"anyOf": [*target["anyOf"], {"type": "array", "minItems": 1, "items": target}]}


def _with_references(node: Any) -> Any:
    """The same schema, but each value that has to be of some form may also come from the environment."""
    if isinstance(node, list):
        return [_with_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    form = {key: value for key, value in node.items() if key not in {"default", "description"}}
    rest = {key: value for key, value in node.items() if key in {"default", "description"}}
    if node.get("type") in {"integer", "number", "boolean"}:
        return {"anyOf": [form, _WHOLE_REFERENCE], **rest}
    if "enum" in node or (node.get("type") == "string" and len(form) > 1):
        return {"anyOf": [form, _TEXT_WITH_REFERENCE], **rest}
    return {key: value if key == "propertyNames" else _with_references(value) for key, value in node.items()}


def _docstrings(source: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Section, key and text of each docstring below a key of the schema; none where its source is not installed."""
    try:
        module = ast.parse(inspect.getsource(source))
    except OSError:
        return
    for section in module.body:
        if not isinstance(section, ast.ClassDef):
            continue
        for key, text in pairwise(section.body):
            match key, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    yield section.name, name, words
