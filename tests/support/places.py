"""Engines and their places as admission sees them, on a clock that stands still until it is set."""

from collections.abc import Sequence
from random import Random
from typing import Any

from gateway.admission import Admission, Ask
from gateway.policy.facts import ENDLESS
from gateway.policy.rates import Rates
from gateway.policy.score import by_load


class Engine:
    """Counts its requests. `service` is how long one has been seen to need, in seconds."""

    def __init__(self, name: str, capacity: int | None = 1, service: float = 2.0) -> None:
        self.name = name
        self.capacity = capacity
        self.ready = True
        self.in_flight = 0
        self.last_used = 0
        self.looks = 0
        """How often anybody looked whether it is ready."""
        self.rates = Rates(service=service)


class Place:
    """One of many views of an engine, as each plan of a request makes its own."""

    context = None
    weight = 1.0
    warm = True
    load_time = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.name
        self.rates = engine.rates

    @property
    def ready(self) -> bool:
        self.engine.looks += 1
        return self.engine.ready

    @property
    def capacity(self) -> int | None:
        return self.engine.capacity

    @property
    def in_flight(self) -> int:
        return self.engine.in_flight

    @property
    def last_used(self) -> int:
        return self.engine.last_used

    def take(self) -> None:
        self.engine.in_flight += 1
        self.engine.last_used += 1

    def give_back(self) -> None:
        self.engine.in_flight -= 1


Tier = Engine | Sequence[Engine]


def least_loaded(places: Sequence[Place], ask: Ask[Place], rng: Random) -> Place:
    return by_load(places, ask, rng)


def tiers_of(*tiers: Tier) -> list[list[Place]]:
    """New places at these engines."""
    return [[Place(one) for one in ([tier] if isinstance(tier, Engine) else tier)] for tier in tiers]


class Queue:
    """An admission in virtual time.

    Attributes:
        lost: those whose places were taken from them.
    """

    def __init__(self, limit: int = 1000, seed: int = 1) -> None:
        self.now = 0.0
        self.admission: Admission[Place] = Admission(limit, lambda: self.now, seed)
        self.lost: list[Ask[Place]] = []

    def ask(self, *tiers: Tier, key: str = "", priority: str = "normal", **terms: Any) -> Ask[Place]:
        """A request that has just come: it has a place, or waits.

        Raises:
            QueueFull: it may not wait.
        """
        ask = Ask(tiers_of(*tiers), least_loaded, key=key, priority=priority, **{"spill": ENDLESS, **terms})
        self.admission.submit(ask)
        return ask

    def runs(self, *tiers: Tier, **terms: Any) -> Ask[Place]:
        """A request that has a place, and may lose it."""
        ask = self.ask(*tiers, **terms)
        assert ask.granted is not None
        ask.preempt = lambda: self.lost.append(ask)
        return ask

    def wait(self, seconds: float) -> None:
        """Lets time pass as the gateway does: somebody looks at the queue all the time."""
        self.now += seconds
        self.admission.tick()

    def drain(self, running: Sequence[Ask[Place]], asks: Sequence[Ask[Place]]) -> list[Ask[Place]]:
        """Ends whatever runs, the oldest first, until all of `asks` had their turn; says in which order they had it."""
        at_work = list(running)
        order: list[Ask[Place]] = []
        while len(order) < len(asks):
            self.admission.leave(at_work.pop(0))
            for ask in asks:
                if ask.granted is not None and ask not in order:
                    order.append(ask)
                    at_work.append(ask)
        return order


def engine_of(ask: Ask[Place]) -> Engine | None:
    return ask.granted.engine if ask.granted is not None else None
