"""Which rules of a policy a request meets, and what they make of it."""

import msgspec
import pytest
import yaml

from gateway.config.policy import ModelPolicy
from gateway.policy.conditions import ConditionError
from gateway.policy.facts import Facts, TierFacts
from gateway.policy.rules import Rules, Verdict
from gateway.policy.scene import Scene

SMALLEST = Scene(Facts(model="chat"))
STREAM = Scene(Facts(model="chat", stream=True))


def rules(text: str = "", **fields: object) -> Rules:
    """The rules written in `text`, of a model with three tiers."""
    tiers = {name: [{"engine": name}] for name in ("small", "large", "spare")}
    return Rules(msgspec.convert({"tiers": tiers, "rules": yaml.safe_load(text) or [], **fields}, ModelPolicy))


def verdict(text: str, moment: Scene = STREAM, **fields: object) -> Verdict:
    return rules(text, **fields).decide(moment)


class TestRouting:
    def test_without_rules_all_tiers_are_used_in_their_order(self) -> None:
        assert verdict("", SMALLEST) == Verdict(("small", "large", "spare"), spill=2.0)

    def test_the_first_rule_that_routes_decides(self) -> None:
        text = """
        - {name: never, when: images > 0, route: [small]}
        - {name: first, when: stream, route: [large, small]}
        - {name: second, when: stream, route: [spare]}
        """
        found = verdict(text)
        assert (found.tiers, found.rule, found.matched) == (("large", "small"), "first", ("first",))

    def test_a_rule_without_a_condition_is_for_all(self) -> None:
        text = """
        - {when: stream, route: [large]}
        - {route: [spare]}
        """
        assert verdict(text, STREAM).tiers == ("large",)
        assert verdict(text, SMALLEST).tiers == ("spare",)

    def test_where_no_rule_routes_all_tiers_are_left(self) -> None:
        found = verdict("- {when: stream, class: low}")
        assert (found.tiers, found.rule, found.matched) == (("small", "large", "spare"), None, ("rule 1",))

    def test_a_rule_is_called_by_its_number_unless_it_has_a_name(self) -> None:
        text = """
        - {class: low}
        - {name: long, class: low}
        - {route: [small]}
        """
        found = verdict(text)
        assert (found.matched, found.rule) == (("rule 1", "long", "rule 3"), "rule 3")

    def test_live_facts_and_headers_decide_too(self) -> None:
        text = """
        - {when: small.queue > 5 && header("x-team") == "batch", route: [spare]}
        - {when: "!small.healthy", route: [large]}
        """
        facts, headers = Facts(model="chat"), {"X-Team": "batch"}
        busy, down = TierFacts(queue=6), TierFacts(healthy=False)
        assert verdict(text, Scene(facts, headers, {"small": busy})).tiers == ("spare",)
        assert verdict(text, Scene(facts, {}, {"small": busy})).tiers == ("small", "large", "spare")
        assert verdict(text, Scene(facts, headers, {"small": down})).tiers == ("large",)

    def test_a_condition_that_fails_is_passed_over(self) -> None:
        text = """
        - {when: prompt_tokens / images > 5, reject: No.}
        - {when: stream, route: [large]}
        """
        found = verdict(text)
        assert (found.tiers, found.matched, found.reject) == (("large",), ("rule 2",), None)


class TestRejecting:
    TEXT = """
        - {class: high, deadline: 5}
        - {name: never, when: stream, reject: No streams here.}
        - {when: stream, route: [large], class: low}
    """

    def test_a_rejected_request_may_use_nothing(self) -> None:
        found = verdict(self.TEXT)
        assert (found.tiers, found.rule, found.reject) == ((), "never", "No streams here.")

    def test_no_later_rule_is_looked_at(self) -> None:
        found = verdict(self.TEXT)
        assert (found.matched, found.priority, found.deadline) == (("rule 1", "never"), "high", 5.0)

    def test_others_are_not_rejected(self) -> None:
        assert verdict(self.TEXT, SMALLEST).reject is None


class TestTerms:
    """What rules say beside the tiers adds up, until one routes or rejects."""

    @pytest.mark.parametrize(
        ("action", "field", "value", "default"),
        [
            ("class: low", "priority", "low", None),
            ("deadline: 30", "deadline", 30.0, None),
            ("on_deadline: cut", "cut", True, False),
            ("spill: 9", "spill", 9.0, 2.0),
            ("spill: 0", "spill", 0.0, 2.0),
            ("set: {temperature: 0, seed: 7}", "set", {"temperature": 0.0, "seed": 7}, {}),
            ("cap: {max_tokens: 100}", "cap", {"max_tokens": 100}, {}),
        ],
    )
    def test_each_of_them(self, action: str, field: str, value: object, default: object) -> None:
        text = f"- {{when: stream, {action}}}"
        assert getattr(verdict(text, STREAM), field) == value
        assert getattr(verdict(text, SMALLEST), field) == default

    def test_a_later_rule_goes_before_an_earlier_one(self) -> None:
        text = """
        - {class: low, deadline: 60, on_deadline: cut, spill: 9, set: {seed: 1, top_p: 0.5}, cap: {max_tokens: 9}}
        - {class: high, deadline: 5, on_deadline: error, spill: 0, set: {seed: 2}, cap: {max_tokens: 99}}
        """
        found = verdict(text)
        assert (found.priority, found.deadline, found.cut, found.spill) == ("high", 5.0, False, 0.0)
        assert (found.set, found.cap) == ({"seed": 2, "top_p": 0.5}, {"max_tokens": 99})

    def test_a_later_rule_leaves_what_it_does_not_name(self) -> None:
        text = """
        - {class: low, deadline: 60, on_deadline: cut, spill: 9, set: {seed: 1}, cap: {max_tokens: 9}}
        - {set: {top_p: 0.5}}
        - {when: images > 0, class: high, spill: 1}
        """
        found = verdict(text)
        assert (found.priority, found.deadline, found.cut, found.spill) == ("low", 60.0, True, 9.0)
        assert (found.set, found.cap) == ({"seed": 1, "top_p": 0.5}, {"max_tokens": 9})

    def test_the_rule_that_routes_adds_its_own_and_later_ones_nothing(self) -> None:
        text = """
        - {class: low}
        - {when: stream, route: [large], spill: 9}
        - {class: high, deadline: 5}
        """
        found = verdict(text)
        assert (found.priority, found.spill, found.deadline) == ("low", 9.0, None)
        assert verdict(text, SMALLEST).priority == "high"

    def test_the_spill_of_the_model_is_the_default(self) -> None:
        assert verdict("", spill=30).spill == 30.0
        assert verdict("", spill=0).spill == 0.0
        assert verdict("- {spill: 5}", spill=30).spill == 5.0

    def test_a_verdict_does_not_change_the_next_one(self) -> None:
        both = rules("- {when: stream, set: {seed: 1}, cap: {max_tokens: 9}, class: low}")
        assert both.decide(STREAM).set == {"seed": 1}
        assert both.decide(SMALLEST) == Verdict(("small", "large", "spare"), spill=2.0)


def test_a_condition_that_cannot_be_used_makes_no_rules() -> None:
    with pytest.raises(ConditionError, match="did you mean `stream`"):
        rules("- {when: streem, class: low}")
