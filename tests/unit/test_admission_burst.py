"""Many clients at once, in virtual time: each key has its share, and nobody is forgotten."""

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from gateway.admission import Ask, QueueFull
from gateway.policy.facts import ENDLESS
from tests.support.places import Engine, Place, Queue, engine_of, least_loaded, tiers_of


class TestBurst:
    """Two hundred clients at once, of eight keys of which the first has half of them."""

    CLIENTS: ClassVar = [
        key for key, count in zip("abcdefgh", (96, 48, 24, 12, 8, 6, 4, 2), strict=True) for _ in range(count)
    ]

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_each_key_has_its_share(self, seed: int) -> None:
        fair = _Burst(self.CLIENTS, seed, keys=True)
        fair.run(lambda burst, client: burst.come(client, burst.queue.now), until=1800.0)
        assert _jain(fair.tokens) >= 0.95
        blind = _Burst(self.CLIENTS, seed, keys=False)
        blind.run(lambda burst, client: burst.come(client, burst.queue.now), until=1800.0)
        assert _jain(blind.tokens) < 0.5

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_all_are_answered_or_told_when_to_come_back_and_answered_then(self, seed: int) -> None:
        burst = _Burst(self.CLIENTS, seed, keys=True, limit=20)
        burst.run(lambda *_: None)
        assert burst.answered == set(range(200))
        assert burst.refusals > 100
        assert burst.queue.now < 1.5 * sum(burst.tokens.values()) / (4 * _RATE)  # no engine waits for clients to return


_RATE = 50.0
"""Tokens in a second, of one request."""


class _Burst:
    """Clients of two engines with two places each, in virtual time.

    Attributes:
        tokens: what the requests that had a place needed, by key.
    """

    def __init__(self, clients: Sequence[str], seed: int, *, keys: bool, limit: int = 1000) -> None:
        self.queue = Queue(limit)
        self.tokens: dict[str, float] = defaultdict(float)
        self.answered: set[int] = set()
        self.refusals = 0
        self._clients = clients
        self._keys = keys
        self._rng = random.Random(seed)
        self._engines = [Engine("one", 2), Engine("two", 2)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for client in self._rng.sample(range(len(clients)), len(clients)):
            self.come(client, 0.0)

    def run(self, answered: Callable[["_Burst", int], None], until: float = ENDLESS) -> None:
        """Until all have been answered, or for some time; `answered` is called with each client that was."""
        self._then = answered
        while self._events and self._events[0][0] <= until:
            self.queue.now, _, action = heapq.heappop(self._events)
            action()

    def come(self, client: int, at: float) -> None:
        tokens = self._rng.lognormvariate(5.0, 0.8)
        self._at(at, lambda: self._ask(client, tokens))

    def _ask(self, client: int, tokens: float) -> None:
        key = self._clients[client] if self._keys else ""
        ask = Ask(tiers_of(self._engines), least_loaded, key=key, cost=tokens)
        ask.wake = lambda: self._begin(client, ask, tokens)
        try:
            place = self.queue.admission.submit(ask)
        except QueueFull as full:
            self.refusals += 1
            self._at(self.queue.now + (full.retry_after or 0.0), lambda: self._ask(client, tokens))
            return
        if place is not None and not ask.waited:
            self._begin(client, ask, tokens)

    def _begin(self, client: int, ask: Ask[Place], tokens: float) -> None:
        self.tokens[self._clients[client]] += tokens
        engine, seconds = engine_of(ask), tokens / _RATE
        assert engine is not None

        def end() -> None:
            assert engine.rates.service is not None
            engine.rates.service += 0.2 * (seconds - engine.rates.service)
            self.queue.admission.leave(ask)
            self.answered.add(client)
            self._then(self, client)

        self._at(self.queue.now + seconds, end)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), action))


def _jain(shares: dict[str, float]) -> float:
    """Jain's index: 1 if all are alike, 1/n if one of n has all."""
    return sum(shares.values()) ** 2 / (len(shares) * sum(share**2 for share in shares.values()))
