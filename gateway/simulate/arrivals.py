"""What clients ask, and when: drawn from a workload before anything runs, so that all policies get the same."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from gateway.simulate.schema import Burst, Requests, Tokens, Workload

_P95 = 1.6448536269514722
"""Standard deviations from the median of a normal distribution to what 5 % are above."""


class Arrival(NamedTuple):
    """A request on its way.

    Attributes:
        at: seconds from the beginning.
        kind: the name of its kind.
        prompt: tokens, those of its prefix among them.
        output: tokens that the model would answer without a limit.
        prefix: which of the prefixes of its kind it has.
        prefix_tokens: how long that is.
    """

    at: float
    kind: str
    asked: Requests
    key: str
    prompt: int
    output: int
    prefix: str = ""
    prefix_tokens: int = 0


def draw(workload: Workload) -> list[Arrival]:
    """All requests of a workload, in the order in which they come.

    Moments are drawn apart from what is asked: at another rate the same requests come in the same order.
    """
    coming = _requests(workload, "steady", None, partial(_poisson, workload))
    for number, burst in enumerate(workload.bursts):
        coming += _requests(workload, f"burst {number}", burst.of, partial(_spread, burst))
    return sorted(coming, key=lambda arrival: arrival.at)


def _requests(
    workload: Workload, which: str, kind: str | None, moments: Callable[[random.Random], Iterable[float]]
) -> list[Arrival]:
    """Requests at `moments`, of one kind or of all as often as their shares say."""
    when = random.Random(f"{workload.seed} {which} moments")  # noqa: S311 - a simulation
    what = random.Random(f"{workload.seed} {which}")  # noqa: S311
    kinds = list(workload.requests)
    shares = [workload.requests[name].share for name in kinds]
    coming = []
    for at in moments(when):
        name = kind or what.choices(kinds, shares)[0]
        coming.append(_arrival(at, name, workload.requests[name], what))
    return coming


def _poisson(workload: Workload, rng: random.Random) -> Iterator[float]:
    if workload.rate == 0:
        return
    at = rng.expovariate(workload.rate)
    while at < workload.duration:
        yield at
        at += rng.expovariate(workload.rate)


def _spread(burst: Burst, rng: random.Random) -> Iterator[float]:
    for _ in range(burst.requests):
        yield burst.at + rng.random() * burst.over


def _arrival(at: float, kind: str, asked: Requests, rng: random.Random) -> Arrival:
    key = rng.choice(asked.keys) if asked.keys else ""
    prompt, output = _tokens(asked.prompt, rng), _tokens(asked.output, rng)
    if asked.prefix is None:
        return Arrival(at, kind, asked, key, prompt, output)
    owner = key if asked.prefix.by_key else ""
    prefix = f"{kind}/{owner}/{rng.randrange(asked.prefix.count)}"
    return Arrival(at, kind, asked, key, asked.prefix.tokens + prompt, output, prefix, asked.prefix.tokens)


def _tokens(tokens: Tokens, rng: random.Random) -> int:
    if tokens.median is None:
        drawn = rng.expovariate(1 / (tokens.mean or 1))
    elif tokens.p95 is None:
        drawn = float(tokens.median)
    else:
        drawn = tokens.median * math.exp(rng.gauss(0.0, math.log(tokens.p95 / tokens.median) / _P95))
    return max(1, min(round(drawn), tokens.max or round(drawn)))
