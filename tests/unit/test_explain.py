"""An explanation says what the rules, the scores and the queue do: it is held against each of them."""

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gateway.admission import Admission, Ask
from gateway.config.policy import Cap, ModelPolicy, Rule, Target
from gateway.policy.explain import Explanation, Given, Sight, explain
from gateway.policy.explain_text import as_text
from gateway.policy.facts import ENDLESS, Facts, TierFacts
from gateway.policy.rates import Rates
from gateway.policy.rules import Rules
from gateway.policy.scene import Scene
from gateway.policy.score import SCORES, predicted_ttft

CHAT = Facts(model="chat")


@dataclass(eq=False)
class Place:
    """A target that is what it is told to be."""

    name: str
    model: str = "m"
    ready: bool = True
    context: int | None = None
    capacity: int | None = 1
    in_flight: int = 0
    last_used: int = 0
    weight: float = 1.0
    warm: bool = True
    load_time: float | None = None
    rates: Rates = field(default_factory=Rates)

    def take(self) -> None:
        self.in_flight += 1

    def give_back(self) -> None:
        self.in_flight -= 1


def policy(*rules: Rule, tiers: tuple[str, ...] = ("small", "large"), **fields: Any) -> Rules:
    targets = {name: [Target(engine=name)] for name in tiers}
    return Rules(ModelPolicy(tiers=targets, rules=list(rules), **fields))


def seen(
    rules: Rules,
    facts: Facts = CHAT,
    places: dict[str, list[Place]] | None = None,
    *,
    tiers: dict[str, TierFacts] | None = None,
    headers: dict[str, str] | None = None,
    left_out: dict[str, str] | None = None,
    queue: Admission[Place] | None = None,
    **more: Any,
) -> Explanation:
    """The explanation for a request that has these places.

    Args:
        left_out: why engines cannot be used, by name.
        queue: where it would wait; an empty one by default.
    """
    scene = Scene(facts, headers, tiers)
    verdict = rules.decide(scene)
    named = places or {name: [Place(name)] for name in rules.policy.tiers}
    out = left_out or {}
    kept = [(name, [place for place in named[name] if place.name not in out]) for name in verdict.tiers]
    return explain(
        Sight(
            rules,
            scene,
            verdict,
            headers or {},
            named,
            [(name, tier) for name, tier in kept if tier],
            lambda place: out.get(place.name),
            lambda some: (queue or Admission(10, lambda: 0.0)).expected_wait(ask_for([some], facts)),
            verdict.priority or facts.key_class,
            **more,
        )
    )


def ask_for(tiers: list[Any], facts: Facts, score: str = "least_loaded", spill: float = ENDLESS) -> Ask[Place]:
    """The request as the queue gets it."""
    chosen: Any = SCORES[score]
    return Ask(tiers, chosen, key=facts.key, spill=spill, prompt_tokens=facts.prompt_tokens)


class TestRules:
    RULES = (
        Rule(name="pictures", when="images > 0", reject="No pictures here."),
        Rule(when='header("x-team") == "batch"', priority="low", cap=Cap(max_tokens=7)),
        Rule(name="long", when="prompt_tokens > 500 && small.queue < 3", route=["large"], spill=9.0),
        Rule(name="claude", when='dialect == "anthropic"', route=["large", "small"]),
    )

    def test_each_one_is_shown_with_what_it_looked_at(self) -> None:
        explanation = seen(policy(*self.RULES), Facts(model="chat", prompt_tokens=900), headers={"X-Team": "batch"})
        assert [(rule.name, rule.held, rule.reached, rule.values, rule.does) for rule in explanation.rules] == [
            ("pictures", False, True, {"images": 0}, ["reject"]),
            ("rule 2", True, True, {'header("x-team")': "batch"}, ["class low", "cap max_tokens 7"]),
            ("long", True, True, {"prompt_tokens": 900, "small.queue": 0}, ["route to large", "spill 9 s"]),
            ("claude", False, False, {"dialect": "openai"}, ["route to large, small"]),
        ]
        verdict = explanation.verdict
        assert (verdict.tiers, verdict.rule, verdict.matched) == (["large"], "long", ["rule 2", "long"])
        assert (verdict.priority, verdict.spill, verdict.cap) == ("low", 9.0, {"max_tokens": 7})

    def test_it_agrees_with_the_rules_whatever_the_request(self) -> None:
        rules = policy(*self.RULES)
        rng = random.Random(1)
        for _ in range(200):
            facts = Facts(
                model="chat",
                prompt_tokens=rng.choice([0, 501]),
                images=rng.choice([0, 0, 1]),
                dialect=rng.choice(["openai", "anthropic"]),
            )
            tiers = {"small": TierFacts(queue=rng.choice([0, 5]))}
            headers = {"x-team": rng.choice(["", "batch"])}
            explanation = seen(rules, facts, tiers=tiers, headers=headers)
            verdict = rules.decide(Scene(facts, headers, tiers))
            assert tuple(rule.name for rule in explanation.rules if rule.held and rule.reached) == verdict.matched
            assert (tuple(explanation.verdict.tiers), explanation.verdict.rule) == (verdict.tiers, verdict.rule)

    def test_a_rejected_request_goes_nowhere(self) -> None:
        explanation = seen(policy(*self.RULES), Facts(model="chat", images=1))
        assert (explanation.outcome, explanation.message) == ("rejected", "No pictures here.")
        assert (explanation.at, explanation.plan) == (None, [])

    def test_what_cannot_be_evaluated_does_not_hold(self) -> None:
        rule = Rule(when="1000 / prompt_tokens > 3", route=["large"])
        explanation = seen(policy(rule), Facts(model="chat"))
        assert (explanation.rules[0].held, explanation.rules[0].values) == (False, {"prompt_tokens": 0})


class TestTargets:
    def test_the_terms_add_up_to_what_the_score_sees(self) -> None:
        busy = Place("small", in_flight=2, warm=False, load_time=4.0, rates=Rates(prefill=100.0, service=3.0))
        places = {"small": [busy], "large": [Place("large")]}
        [small, _] = seen(policy(), Facts(model="chat", prompt_tokens=250), places).tiers
        [target] = small.targets
        assert (target.wait, target.load, target.prefill, target.ttft) == (6.0, 4.0, 2.5, 12.5)
        assert target.ttft == predicted_ttft(busy, 250)

    def test_those_that_wait_already_count(self) -> None:
        places = {"small": [Place("small", in_flight=1)], "large": [Place("large")]}
        queue = Admission[Place](10, lambda: 0.0)
        for _ in range(2):
            assert queue.submit(ask_for([places["small"]], CHAT)) is None
        [small, _] = seen(policy(), places=places, queue=queue).tiers
        assert (small.targets[0].wait, small.targets[0].ttft) == (6.0, 6.0)  # two seconds each, until one was seen

    def test_one_that_is_left_out_says_why(self) -> None:
        places = {"small": [Place("a", ready=False), Place("b")], "large": [Place("large")]}
        explanation = seen(policy(), places=places, left_out={"a": "the engine is down"})
        [a, b] = explanation.tiers[0].targets
        assert (a.left_out, a.order, a.ttft) == ("the engine is down", None, None)
        assert (b.left_out, b.order) == (None, 1)
        assert [step.engine for step in explanation.plan] == ["b", "large"]

    @pytest.mark.parametrize(
        ("score", "order"),
        [
            ("predicted_ttft", ["b", "c", "a"]),
            ("least_loaded", ["c", "b", "a"]),
            ("round_robin", ["a", "b", "c"]),
            ("weighted", ["c", "a", "b"]),
        ],
    )
    def test_the_order_is_that_of_the_score(self, score: str, order: list[str]) -> None:
        tier = [
            Place("a", capacity=4, in_flight=3, last_used=1, weight=2, rates=Rates(prefill=10.0)),
            Place("b", capacity=4, in_flight=2, last_used=2, weight=1, rates=Rates(prefill=1000.0)),
            Place("c", capacity=4, in_flight=1, last_used=3, weight=9, rates=Rates(prefill=100.0)),
            Place("full", rates=Rates(prefill=9999.0), in_flight=1, last_used=0, weight=99),
        ]
        rules = policy(tiers=("only",), score=score)
        explanation = seen(rules, Facts(model="chat", prompt_tokens=1000), {"only": tier})
        assert [step.engine for step in explanation.plan] == [*order, "full"]
        assert [target.order for target in explanation.tiers[0].targets] == [order.index(n) + 1 for n in "abc"] + [4]


class TestWhatTheQueueDoes:
    """The real queue is asked, and gives the place that was explained."""

    @pytest.mark.parametrize("score", ["predicted_ttft", "least_loaded", "round_robin", "hash"])
    def test_it_agrees_with_the_queue_whatever_the_state(self, score: str) -> None:
        rng = random.Random(score)
        outcomes = set()
        for _ in range(300):
            names = map(str, itertools.count())
            tiers = tuple("abc"[: rng.randint(1, 3)])
            places = {name: [some_place(rng, next(names)) for _ in range(rng.randint(1, 3))] for name in tiers}
            rules = policy(tiers=tiers, score=score, spill=rng.choice([0.5, 3.0, 20.0]))
            out = {p.name: "it is down" for tier in places.values() for p in tier if not p.ready}
            facts = Facts(model="chat", prompt_tokens=rng.randint(0, 5000), key=rng.choice("xyz"))
            kept = [[place for place in places[name] if place.ready] for name in tiers]
            queue = Admission[Place](100, lambda: 0.0)
            for _ in range(rng.choice([0, 0, 1, 5])):
                others = rng.sample(kept, rng.randint(1, len(kept)))
                queue.submit(ask_for(others, Facts(key=rng.choice("xyz")), spill=rng.choice([1.0, 9.0])))
            explanation = seen(rules, facts, places, left_out=out, queue=queue)
            ask = ask_for(
                [tier for tier in kept if tier] or [[Place("none", ready=False)]], facts, score, rules.policy.spill
            )
            granted = queue.submit(ask)
            outcomes.add((explanation.outcome, ask.open))
            assert (explanation.at.engine if explanation.at else None) == (granted.name if granted else None)
            assert sum(tier.open for tier in explanation.tiers) == (ask.open if any(kept) else 0)
        assert {("served", 1), ("served", 2), ("waits", 1), ("waits", 2)} <= outcomes

    def test_what_takes_no_place_is_served_by_a_full_engine_of_any_tier(self) -> None:
        places = {"small": [Place("small", in_flight=1)], "large": [Place("large", capacity=4, in_flight=1)]}
        rules = policy(score="least_loaded", spill=60)
        assert seen(rules, places=places).outcome == "waits"
        explanation = seen(rules, places=places, placeless=True)
        assert (explanation.outcome, explanation.at.engine if explanation.at else None) == ("served", "large")

    def test_a_request_that_nothing_can_take_is_refused(self) -> None:
        out = {"small": "the engine is down", "large": "the engine is down"}
        explanation = seen(policy(), left_out=out, refused="No engine can serve it.")
        assert (explanation.outcome, explanation.message, explanation.plan) == (
            "refused",
            "No engine can serve it.",
            [],
        )


def some_place(rng: random.Random, name: str) -> Place:
    return Place(
        name,
        ready=rng.random() < 0.8,
        capacity=rng.choice([1, 2, 4, None]),
        in_flight=rng.randint(0, 6),
        last_used=rng.randint(0, 1000),
        warm=rng.random() < 0.8,
        rates=Rates(prefill=rng.choice([None, 100.0, 5000.0]), service=rng.choice([None, 1.0, 9.0])),
    )


class TestAsText:
    def test_it_says_all_that_matters(self) -> None:
        rules = policy(*TestRules.RULES)
        places = {
            "small": [Place("box", in_flight=1, context=4096, rates=Rates(prefill=450.0, service=3.0))],
            "large": [Place("gpu", "qwen", capacity=None, warm=False), Place("old", ready=False)],
        }
        text = as_text(
            seen(
                rules,
                Facts(model="chat", prompt_tokens=900, hour=7),
                places,
                tiers={"small": TierFacts(queue=2, predicted_wait_s=3.0), "large": TierFacts()},
                left_out={"old": "the engine is down"},
            )
        )
        assert text == EXPLAINED

    @pytest.mark.parametrize(
        ("explanation", "line"),
        [
            (
                seen(policy(*TestRules.RULES), Facts(model="chat", images=1)),
                "`chat` is rejected by the rule `pictures`: No pictures here.",
            ),
            (
                seen(
                    policy(tiers=("a",)),
                    places={"a": [Place("x", in_flight=3)]},
                    tiers={"a": TierFacts(predicted_wait_s=6.0)},
                ),
                "`chat` waits for a place, about 6 s",
            ),
            (
                seen(policy(tiers=("a",)), left_out={"a": "it is down"}, refused="No engine can."),
                "`chat` is refused: No engine can.",
            ),
            (
                seen(policy(tiers=("a",), score="weighted")),
                "`chat` goes to tier `a`, most likely to engine `a`, model `m` (engines draw lots)",
            ),
        ],
        ids=["rejected", "waits", "refused", "by lot"],
    )
    def test_the_first_line_is_the_answer(self, explanation: Explanation, line: str) -> None:
        assert as_text(explanation).splitlines()[0] == line

    def test_what_was_assumed_is_said(self) -> None:
        assert "Nobody was asked" not in as_text(seen(policy()))
        assert "Nobody was asked" in as_text(seen(policy(), live=False))


EXPLAINED = """\
`chat` goes to tier `large`, engine `gpu`, model `qwen` by the rule `long`

Request
  prompt_tokens = 900
  key_class = "normal"
  hour = 7

Rules
  no  pictures: images > 0   [images = 0]
  no  rule 2: header("x-team") == "batch"   [header("x-team") = ""]
  yes long: prompt_tokens > 500 && small.queue < 3   [prompt_tokens = 900, small.queue = 2]   \
-> route to large, spill 9 s
  -   claude: dialect == "anthropic"   [dialect = "openai"]   not looked at

Verdict
  tiers large (by the rule `long`)
  class normal
  score predicted_ttft

Tier small: not used, 2 waiting, wait 3 s
  - box, model m: wait 3 s + load 0 s + prefill 2 s = 5 s; 1 of 1 places taken, fits its context of 4096

Tier large: open, 0 waiting, wait 0 s
  1 gpu, model qwen: wait 0 s + load 10 s (cold) + prefill 0 s = 10 s; 0 places taken, no limit known, context not known
  - old, model m: left out, the engine is down

Plan
  1. tier `large`, engine `gpu`, model `qwen`"""


class TestAsData:
    def test_an_endless_wait_is_none_and_survives_json(self) -> None:
        rule = Rule(name="slow", when="small.predicted_wait_s > 5.0", route=["large"])
        down = {"small": [Place("small", ready=False)], "large": [Place("large")]}
        explanation = seen(
            policy(rule),
            places=down,
            tiers={"small": TierFacts(healthy=False, predicted_wait_s=ENDLESS)},
            left_out={"small": "the engine is down"},
        )
        assert explanation.rules[0].values == {"small.predicted_wait_s": None}
        assert "small.predicted_wait_s = endless" in as_text(explanation)
        assert msgspec.json.decode(msgspec.json.encode(explanation), type=Explanation) == explanation

    def test_facts_that_are_given_take_the_place_of_others(self) -> None:
        facts = Facts(model="chat", prompt_tokens=5, images=2)
        assert Given(prompt_tokens=0, key_class="low").over(facts) == Facts(
            model="chat", prompt_tokens=0, images=2, key_class="low"
        )
        assert Given().over(facts) == facts
        assert set(Given.__struct_fields__) == set(Facts.__struct_fields__)
