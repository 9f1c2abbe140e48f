"""Which target of a tier is best for a request. Pure: scores look at numbers and touch nothing."""

import functools
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gateway.policy.facts import ENDLESS
from gateway.policy.rates import Rates

_SERVICE = 2.0
"""Seconds that a request is taken to hold its place while no request has shown it."""
_LOAD = 10.0
"""Seconds that a model which is not in memory is taken to load while none has shown it."""
_REMEMBERED = 65_536
"""Lots of a key and a target that are kept, since drawing one takes a microsecond."""


class Candidate(Protocol):
    """A target as scores see it: an engine with a model."""

    @property
    def name(self) -> str:
        """Of its engine; the same for as long as that is in the config."""

    @property
    def ready(self) -> bool: ...
    @property
    def context(self) -> int | None: ...
    @property
    def capacity(self) -> int | None:
        """Requests that it runs at once; `None` is without bound."""

    @property
    def in_flight(self) -> int:
        """Requests that it has from here."""

    @property
    def last_used(self) -> int:
        """A number that grows with each use of any target."""

    @property
    def weight(self) -> float: ...
    @property
    def warm(self) -> bool: ...
    @property
    def load_time(self) -> float | None: ...
    @property
    def rates(self) -> Rates: ...


C = TypeVar("C", bound=Candidate)


class Question(Protocol):
    """What a score knows of the request."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def key(self) -> str: ...


def free(candidate: Candidate) -> bool:
    """Whether it can take one more request now."""
    if not candidate.ready:
        return False
    capacity = _capacity(candidate)
    return capacity is None or candidate.in_flight < capacity


def load(candidate: Candidate) -> float:
    """Requests it runs, as a share of those it can run at once."""
    return candidate.in_flight / (_capacity(candidate) or 1)


def _capacity(candidate: Candidate) -> int | None:
    """What an engine says may be 0, and yet it is ready."""
    capacity = candidate.capacity
    return capacity if capacity is None or capacity > 0 else 1


def predicted_wait(candidate: Candidate, ahead: float = 0.0) -> float:
    """Seconds until it has a place for a request before which `ahead` others wait.

    Places become free one after the other, one in `service / capacity` seconds.
    """
    if not candidate.ready:
        return ENDLESS
    capacity = _capacity(candidate)
    if capacity is None:
        return 0.0
    turns = candidate.in_flight - capacity + 1 + ahead
    if turns <= 0:
        return 0.0
    service = candidate.rates.service
    return turns * (_SERVICE if service is None else service) / capacity


def predicted_ttft(candidate: Candidate, prompt_tokens: int, ahead: float = 0.0) -> float:
    """Seconds until its first token: the wait, the load of a cold model, and the prefill of what is not cached."""
    return predicted_wait(candidate, ahead) + preparation(candidate, prompt_tokens)


def preparation(candidate: Candidate, prompt_tokens: int) -> float:
    """Seconds from its place to its first token."""
    prefill = candidate.rates.prefill_time(prompt_tokens)
    if candidate.warm:
        return prefill
    loading = candidate.load_time
    return prefill + (_LOAD if loading is None else max(0.0, loading))


def by_predicted_ttft(candidates: Sequence[C], question: Question, _rng: random.Random) -> C:
    """The soonest first token; of equals, the least loaded."""
    return min(candidates, key=lambda c: (predicted_ttft(c, question.prompt_tokens), load(c), c.last_used))


def by_load(candidates: Sequence[C], _question: Question, _rng: random.Random) -> C:
    """The smallest load; of equals, the one whose last use is longest ago."""
    return min(candidates, key=lambda c: (load(c), c.last_used))


def by_turn(candidates: Sequence[C], _question: Question, _rng: random.Random) -> C:
    """The one whose last use is longest ago."""
    return min(candidates, key=lambda c: c.last_used)


def by_weight(candidates: Sequence[C], _question: Question, rng: random.Random) -> C:
    """Each as often as its weight says."""
    return rng.choices(candidates, weights=[c.weight for c in candidates])[0]


def by_key(candidates: Sequence[C], question: Question, _rng: random.Random) -> C:
    """The same for all requests of a key, and for nearly all others when a target comes or goes.

    Rendezvous hashing: https://www.eecs.umich.edu/techreports/cse/96/CSE-TR-316-96.pdf.
    """
    return max(candidates, key=lambda c: _lot(question.key, c.name))


@functools.lru_cache(_REMEMBERED)
def _lot(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\n{name}".encode(errors="replace"), digest_size=8).digest()


SCORES: dict[str, Callable[..., Candidate]] = {
    "predicted_ttft": by_predicted_ttft,
    "least_loaded": by_load,
    "round_robin": by_turn,
    "weighted": by_weight,
    "hash": by_key,
}
"""By the name that `score` in a policy has. One more is one function and one entry."""
