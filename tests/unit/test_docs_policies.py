"""docs/policies.md says what the schema, the facts and the commands say."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.config import policy
from gateway.config.schema import Section
from gateway.policy.conditions import Condition
from gateway.policy.facts import REQUEST_FACTS, TIER_FACTS
from gateway.policy.score import SCORES
from tests.unit.test_docs import default

DOCS = (Path(__file__).parents[2] / "docs" / "policies.md").read_text("utf-8")
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
YAML = [text for language, text in BLOCKS if language == "yaml"]
SHOWN = dict(text.removeprefix("$ ").split("\n", 1) for _, text in BLOCKS if text.startswith("$ "))
"""What commands print, by command."""

LOG = [
    {"tier": "fast", "decision": {"prompt_tokens": 310, "hour": 9}},
    {"tier": "fast", "decision": {"prompt_tokens": 1480, "tools": 3, "app": "aider", "hour": 9}},
    {"tier": "strong", "decision": {"rule": "long", "prompt_tokens": 5200, "hour": 10}},
    {"tier": "strong", "decision": {"prompt_tokens": 120, "hour": 10}},
    {},
]
"""What the log of the example has of each request."""


def table(heading: str, column: int) -> dict[str, str]:
    """A column of the table below a heading or line, by the names in the first one."""
    _, found, rest = DOCS.partition(f"\n{heading}\n")
    assert found, heading
    rows = [row.strip("| ").split(" | ") for row in re.split(r"\n##+ ", rest)[0].splitlines() if row.startswith("|")]
    end = next((at for at, row in enumerate(rows[1:], 1) if row[0] in ("Fact", "Key")), len(rows))
    return {name: row[column] for row in rows[2:end] for name in re.findall(r"`([^`]+)`", row[0])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first two files of the page."""
    for text in YAML[:2]:
        name, _, rest = text.removeprefix("# ").partition("\n")
        (tmp_path / name).write_text(rest)
    return tmp_path


def run(folder: Path, command: str) -> str:
    name, *args = command.split()
    assert name == "sluice"
    result = CliRunner().invoke(main, [*args, "--config", str(folder / "sluice.yaml")])
    return result.output.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("### `models.NAME`", policy.ModelPolicy),
        ("### `models.NAME.tiers.TIER`", policy.Target),
        ("### `models.NAME.rules`", policy.Rule),
    ],
)
def test_every_key_is_documented_with_its_default(heading: str, kind: type[Section]) -> None:
    wanted = {field.encode_name: default(field) for field in msgspec.structs.fields(kind)}
    if kind is policy.Target:
        wanted["weight"] = "1"  # no time
    assert table(heading, 1) == wanted


def test_what_an_example_can_expect_is_documented() -> None:
    fields = [field.encode_name for field in msgspec.structs.fields(policy.Expected)]
    assert sorted(table("## Examples in the file", 0)) == sorted(fields)


_TYPES = {bool: "true or false", int: "number", float: "number", str: "text"}


def test_every_fact_is_documented_with_its_type() -> None:
    request = {name: _TYPES[type(value)] for name, value in REQUEST_FACTS.items()}
    tier = {name: _TYPES[type(value)] for name, value in TIER_FACTS.items()}
    assert table("Of a request:", 1) == request | {'header("x-name")': "text"}
    assert table("Of a tier, as `TIER.queue`; each is that of its best engine:", 1) == tier


def test_every_score_is_documented() -> None:
    section = DOCS.partition("\n## Scores\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \| (?!The engine)", section, re.MULTILINE)) == sorted(SCORES)


def test_the_conditions_can_be_used() -> None:
    [block] = [text for text in YAML if text.startswith("when:")]
    conditions = [line.removeprefix("when: ") for line in block.splitlines()]
    assert len(conditions) > 4
    for condition in conditions:
        Condition(condition, ["fast", "strong"])


def test_the_first_policy_is_good(folder: Path) -> None:
    said = "2 engines, 0 model names, a policy for 1 model with 0 examples, nothing wrong."
    assert run(folder, "sluice check") == f"sluice.yaml: {said}\n"


def test_the_policy_of_the_readme_is_good(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n# ([\w.]+)[^\n]*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    files = dict(blocks)
    assert list(files) == ["sluice.yaml", "policy.yaml"]
    (tmp_path / "policy.yaml").write_text(files["policy.yaml"])
    config = re.sub(r"\$\{.*?\}", "sk-something-long", files["sluice.yaml"]) + "policy: policy.yaml\n"
    (tmp_path / "sluice.yaml").write_text(config)
    said = "2 engines, 2 model names, a policy for 1 model with 1 example, nothing wrong."
    assert run(tmp_path, "sluice check") == f"sluice.yaml: {said}\n"


def test_the_example_that_fails_fails_as_shown(folder: Path) -> None:
    [examples] = [text for text in YAML if "examples:" in text]
    (folder / "policy.yaml").write_text(examples)
    [(_, said)] = [block for block in BLOCKS if block[1].startswith("policy.yaml:")]
    assert run(folder, "sluice check") == f"Error: {said}"


def test_an_explanation_looks_as_shown(folder: Path) -> None:
    [command] = [command for command in SHOWN if " explain " in command]
    assert run(folder, command) == SHOWN[command]


def test_a_replay_looks_as_shown(folder: Path) -> None:
    [command] = [command for command in SHOWN if " replay " in command]
    new = (folder / "policy.yaml").read_text().replace("2000", "1000")
    (folder / "new-policy.yaml").write_text(new)
    lines = [{"event": "request", "request_id": f"req_{at}", "model": "chat", **one} for at, one in enumerate(LOG)]
    (folder / "sluice.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    located = command.replace("sluice.log", str(folder / "sluice.log")).replace("new-", f"{folder}/new-")
    assert run(folder, located) == SHOWN[command]
