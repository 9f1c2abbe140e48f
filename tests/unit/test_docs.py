"""docs/configuration.md says what the schema and the loader say."""

import re
from pathlib import Path

import msgspec
import pytest

from gateway.config import schema
from tests.unit.config.cases import failure, parse

DOCS = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(yaml|text)\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)

SECTIONS = {
    schema.Config: "Top level",
    schema.Engine: "`engines.NAME`",
    schema.Managed: "`engines.NAME.managed`",
    schema.Pin: "`engines.NAME.pins`",
    schema.Timeouts: "`engines.NAME.timeouts`",
    schema.Probe: "`engines.NAME.probe`",
    schema.Target: "`models.NAME`",
    schema.Queue: "`queue`",
    schema.Server: "`server`",
    schema.Key: "`server.keys`",
}


def documented(heading: str) -> dict[str, str]:
    """The keys in the table below a heading, with their defaults."""
    _, _, rest = DOCS.partition(f"\n### {heading}\n")
    section = re.split(r"\n##+ ", rest)[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section, re.MULTILINE))


def default(field: msgspec.structs.FieldInfo) -> str:
    """A field's default as the tables write it."""
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    match value:
        case None:
            return "not set"
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"{value:g} s"
        case int() if field.name.endswith("_bytes"):
            return f"{value} bytes"
        case int() if field.name == "context":
            return f"{value} tokens"
        case int():
            return str(value)
        case str():
            return f"`{value}`"
        case [] | {}:
            return "none"
    return "see below"


def test_every_section_is_documented() -> None:
    structs = {kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}
    assert {kind for kind in structs if kind.__struct_fields__} == set(SECTIONS)


@pytest.mark.parametrize("kind", SECTIONS, ids=SECTIONS.values())
def test_every_key_is_documented_with_its_default(kind: type[msgspec.Struct]) -> None:
    assert documented(SECTIONS[kind]) == {field.encode_name: default(field) for field in msgspec.structs.fields(kind)}


def test_the_examples_are_good_configs() -> None:
    least, complete = [text for language, text in BLOCKS if language == "yaml"][:2]
    environ = {"VLLM_KEY": "a", "ALICE_KEY": "abcdefgh", "JOB_KEY": "ijklmnop"}
    assert list(parse(least).engines) == ["local"]
    assert list(parse(complete, environ).models) == ["chat", "yes", "tiny"]


def test_the_short_forms_say_the_same() -> None:
    forms = [text for language, text in BLOCKS if language == "yaml" and text.startswith("models:")]
    engines = "engines: {fast: {kind: llamacpp, url: http://127.0.0.1:8080}}\n"
    assert len(forms) == 3
    assert [parse(engines + form).models for form in forms] == [{"small": [schema.Target(engine="fast")]}] * 3


def test_mistakes_look_as_shown() -> None:
    _, _, shown = DOCS.partition("\n## What mistakes look like\n")
    pairs = re.findall(r"```yaml\n(.*?)```\n\n```text\n(.*?)```", shown, re.DOTALL)
    assert len(pairs) == 4
    for text, messages in pairs:
        assert failure(text) == messages.strip()
