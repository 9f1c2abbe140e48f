"""What conditions can say, what they see, and what is refused when they are loaded."""

import json
import math
from collections.abc import Mapping
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.doors import all_doors
from gateway.config import policy
from gateway.fleet import ModelCard
from gateway.policy.conditions import Condition, ConditionError
from gateway.policy.facts import REQUEST_FACTS, Facts, TierFacts
from gateway.policy.language import read
from gateway.request import Endpoint

TIERS = ("small", "large")
FACTS = Facts(
    model="chat",
    prompt_tokens=4000,
    max_tokens=256,
    images=2,
    tools=3,
    structured=True,
    stream=True,
    dialect="anthropic",
    endpoint="messages",
    key="alice",
    key_class="high",
    app="claude-code",
    hour=23,
)
SMALL = TierFacts(
    healthy=True,
    queue=7,
    running=4,
    predicted_wait_s=2.5,
    predicted_ttft_s=3.25,
    warm=False,
    prefix_hit=0.75,
)
LARGE = TierFacts(healthy=False, predicted_wait_s=math.inf, predicted_ttft_s=math.inf)


class Moment:
    def __init__(self, facts: Facts = FACTS, headers: Mapping[str, str] | None = None, small: TierFacts = SMALL):
        self.facts = facts
        self._headers = headers or {}
        self._tiers = {"small": small, "large": LARGE}

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def tier(self, name: str) -> TierFacts:
        return self._tiers[name]


def holds(text: str, moment: Moment | None = None, **headers: str) -> bool:
    return Condition(text, TIERS).holds(moment or Moment(headers=headers))


def refusal(text: str, tiers: tuple[str, ...] = TIERS) -> str:
    with pytest.raises(ConditionError) as caught:
        Condition(text, tiers)
    return str(caught.value)


class TestFacts:
    @pytest.mark.parametrize(
        ("true", "false"),
        [
            ('model == "chat"', 'model == "Chat"'),
            ("prompt_tokens == 4000", "prompt_tokens > 4000"),
            ("max_tokens <= 256", "max_tokens == 0"),
            ("images == 2", "images < 2"),
            ("tools != 0", "tools == 0"),
            ("structured", "!structured"),
            ("stream", "!stream"),
            ('dialect == "anthropic"', 'dialect == "openai"'),
            ('endpoint == "messages"', 'endpoint == "chat"'),
            ('key == "alice"', 'key == ""'),
            ('key_class == "high"', 'key_class == "low"'),
            ('app.startsWith("claude")', 'app == "claude"'),
            ("hour >= 22 || hour < 7", "hour == 0"),
        ],
    )
    def test_every_fact_of_a_request(self, true: str, false: str) -> None:
        assert holds(true)
        assert not holds(false)

    @pytest.mark.parametrize(
        ("true", "false"),
        [
            ("small.healthy && !large.healthy", "large.healthy"),
            ("small.queue == 7", "large.queue == 7"),
            ("small.running > large.running", "small.running == 7"),
            ("small.predicted_wait_s == 2.5", "small.predicted_wait_s > 2.5"),
            ("small.predicted_ttft_s < 4", "small.predicted_ttft_s > 4"),
            ("large.warm && !small.warm", "small.warm"),
            ("small.prefix_hit > 0.5", "large.prefix_hit > 0.5"),
        ],
    )
    def test_every_fact_of_a_tier(self, true: str, false: str) -> None:
        assert holds(true)
        assert not holds(false)

    def test_none_is_forgotten_here(self) -> None:
        listed = {name for name in REQUEST_FACTS if getattr(FACTS, name) != REQUEST_FACTS[name]}
        assert listed == set(REQUEST_FACTS)

    def test_an_endless_wait_is_longer_than_any_other(self) -> None:
        assert holds("large.predicted_wait_s > 86400 && large.predicted_wait_s > small.predicted_wait_s")
        assert not holds("large.predicted_wait_s < 1000000000000")

    def test_texts_with_few_values_know_all_of_them(self) -> None:
        assert set(get_args(policy.Dialect)) == {door.dialect for door in all_doors(_NoNames())}
        assert set(get_args(policy.Endpoint)) == {endpoint.name.lower() for endpoint in Endpoint}


class _NoNames:
    def models(self) -> list[ModelCard]:
        return []

    def model(self, name: str) -> ModelCard:
        raise AssertionError(name)


class TestHeaders:
    def test_a_header_is_a_text(self) -> None:
        moment = Moment(headers={"x-team": "Blue"})
        assert holds('header("x-team") == "Blue"', moment)
        assert holds('header(\'x-team\').startsWith("B") && header("x-team").size() == 4', moment)
        assert not holds('header("x-team") == "blue"', moment)

    def test_its_name_is_read_without_case_and_spaces(self) -> None:
        assert holds('header ( "X-Team" ) == "Blue"', Moment(headers={"x-team": "Blue"}))

    def test_one_that_was_not_sent_is_empty(self) -> None:
        assert holds('header("x-team") == ""')

    def test_each_is_its_own(self) -> None:
        """Those whose names differ in a mark alone, and one that is called as a fact."""
        moment = Moment(headers={"x-a": "1", "x_a": "2", "queue": "3"})
        assert holds('header("x-a") == "1" && header("x_a") == "2" && header("queue") == "3"', moment)

    @pytest.mark.parametrize(
        "text", ["header(key)", "header()", 'header("a b")', 'header("a", "b")', "header", 'header("x']
    )
    def test_anything_else_is_no_header(self, text: str) -> None:
        assert "header" in refusal(f'{text} == "a"') or "quote" in refusal(f'{text} == "a"')


class TestTexts:
    @pytest.mark.parametrize(
        "value",
        [
            "small.queue",
            'header("x-team")',
            "prompt_tokens > 4000",
            'model.matches("x")',
            "_tier0",
            "&& || ! // #",
            "it's",
            'say "hi"',
            "tab\tline\nend\\",
            "grün 東京 😀",
            "",
        ],
    )
    def test_what_looks_like_something_else_is_text(self, value: str) -> None:
        moment = Moment(headers={"x-value": value})
        literal = json.dumps(value, ensure_ascii=False)
        assert holds(f'header("x-value") == {literal} && small.queue == 7', moment)
        assert not holds(f'header("x-value") != {literal} || small.queue != 7', moment)

    @pytest.mark.parametrize(
        ("literal", "value"),
        [
            (r"'a\'b'", "a'b"),
            (r'"a\"b"', 'a"b'),
            (r'r"a\d"', r"a\d"),
            (r"R'a\d'", r"a\d"),
            (r'"\\d"', r"\d"),
            (r'"\x41\u00e9\U0001F600\101\n\t"', "Aé😀A\n\t"),
            ('"a" + "b"', "ab"),
        ],
    )
    def test_how_it_is_written(self, literal: str, value: str) -> None:
        assert holds(f'header("x") == {literal}', x=value)

    @settings(deadline=None)
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.booleans())
    def test_a_text_stays_as_it_is_whatever_is_around_it(self, value: str, single: bool) -> None:
        literal = "".join(f"\\U{ord(char):08x}" if char in "\\\"'\n\r" or ord(char) < 32 else char for char in value)
        literal = f"'{literal}'" if single else f'"{literal}"'
        text = f'small.queue == 7 && header("x-value") == {literal} && large.queue == 0 && header("y") == {literal}'
        assert holds(text, Moment(headers={"x-value": value, "y": value}))
        assert read(text, TIERS).flat == f"_tier0 == 7 && _header0 == {literal} && _tier1 == 0 && _header1 == {literal}"


class TestLanguage:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("true", True),
            ("!!stream", True),
            ("stream && !structured || images == 2", True),
            ("stream && (!structured || images == 3)", False),
            ("images + 1 == tools && tools * 2 - 1 == 5 && 7 / 2 == images + 1 && 7 % 2 == 1", True),
            ("-images < 0 && - -2 == images", True),
            ("small.predicted_wait_s * 2.0 > 4 && double(images) / 4.0 == 0.5", True),
            ("images == 2.0 && small.predicted_wait_s >= 2", True),
            ("1.5e1 == 15 && .5 < 1 && 1e0 == 1", True),
            ('"abc" < "abd" && model >= "chat"', True),
            ('key in ["bob", "alice"]', True),
            ("images in [1, 2, 3,]", True),
            ('!(key in ["bob"])', True),
            ("stream == true && structured != false", True),
            ("(stream ? images : tools) == 2", True),
            ('stream ? model == "chat" : false', True),
            ('model.contains("ha") && model.endsWith("t") && size(model) == 4 && model.size() == 4', True),
            ('size("grün") == 4 && "grün".size() == 4 && size(["a", "b"]) == 2 && [1].size() == 1', True),
            ('int("5") == 5 && int(2.9) == 2 && double("1.5") == 1.5 && string(images) == "2"', True),
            ('["clau", "gpt"].exists(word, app.startsWith(word))', True),
            ('["c", "code"].all(word, app.contains(word)) && ![1, 2].all(n, n == images)', True),
            ("[1, 2, 2].exists_one(n, n == 1) && ![1, 2, 2].exists_one(n, n == images)", True),
            ("[1, 2, 3].filter(n, n > images) == [3] && [1, 2].map(n, n + images) == [3, 4]", True),
            ("[[1], [2]].exists(row, row.exists(n, n == images))", True),
            ("[1] + [2] == [1, 2]", True),
            ("small\n.\nqueue == 7\n&& stream", True),
        ],
    )
    def test_expressions(self, text: str, expected: bool) -> None:
        assert holds(text) is expected

    @pytest.mark.parametrize(
        "text", ["'a' == model // why", "null == null", "b'a' == b'a'", "1u == 1u", "has(model.x)", "{1: 2}[1] == 2"]
    )
    def test_what_facts_have_no_use_for_is_left_out(self, text: str) -> None:
        assert refusal(text)

    def test_an_item_of_a_list_has_a_name_of_its_own(self) -> None:
        for name in ("model", "small", "_x"):
            assert "cannot be the name" in refusal(f"[1].exists({name}, true)")
        assert "nothing is called `n`" in refusal("[1].exists(n, n == 1) && n == 1")


class TestPatterns:
    @pytest.mark.parametrize(
        ("pattern", "value", "expected"),
        [
            ("^gpt-[0-9]+$", "gpt-4", True),
            ("^gpt-[0-9]+$", "gpt-4o", False),
            ("4", "gpt-4", True),
            ("(?i)GPT", "gpt-4", True),
            (r"\\d", "gpt-4", True),
            ("^$", "", True),
        ],
    )
    def test_a_pattern_is_looked_for(self, pattern: str, value: str, expected: bool) -> None:
        for _ in range(2):  # the second time it is remembered
            assert holds(f'header("x").matches("{pattern}")', x=value) is expected

    def test_a_long_text(self) -> None:
        assert holds('header("x").matches("b$")', x="a" * 5000 + "b")
        assert not holds('header("x").matches("b$")', x="a" * 5000)

    def test_no_pattern_takes_long(self) -> None:
        """With one that steps back, these take longer than the universe has."""
        for pattern in ("(a+)+$", "(a|aa)+$", "(.*a){20}$", "a*a*a*a*a*b"):
            assert not holds(f'header("x").matches("^{pattern}")', x="a" * 20_000 + "!")

    @pytest.mark.parametrize(
        ("pattern", "why"),
        [
            ("(", "unclosed group"),
            ("[", "unclosed character class"),
            ("*", "repetition operator missing expression"),
            ("(?=a)", "look-around, including look-ahead and look-behind, is not supported"),
            (r"(a)\\1", "backreferences are not supported"),
            ("a{1000}{1000}", "it is too large"),
            (r"\\w{10}", "it is too large; repeat less in it"),
        ],
    )
    def test_one_that_cannot_be_used_is_refused(self, pattern: str, why: str) -> None:
        assert refusal(f'stream && model.matches("{pattern}")').endswith(f"of `matches` cannot be used: {why}")

    @pytest.mark.parametrize("pattern", ["key", 'header("x")', '"a" + key', '("a")', 'stream ? "a" : "b"'])
    def test_a_client_cannot_send_one(self, pattern: str) -> None:
        assert "must be one text in quotes" in refusal(f"model.matches({pattern})")


class TestFailing:
    """A condition that fails on a request does not hold for it, and does no harm."""

    @pytest.mark.parametrize(
        ("text", "headers"),
        [
            ("prompt_tokens / (images - 2) > 1", {}),
            ("prompt_tokens % (images - 2) == 0", {}),
            ("prompt_tokens + 9223372036854775807 > 0", {}),
            ("prompt_tokens * 9223372036854775807 > 0", {}),
            ('int(header("x-size")) > 5', {}),
            ('int(header("x-size")) > 5', {"x-size": "many"}),
            ('double(header("x-size")) > 5.0', {"x-size": "many"}),
            ("int(large.predicted_wait_s) > 5", {}),
            ("large.predicted_wait_s - large.predicted_ttft_s > 0", {}),
        ],
    )
    def test_it_does_not_hold(self, text: str, headers: dict[str, str]) -> None:
        moment = Moment(headers=headers)
        assert not holds(text, moment)
        assert not holds(f"!({text})", moment)
        assert holds(f"{text} || stream", moment)
        assert holds(f"stream || {text}", moment)
        assert not holds(f"{text} && !stream", moment)

    def test_a_number_in_a_header_is_one(self) -> None:
        assert holds('int(header("x-size")) > 5', Moment(headers={"x-size": "6"}))

    @pytest.mark.parametrize("value", [2**63, 2**70, 10**400])
    def test_a_number_that_is_too_large(self, value: int) -> None:
        for text in ("max_tokens > 5", "max_tokens + 1 > 5", "-max_tokens < 5", "max_tokens == 5"):
            Condition(text, TIERS).holds(Moment(Facts(max_tokens=value)))

    def test_text_that_is_none(self) -> None:
        assert not holds('model != ""', Moment(Facts(model="\ud800")))


class TestRefused:
    @pytest.mark.parametrize(
        "text",
        [
            'stream && prompt_tokens > "4000"',
            'prompt_tokens > 1000000 && images == "two"',
            '!stream && images + "a" == 5',
            "small.queue > 1000 && (large.queue > 5 || model == 5)",
            "stream ? true : model > 5",
            'false && [1, 2].exists(n, n == "a")',
            "false && model.contains(5)",
            'false && model.matches("(")',
            "true || nothing",
        ],
    )
    def test_a_mistake_is_found_where_no_request_comes_at_first(self, text: str) -> None:
        assert refusal(text)

    def test_all_mistakes_of_one_condition_are_told(self) -> None:
        with pytest.raises(ConditionError) as caught:
            Condition("tols > 1 && smal.queue > 5 && model == 5 && tols > 2", TIERS)
        assert caught.value.problems == (
            "nothing is called `tols`, did you mean `tools`?",
            "no tier is named `smal`, did you mean `small`?",
            "`model` is a text and `5` is a whole number: they cannot be compared",
        )

    def test_one_mistake_is_told_once(self) -> None:
        assert len(refusal("(tols + 1) * 2 > 5 && !(tols == 1)").split(";")) == 1

    @pytest.mark.parametrize("tier", ["queue", "healthy", "exists", "q"])
    def test_a_tier_may_be_called_as_its_facts(self, tier: str) -> None:
        assert Condition(f"{tier}.queue == 0", [tier]).text
