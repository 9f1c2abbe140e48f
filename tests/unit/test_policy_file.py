"""What a policy file may say, what it comes out as, and what the loader says about mistakes."""

import ast
import inspect
import re
import string
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.policy import (
    Canary,
    Cap,
    Example,
    Expected,
    Fields,
    ModelPolicy,
    Rule,
    Shadow,
    Situation,
    Target,
    TierSituation,
)
from gateway.config.problems import ConfigError
from gateway.policy import checks, conditions, kinds, language, tokens
from gateway.policy.load import load_setup
from tests.unit.policies.cases import BAD, failure, parse

UNTOLD = (
    "a condition has at most 4000 characters, this one has 4001",  # too long for the table
    "not a CEL expression: what the library alone refuses",  # nothing is known of which it would
)
LEAST = "models:\n  chat: {tiers: {all: fast}}\n"


def phrases(module: ModuleType) -> Iterator[str]:
    """Texts of three words and more in a module that are no docstrings."""
    tree = ast.parse(inspect.getsource(module))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            text = node.value.strip()
            if re.fullmatch(r"[^\\\n]*[a-z`]+ [a-z`]+ [a-z`][^\\\n]*", text):
                yield text


class TestGoodPolicies:
    def test_the_least_that_works_has_every_default(self) -> None:
        [(name, rules)] = parse(LEAST).items()
        assert (name, rules.policy) == ("chat", ModelPolicy(tiers={"all": [Target(engine="fast")]}))

    def test_every_key_is_read(self) -> None:
        text = """
        models:
          chat:
            tiers:
              small: [{engine: fast, weight: 2.5}, {engine: gpu, model: llama}]
              large: {engine: gpu, model: qwen}
              new: fast
              copy: fast
            score: weighted
            spill: 0
            rules:
              - name: all
                when: stream
                route: [large, small]
                class: low
                set: {temperature: 0, top_p: 1, seed: -3}
                cap: {max_tokens: 9}
                deadline: 30
                on_deadline: cut
                spill: 0.5
              - {reject: No.}
            canary: {tier: new, share: 0.2}
            shadow: {tier: copy}
            examples:
              - request:
                  prompt_tokens: 1
                  max_tokens: 2
                  images: 3
                  tools: 4
                  structured: true
                  stream: true
                  dialect: ollama
                  endpoint: completions
                  key: k
                  key_class: high
                  app: a
                  hour: 5
                  headers: {X-Team: blue}
                tiers:
                  small: {healthy: false, queue: 1, running: 2, predicted_wait_s: 3, predicted_ttft_s: 4, warm: false,
                          prefix_hit: 0.5}
                expect: {tier: large, rule: all, rejected: false, class: low, max_tokens: 5}
        """
        policy = parse(text)["chat"].policy
        assert policy == ModelPolicy(
            tiers={
                "small": [Target(engine="fast", weight=2.5), Target(engine="gpu", model="llama")],
                "large": [Target(engine="gpu", model="qwen")],
                "new": [Target(engine="fast")],
                "copy": [Target(engine="fast")],
            },
            score="weighted",
            spill=0.0,
            rules=[
                Rule(
                    name="all",
                    when="stream",
                    route=["large", "small"],
                    priority="low",
                    set=Fields(temperature=0.0, top_p=1.0, seed=-3),
                    cap=Cap(max_tokens=9),
                    deadline=30.0,
                    on_deadline="cut",
                    spill=0.5,
                ),
                Rule(reject="No."),
            ],
            canary=Canary(tier="new", share=0.2),
            shadow=Shadow(tier="copy"),
            examples=[
                Example(
                    request=Situation(
                        prompt_tokens=1,
                        max_tokens=2,
                        images=3,
                        tools=4,
                        structured=True,
                        stream=True,
                        dialect="ollama",
                        endpoint="completions",
                        key="k",
                        key_class="high",
                        app="a",
                        hour=5,
                        headers={"X-Team": "blue"},
                    ),
                    tiers={
                        "small": TierSituation(
                            healthy=False,
                            queue=1,
                            running=2,
                            predicted_wait_s=3.0,
                            predicted_ttft_s=4.0,
                            warm=False,
                            prefix_hit=0.5,
                        )
                    },
                    expect=Expected(tier="large", rule="all", priority="low", max_tokens=5),
                )
            ],
        )

    @pytest.mark.parametrize(
        ("written", "targets"),
        [
            ("fast", [Target(engine="fast")]),
            ("[fast]", [Target(engine="fast")]),
            ("{engine: gpu, model: qwen}", [Target(engine="gpu", model="qwen")]),
            ("[fast, {engine: gpu, model: qwen}]", [Target(engine="fast"), Target(engine="gpu", model="qwen")]),
            ("'${ENGINE:-fast}'", [Target(engine="fast")]),
        ],
    )
    def test_short_forms_of_a_tier(self, written: str, targets: list[Target]) -> None:
        assert parse(f"models: {{chat: {{tiers: {{all: {written}}}}}}}")["chat"].policy.tiers["all"] == targets

    def test_a_model_that_the_engine_has_need_not_be_named(self) -> None:
        assert parse("models: {qwen: {tiers: {all: gpu}}}")["qwen"].policy.tiers["all"] == [Target(engine="gpu")]

    @pytest.mark.parametrize(
        "written",
        [
            "stream && tools > 1",
            "'stream && tools > 1'",
            ">-\n          stream &&\n          tools > 1",
            ">\n          stream\n          && tools > 1\n",
            "|\n          stream &&\n            tools > 1\n",
        ],
    )
    def test_a_condition_may_have_more_than_one_line(self, written: str) -> None:
        head = "models:\n  chat:\n    tiers: {all: fast}\n    rules:\n      "
        text = f"{head}- when: {written}\n        class: low"
        [rule] = parse(text)["chat"].policy.rules
        assert rule.when is not None
        assert " ".join(rule.when.split()) == "stream && tools > 1"

    def test_a_text_in_a_condition_keeps_its_spaces(self) -> None:
        text = "models:\n  chat:\n    tiers: {all: fast}\n    rules:\n      - {when: 'app == \"a   b\"', class: low}"
        assert parse(text)["chat"].policy.rules[0].when == 'app == "a   b"'

    def test_a_message_may_have_more_than_one_line(self) -> None:
        text = (
            "models:\n  chat:\n    tiers: {all: fast}\n    rules:\n      - reject: >\n          Not\n          here.\n"
        )
        assert parse(text)["chat"].policy.rules[0].reject == "Not here."

    def test_references_to_the_environment(self) -> None:
        text = """
        models:
          chat:
            tiers: {small: fast, large: fast}
            spill: ${LIMIT}
            rules:
              - {when: "prompt_tokens > ${LIMIT}", route: ["${TIER}"]}
        """
        policy = parse(text)["chat"].policy
        assert (policy.spill, policy.rules[0].when, policy.rules[0].route) == (500.0, "prompt_tokens > 500", ["small"])

    def test_a_rule_may_be_repeated_by_its_alias(self) -> None:
        text = """
        models:
          chat: {tiers: {all: fast}, rules: &rules [{when: images > 0, reject: No pictures.}]}
          draft: {tiers: {all: fast}, rules: *rules}
        """
        assert {name: rules.policy.rules[0].reject for name, rules in parse(text).items()} == {
            "chat": "No pictures.",
            "draft": "No pictures.",
        }


class TestMistakes:
    @pytest.mark.parametrize(("text", "messages"), BAD.values(), ids=BAD)
    def test_every_mistake_is_told_with_its_line(self, text: str, messages: str) -> None:
        assert failure(text).replace("policy.yaml:", "").strip() == messages

    def test_there_are_enough_of_them(self) -> None:
        assert len(BAD) >= 30

    @pytest.mark.parametrize("module", [checks, conditions, kinds, language, tokens], ids=lambda one: one.__name__)
    def test_every_message_is_among_them(self, module: ModuleType) -> None:
        """What the code can say, without the parts that it fills in, is said somewhere in the table or above it."""
        said = "\n".join([*(messages for _, messages in BAD.values()), *UNTOLD])
        assert [phrase for phrase in phrases(module) if phrase not in said] == []

    def test_a_mistake_of_form_does_not_hide_one_of_sense(self) -> None:
        """Each mistake is told beside each other, whichever they are."""
        head = "models:\n  chat:\n    tiers: {small: fast, large: fast}\n"
        mistakes = {
            "    spill: soon\n": "a number of seconds",
            "    rules: [{when: nothing, class: low}]\n": "nothing is called",
            "    canary: {tier: none}\n": "no tier is named",
            "    examples: [{expect: {rule: none}}]\n": "no rule is named",
            "    scores: hash\n": "unknown key",
        }
        for first, one in mistakes.items():
            for second, other in mistakes.items():
                if first != second:
                    messages = failure(head + first + second)
                    assert one in messages, messages
                    assert other in messages, messages

    def test_an_empty_file_is_answered_with_one_that_works(self) -> None:
        _, _, example = failure("").partition("\n")
        assert failure(example.replace("local", "fast")) == ""

    def test_no_message_repeats_a_long_value(self) -> None:
        assert len(failure(LEAST.replace("}}", f"}}, score: {'x' * 1000}}}"))) < 250


class TestFiles:
    CONFIG = "engines: {fast: {kind: llamacpp, url: http://127.0.0.1:8080}}\npolicy: rules/policy.yaml\n"

    def write(self, folder: Path, policy: str | None) -> Path:
        (folder / "rules").mkdir()
        if policy is not None:
            (folder / "rules" / "policy.yaml").write_text(policy)
        (folder / "sluice.yaml").write_text(self.CONFIG)
        return folder / "sluice.yaml"

    def test_its_path_counts_from_the_config(self, tmp_path: Path) -> None:
        setup = load_setup(self.write(tmp_path, LEAST), environ={}, kinds={"llamacpp"})
        assert list(setup.policies) == ["chat"]

    @pytest.mark.parametrize(
        ("policy", "problem"),
        [
            (None, ": there is no such file"),
            ("models: 3", ":1: models: expected a mapping of `key: value` lines, got a single value"),
        ],
    )
    def test_problems_name_it(self, tmp_path: Path, policy: str | None, problem: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_setup(self.write(tmp_path, policy), environ={}, kinds={"llamacpp"})
        assert str(caught.value) == f"{tmp_path / 'rules' / 'policy.yaml'}{problem}"


# Whatever a policy file holds, the loader answers with rules or a ConfigError, and with nothing else.

KEYS = [
    *(
        "models",
        "chat",
        "tiers",
        "rules",
        "score",
        "spill",
        "canary",
        "shadow",
        "examples",
        "engine",
        "model",
        "weight",
    ),
    *("name", "when", "route", "reject", "class", "set", "cap", "deadline", "max_tokens", "tier", "share", "back"),
    *("request", "expect", "small", "fast", "headers", "5"),
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["fast", "gpu", "qwen", "small", "stream", "small.queue > 1", "hash", "low", "${LIMIT}"]),
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
)
RULES = st.lists(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=4) | TREES, max_size=4)


class TestAnyText:
    @settings(deadline=None)
    @given(st.text(string.printable) | st.text("\n :-{}[]&*!a|>'\"%@?<=~1.0_e\\xuU,#$", max_size=60))
    def test_text(self, text: str) -> None:
        failure(text)

    @settings(deadline=None)
    @given(TREES)
    def test_a_model(self, tree: object) -> None:
        failure(yaml.safe_dump({"models": {"chat": tree}}))

    @settings(deadline=None)
    @given(RULES, TREES, TREES)
    def test_parts_of_a_model(self, rules: object, examples: object, canary: object) -> None:
        model = {"tiers": {"small": "fast"}, "rules": rules, "examples": examples, "canary": canary}
        failure(yaml.safe_dump({"models": {"chat": model}}))
