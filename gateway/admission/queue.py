"""The queue in front of all engines."""

import itertools
import math
import random
from bisect import insort
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Generic
from weakref import WeakValueDictionary

from gateway.admission.ask import Ask, P, QueueFull
from gateway.admission.forecast import Forecast
from gateway.admission.shares import Group
from gateway.errors import GatewayError, NoEngine
from gateway.policy.facts import ENDLESS
from gateway.policy.score import free

TICK = 0.25
"""Seconds after which those that wait look again where they may go."""
PATIENCE = 5.0
"""Seconds that none of a request's engines may be ready while it waits: a restart takes less."""
_MOST_PREEMPTIONS = 1
"""Of a request: it is sure to keep its second place, so that work is thrown away once at most."""
_LEAST_RETRY, _LONGEST_RETRY = 1.0, 600.0


def _none_ready(_ask: Ask[P]) -> GatewayError:
    return NoEngine("No engine that can serve the request is ready.", retry_after=2)


class Admission(Generic[P]):
    """Hands out the places of all engines.

    Args:
        limit: how many requests may wait for the same engines.
        clock: the time, in seconds.
        seed: for scores that draw lots.

    Attributes:
        waiting: requests that wait, in the order in which they came.
        none_ready: makes the error for a request none of whose engines is ready.
    """

    def __init__(self, limit: int, clock: Callable[[], float], seed: int | None = None) -> None:
        self.limit = limit
        self.waiting: list[Ask[P]] = []
        self.none_ready: Callable[[Ask[P]], GatewayError] = _none_ready
        self._running: set[Ask[P]] = set()
        self._groups: WeakValueDictionary[frozenset[str], Group] = WeakValueDictionary()
        self._clock = clock
        self._rng = random.Random(seed)  # noqa: S311 - it draws lots between engines
        self._arrivals = itertools.count(1)
        self._admissions = itertools.count(1)

    # Arrivals

    def submit(self, ask: Ask[P]) -> P | None:
        """A place for a request that has just come, if there is one; else it waits, and `wake` is called later.

        Raises:
            QueueFull: it would have to wait, and may not.
        """
        ask.arrived, ask.number = self._clock(), next(self._arrivals)
        if not self.waiting and (place := self._choose(ask)) is not None:
            self._grant(ask, place)
            return place
        self._join(ask)
        self._hand_out(self._group(ask).names)
        if ask.granted is None:
            self._preempt()
        if ask.granted is not None:
            return ask.granted
        others = self.queued_for(list(ask.places())) - 1
        if others >= self.limit:
            error = QueueFull(
                f"{others} requests wait already, the most that may (`queue.limit`).", retry_after=self.retry_after(ask)
            )
            self._remove(ask)
            raise error
        ask.waited = True
        return None

    def leave(self, ask: Ask[P]) -> None:
        """The request is done with its place, or waits for none any longer."""
        ask.preempt = None
        if ask.granted is not None:
            place, ask.granted, ask.charged = ask.granted, None, []
            self._running.discard(ask)
            place.give_back()
            self._hand_out({place.name})
        elif ask in self.waiting:
            self._remove(ask)

    def refuse(self, ask: Ask[P], error: GatewayError) -> None:
        """Ends the wait of a request that waits."""
        if ask in self.waiting:
            self._remove(ask)
            ask.refused = error
            _wake(ask)

    def any_ready(self, ask: Ask[P]) -> P:
        """An engine for a request that takes no place."""
        places = [place for tier in ask.tiers for place in tier if place.ready]
        return ask.score(places or list(ask.tiers[0]), ask, self._rng)

    def tick(self) -> None:
        """Time has passed, or an engine or what is asked for is not as it was: who waits looks again where it may go.

        To be called at least every `TICK` seconds while somebody waits.
        """
        if not self.waiting:
            return
        self._refuse_hopeless()
        forecast = Forecast()
        for ask in self._in_order():
            self._widen(ask, forecast)
            forecast.add(self._group(ask), ask.places())
        self._hand_out()
        self._preempt()

    # What is told

    def waited(self, ask: Ask[P]) -> float:
        """Seconds since a request that waits began to; anew after it has lost a place."""
        return self._clock() - ask.since

    def position(self, ask: Ask[P]) -> int:
        """1 for the next of those that wait for the same engines, 0 for one that does not wait."""
        if ask not in self.waiting:
            return 0
        names = self._group(ask).names
        return 1 + sum(not names.isdisjoint(self._group(other).names) for other in self._before(ask))

    def expected_wait(self, ask: Ask[P]) -> float:
        """Seconds until it has a place, or would have one if it came now; endless if no engine is ready."""
        if ask.granted is not None:
            return 0.0
        return self._forecast(self._before(ask)).wait(self._group(ask), ask.places())

    def queued_for(self, tier: Sequence[P]) -> int:
        """How many wait that may use one of these targets now."""
        names = {place.name for place in tier}
        groups = Counter(self._group(ask) for ask in self.waiting)
        return sum(count for group, count in groups.items() if not names.isdisjoint(group.names))

    def retry_after(self, ask: Ask[P]) -> float:
        """Seconds after which those that wait for the same engines now have been served."""
        others = (other for other in self.waiting if other is not ask)
        wait = self._forecast(others).wait(self._group(ask), ask.places())
        return min(_LONGEST_RETRY, max(_LEAST_RETRY, wait)) if math.isfinite(wait) else _LEAST_RETRY

    # Who waits for what

    def _join(self, ask: Ask[P]) -> None:
        """It waits from now on, at the place that its arrival gives it."""
        ask.open, ask.groups, ask.since, ask.unready_since = 1, [], self._clock(), None
        insort(self.waiting, ask, key=attrgetter("number"))
        self._group(ask).enter(ask.priority, ask.key)
        if len(ask.tiers) > 1:
            self._widen(ask, self._forecast(self._before(ask)))

    def _remove(self, ask: Ask[P]) -> None:
        self.waiting.remove(ask)
        ask.groups = []

    def _group(self, ask: Ask[P], tiers: int | None = None) -> Group:
        """The one that it waits in now, or would if it could use so many of its tiers."""
        count = ask.open if tiers is None else tiers
        while len(ask.groups) < count:
            names = frozenset(place.name for place in ask.places(len(ask.groups) + 1))
            group = self._groups.get(names)
            if group is None:
                self._groups[names] = group = Group(names)
            ask.groups.append(group)
        return ask.groups[count - 1]

    def _widen(self, ask: Ask[P], forecast: Forecast) -> None:
        """Opens its tiers one after the other, for as long as the wait at those that are open is too long for it."""
        tiers = 1
        while tiers < len(ask.tiers):
            wait = forecast.wait(self._group(ask, tiers), ask.places(tiers))
            if wait <= ask.spill and wait < ENDLESS:
                break
            tiers += 1
        if tiers != ask.open:
            lag = self._group(ask).lag(ask.priority, ask.key)
            ask.open = tiers
            self._group(ask).enter(ask.priority, ask.key, lag)

    def _in_order(self, newcomer: Ask[P] | None = None) -> list[Ask[P]]:
        """Those that wait, and one that might, as they will be served if nobody comes and nobody leaves."""
        waiting = self.waiting if newcomer is None else [*self.waiting, newcomer]
        near = _neighbours({self._group(ask) for ask in waiting})
        owed: dict[tuple[Group, int, str], float] = defaultdict(float)
        turns = []
        for at, ask in enumerate(waiting):
            group, priority, key = self._group(ask), ask.priority, ask.key
            turns.append((priority, group.lag(priority, key) + owed[group, priority, key], at, ask))
            for other in near[group]:
                owed[other, priority, key] += ask.cost
        return [ask for *_, ask in sorted(turns)]

    def _before(self, ask: Ask[P]) -> Iterable[Ask[P]]:
        order = self._in_order(None if ask in self.waiting else ask)
        return itertools.takewhile(lambda other: other is not ask, order)

    def _forecast(self, before: Iterable[Ask[P]]) -> Forecast:
        forecast = Forecast()
        for ask in before:
            forecast.add(self._group(ask), ask.places())
        return forecast

    def _refuse_hopeless(self) -> None:
        now = self._clock()
        ready: dict[Group, bool] = {}
        for ask in list(self.waiting):
            group = self._group(ask, len(ask.tiers))
            if group not in ready:
                ready[group] = any(place.ready for place in ask.places(len(ask.tiers)))
            if ready[group]:
                ask.unready_since = None
            elif ask.unready_since is None:
                ask.unready_since = now
            elif now - ask.unready_since >= PATIENCE:
                self.refuse(ask, self.none_ready(ask))

    # Who gets a place

    def _hand_out(self, names: Collection[str] | None = None) -> None:
        """Gives free places to those that wait for some of these engines, until none may use one that is left."""
        lines = self._lines(names)
        while lines:
            line = min(lines, key=self._turn)
            place = self._choose(line[0])
            if place is None:
                group = self._group(line[0])
                lines = [other for other in lines if self._group(other[0]) is not group]
                continue
            self._admit(line.popleft(), place)
            lines = [other for other in lines if other]

    def _lines(self, names: Collection[str] | None) -> list[deque[Ask[P]]]:
        """Those that wait, by group, class and key: in each line the oldest goes first."""
        lines: dict[tuple[Group, int, str], deque[Ask[P]]] = {}
        for ask in self.waiting:
            lines.setdefault((self._group(ask), ask.priority, ask.key), deque()).append(ask)
        return [line for (group, *_), line in lines.items() if names is None or not group.names.isdisjoint(names)]

    def _turn(self, line: Sequence[Ask[P]]) -> tuple[int, float, int]:
        ask = line[0]
        group = self._group(ask)
        return group.rank(ask.priority), group.lag(ask.priority, ask.key), ask.number

    def _choose(self, ask: Ask[P]) -> P | None:
        for tier in ask.tiers[: ask.open]:
            places = [place for place in tier if free(place)]
            if places:
                return places[0] if len(places) == 1 else ask.score(places, ask, self._rng)
        return None

    def _admit(self, ask: Ask[P], place: P) -> None:
        """Gives a place to one that waits. It counts for its key wherever somebody waits for this engine."""
        ask.charged = [group for group in self._groups.values() if place.name in group.names]
        self._remove(ask)
        for group in ask.charged:
            group.charge(ask.priority, ask.key, ask.cost)
        passed = {(self._group(other), other.priority) for other in self.waiting if other.priority > ask.priority}
        for group, priority in passed:
            if place.name in group.names:
                group.pass_over(priority)
        self._grant(ask, place)
        _wake(ask)

    def _grant(self, ask: Ask[P], place: P) -> None:
        place.take()
        ask.granted, ask.admitted = place, next(self._admissions)
        self._running.add(ask)

    def _preempt(self) -> None:
        """Gives those that wait the places of requests of lower classes that may still lose them."""
        victims = sorted((ask for ask in self._running if _may_lose(ask)), key=lambda ask: (ask.priority, ask.admitted))
        if not victims or all(ask.priority >= victims[-1].priority for ask in self.waiting):
            return
        for ask in self._in_order():
            names = self._group(ask).names
            victim = next((one for one in reversed(victims) if _engine(one) in names), None)
            if victim is not None and victim.priority > ask.priority:
                victims.remove(victim)
                self._replace(victim, ask)
        self._hand_out()  # those that lost their places may find others

    def _replace(self, victim: Ask[P], ask: Ask[P]) -> None:
        """Takes a place from one, and gives it to another that waits for it."""
        place, preempt = victim.granted, victim.preempt
        assert place is not None and preempt is not None  # noqa: S101, PT018 - as `_may_lose` found
        self._running.discard(victim)
        for group in victim.charged:
            group.refund(victim.priority, victim.key, victim.cost)
        victim.granted, victim.preempt, victim.charged = None, None, []
        victim.preempted += 1
        victim.waited = True
        place.give_back()
        mine = self._choose(ask)
        if mine is not None:
            self._admit(ask, mine)
        self._join(victim)
        preempt()


def _neighbours(groups: Collection[Group]) -> dict[Group, list[Group]]:
    """The groups that have an engine with a group in common, itself among them."""
    return {group: [other for other in groups if not other.names.isdisjoint(group.names)] for group in groups}


def _may_lose(ask: Ask[P]) -> bool:
    """Whether a request's place can be taken from it, and would be free then."""
    place = ask.granted
    return (
        place is not None
        and ask.preempt is not None
        and ask.preempted < _MOST_PREEMPTIONS
        and place.ready
        and place.capacity is not None
        and place.in_flight <= place.capacity
    )


def _engine(ask: Ask[P]) -> str | None:
    return ask.granted.name if ask.granted is not None else None


def _wake(ask: Ask[P]) -> None:
    if ask.wake is not None:
        ask.wake()
