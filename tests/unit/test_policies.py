"""The ready-made policies: each works with the config that it shows, and does what its examples say."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from gateway.cli import main
from gateway.config.load import ConfigError
from gateway.engines import KINDS
from gateway.policy.examples import try_examples
from gateway.policy.load import Setup, load_setup

ROOT = Path(__file__).parents[2]
POLICIES = sorted((ROOT / "policies").glob("*.yaml"))


def shown_config(policy: str) -> str:
    """The config in the comment at a policy's head."""
    head = policy.partition("\n\n")[0]
    return "".join(f"{line}\n" for line in re.findall(r"^#   (.*)$", head, re.MULTILINE))


def install(policy: Path, folder: Path) -> Path:
    """Both files in a folder, as a user would have them."""
    text = policy.read_text("utf-8")
    (folder / policy.name).write_text(text)
    config = folder / "sluice.yaml"
    config.write_text(shown_config(text))
    return config


def load(policy: Path, folder: Path) -> Setup:
    return load_setup(install(policy, folder), kinds=KINDS, environ={})


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.stem)
class TestReadyMade:
    def test_it_passes_the_check_with_its_config(self, policy: Path, tmp_path: Path) -> None:
        result = CliRunner().invoke(main, ["check", "-c", str(install(policy, tmp_path))])
        assert result.exit_code == 0, result.output
        assert re.search(r", a policy for 1 model with [3-9] examples, nothing wrong\.$", result.output)

    def test_every_engine_tier_and_rule_is_of_use(self, policy: Path, tmp_path: Path) -> None:
        """No engine is without a tier, and for each tier and rule there is an example that ends there."""
        setup = load(policy, tmp_path)
        [rules] = setup.policies.values()
        model = rules.policy
        assert {target.engine for tier in model.tiers.values() for target in tier} == set(setup.config.engines)
        assert {example.expect.tier for example in model.examples} - {None} == set(model.tiers)

    def test_an_example_that_is_wrong_is_found(self, policy: Path, tmp_path: Path) -> None:
        """Each example that expects a tier fails when it expects another one."""
        setup = load(policy, tmp_path)
        [rules] = setup.policies.values()
        text = policy.read_text("utf-8")
        tiers = list(rules.policy.tiers)
        wrong = re.sub(r"(expect: \{tier: )(\w+)", lambda found: found[1] + tiers[tiers.index(found[2]) - 1], text)
        (tmp_path / policy.name).write_text(wrong)
        changed = load_setup(tmp_path / "sluice.yaml", kinds=KINDS, environ={})
        with pytest.raises(ConfigError) as failure:
            try_examples(wrong, policy.name, changed.policies, environ={})
        assert len(failure.value.problems) == len(re.findall(r"expect: \{tier: ", text))

    def test_an_editor_finds_nothing_wrong_with_it(self, policy: Path) -> None:
        """By the schema that `sluice config schema --policy` prints; it finds a key that is misspelt."""
        schema = CliRunner().invoke(main, ["config", "schema", "--policy"]).output
        editor = jsonschema.Draft202012Validator(json.loads(schema))
        text = policy.read_text("utf-8")
        assert editor.is_valid(yaml.safe_load(text))
        assert not editor.is_valid(yaml.safe_load(text.replace("rules:", "ruels:")))

    def test_it_is_explained_in_the_docs(self, policy: Path) -> None:
        assert f"policies/{policy.name}" in (ROOT / "docs" / "policies.md").read_text("utf-8")


def test_there_are_the_ones_that_the_docs_promise() -> None:
    assert {path.stem for path in POLICIES} >= {"small-first", "latency-first", "cost-of-power", "pinned-versions"}
