"""Why a request goes where it goes: every rule, every tier and every target, as data and as text."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec

from gateway.config.policy import Class, Dialect, Endpoint, ModelPolicy, Rule
from gateway.policy.conditions import Condition, Moment
from gateway.policy.facts import ENDLESS, Facts
from gateway.policy.rules import Rules, Verdict
from gateway.policy.scene import Noting, Value
from gateway.policy.score import SCORES, Candidate, free, predicted_ttft, predicted_wait

Amount = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
"""A number of things that a request may have."""
UNROUTED = Rules(ModelPolicy(tiers={"all": []}, score="least_loaded", spill=ENDLESS))
"""How a model without a policy is routed."""


class Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Facts of a request that are told, in place of those that it has. See `Facts`."""

    model: str | None = None
    prompt_tokens: Amount | None = None
    max_tokens: Amount | None = None
    images: Amount | None = None
    tools: Amount | None = None
    structured: bool | None = None
    stream: bool | None = None
    dialect: Dialect | None = None
    endpoint: Endpoint | None = None
    key: str | None = None
    key_class: Class | None = None
    app: str | None = None
    hour: Annotated[int, msgspec.Meta(ge=0, le=23)] | None = None

    def over(self, facts: Facts) -> Facts:
        told = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(facts, **told)


class _Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of an explanation. Times are seconds; a wait that is absent has no end, as at an engine that is down."""


class RuleShown(_Shown, frozen=True, kw_only=True):
    """A rule. `reached` is false for those after the one that decided; `values` are of what `when` looks at."""

    name: str
    when: str | None = None
    held: bool
    reached: bool
    values: dict[str, Value | None] = {}
    does: list[str]


class VerdictShown(_Shown, frozen=True, kw_only=True, rename={"priority": "class"}):
    """What the rules say in the end; `rule` is the one that decided, and `matched` are all that held."""

    tiers: list[str]
    rule: str | None = None
    matched: list[str] = []
    reject: str | None = None
    priority: str
    deadline: float | None = None
    spill: float | None = None
    set: dict[str, int | float] = {}
    cap: dict[str, int | float] = {}


class TargetShown(_Shown, frozen=True, kw_only=True):
    """An engine of a tier with a model. `left_out` says why the request cannot go there.

    `ttft` is predicted: the wait for a place, the load of a cold model, the prefill of the prompt. `order` is its rank
    in its tier by the policy's score, from 1.
    """

    engine: str
    model: str
    left_out: str | None = None
    context: int | None = None
    in_flight: int
    capacity: int | None = None
    weight: float = 1.0
    warm: bool = True
    wait: float | None = None
    load: float = 0.0
    prefill: float = 0.0
    ttft: float | None = None
    order: int | None = None


class TierShown(_Shown, frozen=True, kw_only=True):
    """A tier. `used` says whether the verdict names it, and `open` whether the request may use it at this moment."""

    name: str
    used: bool
    open: bool
    healthy: bool = True
    queue: int = 0
    wait: float | None = None
    targets: list[TargetShown]


class Step(_Shown, frozen=True, kw_only=True):
    """A place of the plan."""

    tier: str
    engine: str
    model: str


class Explanation(_Shown, frozen=True, kw_only=True):
    """What becomes of a request, and why.

    Attributes:
        live: whether the engines' state was looked at; else all are taken to be ready and idle.
        outcome: `served` now by `at`, `waits` for a place, `rejected` by a rule, or `refused` since no engine can.
        wait: how long it waits, as is predicted.
        message: why it is rejected or refused.
        plan: the places where it may go, in the order in which they are preferred.
    """

    live: bool
    facts: Facts
    headers: dict[str, str] = {}
    score: str
    rules: list[RuleShown]
    verdict: VerdictShown
    tiers: list[TierShown]
    plan: list[Step]
    outcome: Literal["served", "waits", "rejected", "refused"]
    at: Step | None = None
    wait: float | None = None
    message: str | None = None


class Place(Candidate, Protocol):
    """A candidate that says what it is asked for."""

    @property
    def model(self) -> str: ...


P = TypeVar("P", bound=Place)


class Sight(NamedTuple, Generic[P]):
    """A request and all the places there are for it.

    Attributes:
        places: those of each tier, whatever their state.
        plan: those where it may go, by tier, the preferred one first.
        why_not: why it may not go to a place.
        wait: seconds until one of some places has room for it, with those counted that are served before.
        priority: the class in which it waits.
        placeless: whether it takes no place, so that full engines serve it too.
        refused: why nothing is left of the plan.
    """

    rules: Rules
    moment: Moment
    verdict: Verdict
    headers: Mapping[str, str]
    places: Mapping[str, Sequence[P]]
    plan: Sequence[tuple[str, Sequence[P]]]
    why_not: Callable[[P], str | None]
    wait: Callable[[Sequence[P]], float]
    priority: str
    placeless: bool = False
    refused: str | None = None
    live: bool = True


def explain(sight: Sight[P]) -> Explanation:
    """Looks at everything once more and says what it sees. Nothing is changed by it."""
    rules, verdict, facts = sight.rules, sight.verdict, sight.moment.facts
    plan = [(name, _ordered(places, sight)) for name, places in sight.plan]
    opened, wait = _opened(sight)
    at = _at(plan if sight.placeless else plan[:opened], sight)
    outcome: Literal["served", "waits", "rejected", "refused"] = "served" if at is not None else "waits"
    if verdict.reject is not None:
        outcome = "rejected"
    elif sight.refused is not None:
        outcome = "refused"
    ranks = {id(place): rank for _, places in plan for rank, place in enumerate(places, 1)}
    return Explanation(
        live=sight.live,
        facts=facts,
        headers=dict(sight.headers),
        score=rules.policy.score,
        rules=_rules(rules, sight.moment),
        verdict=_verdict(verdict, sight.priority),
        tiers=[_tier(name, sight, {n for n, _ in plan[:opened]}, ranks) for name in sight.places],
        plan=[_step(name, place) for name, places in plan for place in places],
        outcome=outcome,
        at=at,
        wait=_finite(wait) if outcome == "waits" else None,
        message=verdict.reject or sight.refused,
    )


def _has_room(place: Place, sight: Sight[P]) -> bool:
    return place.ready if sight.placeless else free(place)


def _ordered(places: Sequence[P], sight: Sight[P]) -> list[P]:
    """Places as they would be chosen: those with room by the score, then those that have it soonest."""
    room = [place for place in places if _has_room(place, sight)]
    full = sorted((place for place in places if not _has_room(place, sight)), key=lambda place: sight.wait([place]))
    return [*_by_score(room, sight.rules.policy.score, sight.moment.facts), *full]


def _by_score(places: list[P], score: str, facts: Facts) -> list[P]:
    if score == "weighted":  # lots have no order: the heaviest is the likeliest
        return sorted(places, key=lambda place: -place.weight)
    left, ordered = list(places), []
    while left:
        best = cast("P", SCORES[score](left, facts, random.Random(0)))  # noqa: S311 - no other score draws lots
        left.remove(best)
        ordered.append(best)
    return ordered


def _opened(sight: Sight[P]) -> tuple[int, float]:
    """How many tiers of the plan are open to the request, and how long it waits for a place at one of them."""
    opened, wait = 0, ENDLESS
    while opened < len(sight.plan) and (wait > sight.verdict.spill or wait == ENDLESS):
        opened += 1
        wait = sight.wait([place for _, places in sight.plan[:opened] for place in places])
    return opened, wait


def _at(plan: Sequence[tuple[str, Sequence[P]]], sight: Sight[P]) -> Step | None:
    """The place that it gets at once, of those of a plan. What takes no place goes to any tier alike."""
    room = [(name, place) for name, places in plan for place in places if _has_room(place, sight)]
    if sight.placeless and room:
        best = _by_score([place for _, place in room], sight.rules.policy.score, sight.moment.facts)[0]
        room = [(name, place) for name, place in room if place is best]
    return _step(*room[0]) if room else None


def _step(tier: str, place: Place) -> Step:
    return Step(tier=tier, engine=place.name, model=place.model)


def _rules(rules: Rules, moment: Moment) -> list[RuleShown]:
    shown = []
    reached = True
    for at, rule in enumerate(rules.policy.rules):
        noting = Noting(moment)
        held = rule.when is None or Condition(rule.when, rules.policy.tiers).holds(noting)
        shown.append(
            RuleShown(
                name=rule.name or f"rule {at + 1}",
                when=rule.when,
                held=held,
                reached=reached,
                values={name: None if value == ENDLESS else value for name, value in noting.seen.items()},
                does=list(_does(rule)),
            )
        )
        if held and (rule.route is not None or rule.reject is not None):
            reached = False
    return shown


def _does(rule: Rule) -> Iterable[str]:
    if rule.reject is not None:
        yield "reject"
    if rule.route is not None:
        yield f"route to {', '.join(rule.route)}"
    if rule.priority is not None:
        yield f"class {rule.priority}"
    for word, fields in (("set", rule.set), ("cap", rule.cap)):
        for name, value in (msgspec.structs.asdict(fields) if fields is not None else {}).items():
            if value is not None:
                yield f"{word} {name} {value:g}"
    if rule.deadline is not None:
        yield f"deadline {rule.deadline:g} s"
    if rule.spill is not None:
        yield f"spill {rule.spill:g} s"


def _verdict(verdict: Verdict, priority: str) -> VerdictShown:
    return VerdictShown(
        tiers=list(verdict.tiers),
        rule=verdict.rule,
        matched=list(verdict.matched),
        reject=verdict.reject,
        priority=priority,
        deadline=verdict.deadline,
        spill=_finite(verdict.spill),
        set=dict(verdict.set),
        cap=dict(verdict.cap),
    )


def _tier(name: str, sight: Sight[P], opened: set[str], ranks: Mapping[int, int]) -> TierShown:
    facts = sight.moment.tier(name)
    return TierShown(
        name=name,
        used=name in sight.verdict.tiers,
        open=name in opened,
        healthy=facts.healthy,
        queue=facts.queue,
        wait=_finite(sight.wait(sight.places[name])),
        targets=[_target(place, sight, ranks.get(id(place))) for place in sight.places[name]],
    )


def _target(place: P, sight: Sight[P], order: int | None) -> TargetShown:
    load = prefill = 0.0
    if place.ready:  # what the score adds up, taken apart
        tokens = sight.moment.facts.prompt_tokens
        load = predicted_ttft(place, 0) - predicted_wait(place)
        prefill = predicted_ttft(place, tokens) - predicted_ttft(place, 0)
    wait = sight.wait([place])
    return TargetShown(
        engine=place.name,
        model=place.model,
        left_out=sight.why_not(place),
        context=place.context,
        in_flight=place.in_flight,
        capacity=place.capacity,
        weight=place.weight,
        warm=place.warm,
        wait=_finite(wait),
        load=round(load, 6),
        prefill=round(prefill, 6),
        ttft=_finite(wait + load + prefill),
        order=order,
    )


def _finite(seconds: float) -> float | None:
    return None if seconds == ENDLESS else round(seconds, 6)
