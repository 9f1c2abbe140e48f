"""Which of several engines gets a request. Pure: it looks at numbers and touches nothing."""

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """An engine that could take the request."""

    @property
    def load(self) -> float:
        """Requests it runs, as a share of those it can run at once."""

    @property
    def last_used(self) -> int:
        """A number that grows with each use of any engine."""


C = TypeVar("C", bound=Candidate)


def least_loaded(candidates: Iterable[C]) -> C | None:
    """The candidate with the smallest load; of equals, the one whose last use is longest ago."""
    return min(candidates, key=lambda candidate: (candidate.load, candidate.last_used), default=None)
