"""What a simulation says: figures for each kind of request, tier, engine and key."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from gateway.simulate.engine import Pace
from gateway.simulate.run import Outcome, Result, Work

K = TypeVar("K")


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds, rates are per second, shares are from 0 to 1. `None` is where there was nothing to count."""


class Times(_Figures, frozen=True):
    """What half, 95 % and 99 % of the requests did not exceed."""

    p50: float
    p95: float
    p99: float


class Group(_Figures, frozen=True):
    """Some of the requests.

    Attributes:
        answered: `cut` of them were cut at their deadline.
        too_many: refused since the queue was full (429).
        unavailable: refused since they waited too long, or no engine could take them (503).
        failed: all others; `codes` counts every error by its code.
        waited: until they had a place, or were refused one.
        ttft, total: of those that were answered.
        tokens_per_second: of their answers, over the whole simulation.
    """

    requests: int
    answered: int
    cut: int
    too_many: int
    unavailable: int
    failed: int
    codes: dict[str, int]
    waited: Times | None
    ttft: Times | None
    total: Times | None
    tokens_per_second: float


class Tier(_Figures, frozen=True):
    """A tier of a model, and the requests that had a place there: `share` is their part of all the model's."""

    model: str
    tier: str
    share: float
    requests: Group


class Engine(_Figures, frozen=True):
    """What an engine did, and what it was taken to be like.

    Attributes:
        slots: requests that it runs at once; `places` of them are used, where the config's `concurrency` lets it have
            fewer.
        used: the share of those places that was taken, over the whole time.
        prefill_per_second, tokens_per_second: tokens of prompts that it computed, and of answers.
        cached: the share of prompt tokens that it had in its cache.
        loads: how often it loaded a model.
    """

    kind: str
    slots: int
    places: int
    paces: dict[str, Pace]
    used: float
    prefill_per_second: float
    tokens_per_second: float
    cached: float
    loads: int
    requests: Group


class Key(_Figures, frozen=True):
    """A key: `share` is what it got of what it had a claim to while others waited too, see `Fairness`."""

    share: float | None
    requests: Group


class Report(_Figures, frozen=True):
    """A whole simulation.

    Attributes:
        seconds: until the last request had its answer.
        spilled: the share of requests with a place that was not in the first tier which their policy gives them.
        fairness: Jain's index of the keys' shares; 1 is perfect. `contested` places were counted: those for which
            several keys waited. Where these are few, it says nothing.
    """

    seconds: float
    spilled: float
    fairness: float | None
    contested: int
    total: Group
    requests: dict[str, Group]
    tiers: list[Tier]
    engines: dict[str, Engine]
    keys: dict[str, Key]


def summarize(result: Result) -> Report:
    """The figures of a simulation."""
    seconds, outcomes = result.seconds, result.outcomes
    placed = [one for one in outcomes if one.engine is not None]
    shares = result.fairness.share()
    return Report(
        seconds=seconds,
        spilled=_share(sum(not one.preferred for one in placed), len(placed)),
        fairness=result.fairness.jain(),
        contested=result.fairness.places,
        total=_group(outcomes, seconds),
        requests={kind: _group(some, seconds) for kind, some in _by(outcomes, lambda one: one.kind).items()},
        tiers=_tiers(placed, seconds),
        engines={
            name: _engine(work, [one for one in placed if one.engine == name], seconds)
            for name, work in result.engines.items()
        },
        keys={
            key: Key(share=shares.get(key), requests=_group(some, seconds))
            for key, some in _by(outcomes, lambda one: one.key).items()
            if key
        },
    )


def _group(outcomes: Sequence[Outcome], seconds: float) -> Group:
    answered = [one for one in outcomes if one.answered]
    statuses = Counter(one.status for one in outcomes)
    return Group(
        requests=len(outcomes),
        answered=len(answered),
        cut=sum(one.code == "cut" for one in answered),
        too_many=statuses[429],
        unavailable=statuses[503],
        failed=len(outcomes) - len(answered) - statuses[429] - statuses[503],
        codes=dict(sorted(Counter(one.code for one in outcomes if not one.answered).items())),
        waited=_times(one.waited for one in outcomes),
        ttft=_times(one.ttft for one in answered if one.ttft is not None),
        total=_times(one.total for one in answered),
        tokens_per_second=sum(one.output for one in answered) / seconds,
    )


def _tiers(placed: Sequence[Outcome], seconds: float) -> list[Tier]:
    models = Counter(one.model for one in placed)
    return [
        Tier(model=model, tier=tier, share=len(some) / models[model], requests=_group(some, seconds))
        for (model, tier), some in _by(placed, lambda one: (one.model, one.tier or "")).items()
    ]


def _engine(work: Work, served: Sequence[Outcome], seconds: float) -> Engine:
    return Engine(
        kind=work.kind,
        slots=work.build.slots,
        places=work.places,
        paces=work.build.paces,
        used=work.used,
        prefill_per_second=work.computed / seconds,
        tokens_per_second=work.output / seconds,
        cached=_share(work.cached, work.cached + work.computed),
        loads=work.loads,
        requests=_group(served, seconds),
    )


def _by(outcomes: Iterable[Outcome], group: Callable[[Outcome], K]) -> dict[K, list[Outcome]]:
    groups: dict[K, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(group(outcome), []).append(outcome)
    return dict(sorted(groups.items(), key=lambda item: str(item[0])))


def _times(seconds: Iterable[float]) -> Times | None:
    ordered = sorted(seconds)
    if not ordered:
        return None
    p50, p95, p99 = (ordered[max(0, math.ceil(part * len(ordered)) - 1)] for part in (0.50, 0.95, 0.99))
    return Times(p50=p50, p95=p95, p99=p99)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
