"""Whether those who waited at the same time were served alike."""

from collections import defaultdict
from collections.abc import Iterable

from gateway.admission import Ask
from gateway.fleet import Route


class Fairness:
    """Counts, for each key, the tokens that it got while others waited too, and those that it had a claim to.

    A place that is handed out while several keys, in the same class and for the same model, wait for it is one on which
    each of them has the same claim. What a key gets while no other waits takes nothing from anybody and is not counted.

    Attributes:
        places: how many were handed out while several keys waited: of a few, shares say nothing.
    """

    def __init__(self) -> None:
        self.places = 0
        self._waiting: dict[int, tuple[Ask[Route], str]] = {}
        self._got: dict[str, float] = defaultdict(float)
        self._claim: dict[str, float] = defaultdict(float)

    def waits(self, ask: Ask[Route], model: str) -> None:
        self._waiting[id(ask)] = ask, model

    def leaves(self, ask: Ask[Route]) -> None:
        del self._waiting[id(ask)]

    def claimants(self, ask: Ask[Route]) -> frozenset[str]:
        """The keys that wait for the place which `ask` has just been granted, its own among them."""
        _, model = self._waiting[id(ask)]
        return frozenset(other.key for other, asked in self._waiting.values() if asked == model and _rivals(ask, other))

    def got(self, key: str, claimants: frozenset[str], tokens: int) -> None:
        """A place was used for a prompt and an answer of so many tokens."""
        if len(claimants) > 1:
            self.places += 1
            self._got[key] += tokens
            for claimant in claimants:
                self._claim[claimant] += tokens / len(claimants)

    def share(self) -> dict[str, float]:
        """What each key got of what it had a claim to; 1 is just that. Empty if keys never waited for one another."""
        return {key: self._got[key] / claim for key, claim in self._claim.items()}

    def jain(self) -> float | None:
        """Jain's index of the shares: 1 if all are alike, 1/n if one of n has all. `None` if there are none.

        Source: https://www.cs.wustl.edu/~jain/papers/ftp/fairness.pdf.
        """
        return jain(self.share().values())


def _rivals(ask: Ask[Route], other: Ask[Route]) -> bool:
    """Whether `other` could have had the place that `ask` was granted."""
    place = ask.granted
    return (
        other.priority == ask.priority
        and place is not None
        and any(place.name == one.name for tier in other.tiers[: other.open] for one in tier)
    )


def jain(shares: Iterable[float]) -> float | None:
    """Jain's index of fairness."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None
