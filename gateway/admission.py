"""The queue in front of engines: who gets the next place, who waits, and where a request goes when it need not wait.

The rules of it are plain code on a clock that is given, so that a simulation can run it in its own time: `Admission`
is told of each arrival, each place that becomes free, and the passing of time. `lease` is what requests wait in.

A request has tiers, the preferred one first. It may use the first, and each further one once the wait that is
predicted at all before it is longer than its `spill`. Of the requests that may use a place that becomes free, the one
of the highest class goes first; inside a class, that of the key which had the least of late; of a key, the oldest.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from gateway.errors import GatewayError
from gateway.policy.facts import ENDLESS
from gateway.policy.score import Candidate, free, predicted_wait

CLASSES = {"high": 0, "normal": 1, "low": 2}
"""Classes by the order in which they are served."""
TICK = 0.25
"""Seconds after which those that wait look again where they may go."""
_LEAST_RETRY, _LONGEST_RETRY = 1.0, 600.0


class Place(Candidate, Protocol):
    """A target as admission sees it. It counts what it has."""

    def take(self) -> None: ...
    def give_back(self) -> None: ...


P = TypeVar("P", bound=Place)
Score = Callable[[Sequence[P], "Ask[P]", random.Random], P]


class QueueFull(GatewayError):
    """As many requests wait as may."""

    status = 429
    code = "queue_full"
    kind = "rate_limit_error"


class QueueTimeout(GatewayError):
    """The request waited as long as it may, or would not be served before its deadline."""

    status = 503
    code = "queue_timeout"


class Ask(Generic[P]):
    """A request as admission sees it.

    Args:
        tiers: the targets that it may use, those of the preferred tier first.
        score: chooses among the targets of a tier.
        key: whose request it is.
        priority: its class, one of `CLASSES`.
        spill: seconds; see above.
        prompt_tokens: an estimate.
        cost: what it counts for in its key's share, in tokens.
    """

    __slots__ = (
        "arrived",
        "cost",
        "granted",
        "key",
        "number",
        "open",
        "priority",
        "prompt_tokens",
        "score",
        "spill",
        "tiers",
        "wake",
    )

    def __init__(
        self,
        tiers: Sequence[Sequence[P]],
        score: Score[P],
        *,
        key: str = "",
        priority: str = "normal",
        spill: float = ENDLESS,
        prompt_tokens: int = 0,
        cost: float = 1.0,
    ) -> None:
        self.tiers = tiers
        self.score = score
        self.key = key
        self.priority = CLASSES[priority]
        self.spill = spill
        self.prompt_tokens = prompt_tokens
        self.cost = max(cost, 1.0)
        self.arrived = 0.0
        self.number = 0
        self.open = 1
        """How many of its tiers it may use now."""
        self.granted: P | None = None
        self.wake: Callable[[], None] | None = None
        """Called when it is granted a place."""


class Admission(Generic[P]):
    """Hands out the places of all engines.

    Args:
        limit: how many requests may wait.
        clock: the time, in seconds.
        seed: for scores that draw lots.
    """

    def __init__(self, limit: int, clock: Callable[[], float], seed: int | None = None) -> None:
        self.limit = limit
        self.waiting: list[Ask[P]] = []
        """In the order in which they came."""
        self._clock = clock
        self._rng = random.Random(seed)  # noqa: S311 - it draws lots between engines
        self._numbers = itertools.count(1)
        self._had: dict[tuple[int, str], float] = {}
        """What each key of a class had, as a virtual time: the largest of those that were served is the present."""
        self._present: dict[int, float] = {}

    # Arrivals

    def submit(self, ask: Ask[P]) -> P | None:
        """A place for a request that has just come, if there is one; else it waits, and `wake` is called later.

        Raises:
            QueueFull: it would have to wait, and may not.
        """
        ask.arrived, ask.number = self._clock(), next(self._numbers)
        place = self._choose(ask)
        if place is None:
            self._widen(ask, self._ahead_of(ask))
            place = self._choose(ask)
        if place is not None:
            self._grant(ask, place)
            return place
        if len(self.waiting) >= self.limit:
            raise QueueFull(
                f"{len(self.waiting)} requests wait already, the most that may (`queue.limit`).",
                retry_after=self.retry_after(ask),
            )
        self._join(ask)
        return None

    def leave(self, ask: Ask[P]) -> None:
        """The request is done with its place, or waits for none any longer."""
        if ask.granted is not None:
            place, ask.granted = ask.granted, None
            place.give_back()
            if self.waiting:
                self.hand_out()
        elif ask in self.waiting:
            self.waiting.remove(ask)

    def any_ready(self, ask: Ask[P]) -> P:
        """An engine for a request that takes no place."""
        places = [place for tier in ask.tiers for place in tier if place.ready]
        return ask.score(places or list(ask.tiers[0]), ask, self._rng)

    def tick(self) -> None:
        """Time has passed: some may use a further tier now, or an engine has become ready."""
        ahead: dict[str, float] = {}
        for ask in sorted(self.waiting, key=self._turn):
            self._widen(ask, ahead)
            _count(ask, ahead)
        self.hand_out()

    def hand_out(self) -> None:
        """Gives free places to those that wait, until no place is left that one of them may use."""
        while self.waiting:
            for ask in sorted(self.waiting, key=self._turn):
                place = self._choose(ask)
                if place is not None:
                    break
            else:
                return
            self.waiting.remove(ask)
            self._grant(ask, place)
            if ask.wake is not None:
                ask.wake()

    # What is told

    def position(self, ask: Ask[P]) -> int:
        """1 for the next of those that wait for the same places, 0 for one that does not wait."""
        if ask not in self.waiting:
            return 0
        places = _open_places(ask)
        ahead = (other for other in self.waiting if self._turn(other) < self._turn(ask))
        return 1 + sum(not places.isdisjoint(_open_places(other)) for other in ahead)

    def expected_wait(self, ask: Ask[P]) -> float:
        """Seconds until it has a place, as fast as places became free of late; endless if no engine is ready."""
        return self._wait(ask, self._ahead_of(ask))

    def queued_for(self, tier: Sequence[P]) -> int:
        """How many wait that may use one of these targets now."""
        names = {place.name for place in tier}
        return sum(not names.isdisjoint(_open_places(ask)) for ask in self.waiting)

    def retry_after(self, ask: Ask[P]) -> float:
        """Seconds after which those that wait for the same places now have been served."""
        ahead: dict[str, float] = {}
        for other in self.waiting:
            _count(other, ahead)
        waits = [predicted_wait(place, ahead.get(place.name, 0.0)) for tier in ask.tiers for place in tier]
        wait = min(waits, default=ENDLESS)
        return min(_LONGEST_RETRY, max(_LEAST_RETRY, wait)) if math.isfinite(wait) else _LEAST_RETRY

    # Rules

    def _widen(self, ask: Ask[P], ahead: Mapping[str, float]) -> None:
        """Opens further tiers to a request for as long as the wait at those that are open is too long for it."""
        while ask.open < len(ask.tiers) and self._wait(ask, ahead) > ask.spill:
            ask.open += 1

    def _wait(self, ask: Ask[P], ahead: Mapping[str, float]) -> float:
        waits = [predicted_wait(place, ahead.get(place.name, 0.0)) for tier in ask.tiers[: ask.open] for place in tier]
        return min(waits, default=ENDLESS)

    def _ahead_of(self, ask: Ask[P]) -> dict[str, float]:
        """How many are served before `ask`, by the place that they wait for."""
        turn = self._turn(ask)
        ahead: dict[str, float] = {}
        for other in self.waiting:
            if self._turn(other) < turn:
                _count(other, ahead)
        return ahead

    def _choose(self, ask: Ask[P]) -> P | None:
        for tier in ask.tiers[: ask.open]:
            places = [place for place in tier if free(place)]
            if places:
                return places[0] if len(places) == 1 else ask.score(places, ask, self._rng)
        return None

    def _turn(self, ask: Ask[P]) -> tuple[int, float, int]:
        return ask.priority, self._had.get((ask.priority, ask.key), self._present.get(ask.priority, 0.0)), ask.number

    def _join(self, ask: Ask[P]) -> None:
        """A key that did not wait has no claim on the time before: it starts at the present."""
        who = (ask.priority, ask.key)
        if not any((other.priority, other.key) == who for other in self.waiting):
            self._had[who] = max(self._had.get(who, 0.0), self._present.get(ask.priority, 0.0))
        self.waiting.append(ask)

    def _grant(self, ask: Ask[P], place: P) -> None:
        who = (ask.priority, ask.key)
        before = self._had.get(who, self._present.get(ask.priority, 0.0))
        self._present[ask.priority] = max(before, self._present.get(ask.priority, 0.0))
        self._had[who] = before + ask.cost
        place.take()
        ask.granted = place
        if not self.waiting:  # nobody waits, so that nobody has a claim on anybody
            self._had.clear()
            self._present.clear()


def _open_places(ask: Ask[P]) -> set[str]:
    return {place.name for tier in ask.tiers[: ask.open] for place in tier}


def _count(ask: Ask[P], ahead: dict[str, float]) -> None:
    """Adds one that waits to the places that it waits for: it takes one of them, so that each has its part of it."""
    places = _open_places(ask)
    for name in places:
        ahead[name] = ahead.get(name, 0.0) + 1 / len(places)


class Lease(Generic[P]):
    """A place for one request, asked for on entering, and given back at the end of the block, whatever happens.

    async with Lease(admission, ask, timeout=60.0) as lease:
        while not await lease.granted(10.0):
            ...  # tell the client that it waits
        lease.place

    Args:
        timeout: the longest wait, in seconds.
        placeless: the request takes no place, so that it goes to any engine that is ready, full or not.
    """

    def __init__(self, admission: Admission[P], ask: Ask[P], timeout: float, *, placeless: bool = False) -> None:
        self.ask = ask
        self.waited = False
        """Whether it had to wait for its place."""
        self._admission = admission
        self._timeout = timeout
        self._placeless = placeless
        self._granted: asyncio.Event | None = None
        self._give_up_at = 0.0

    @property
    def place(self) -> P:
        """That which was granted."""
        assert self.ask.granted is not None  # noqa: S101 - asked for only after `granted`
        return self.ask.granted

    async def __aenter__(self) -> Self:
        """
        Raises:
            QueueFull: it would have to wait, and may not.
        """
        if self._placeless:
            self.ask.granted = self._admission.any_ready(self.ask)
        elif self._admission.submit(self.ask) is None:
            self.waited = True
            self._granted = asyncio.Event()
            self.ask.wake = self._granted.set
            self._give_up_at = asyncio.get_running_loop().time() + self._timeout
        return self

    async def granted(self, within: float) -> bool:
        """Waits for the place, at most `within` seconds, and says whether it is there.

        Raises:
            QueueTimeout: it waited for as long as it may.
        """
        if self._granted is None or self._granted.is_set():
            return True
        left = self._give_up_at - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(within, left)):
                await self._granted.wait()
        except TimeoutError:
            if left > within:
                return False
            raise QueueTimeout(
                f"No engine had a place within {self._timeout:g} s.", retry_after=self._admission.retry_after(self.ask)
            ) from None
        return True

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._placeless:
            self._admission.leave(self.ask)
