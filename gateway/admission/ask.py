"""What admission is asked for, and what it says no with."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from gateway.admission.shares import CLASSES, Group
from gateway.errors import GatewayError
from gateway.policy.facts import ENDLESS
from gateway.policy.score import Candidate


class Place(Candidate, Protocol):
    """A target as admission sees it. It counts what it has.

    Its `name` is that of its engine: places with the same name are ready together, and share one count and capacity.
    """

    def take(self) -> None: ...
    def give_back(self) -> None: ...


P = TypeVar("P", bound=Place)
Score = Callable[[Sequence[P], "Ask[P]", random.Random], P]


class QueueFull(GatewayError):
    """As many requests wait for the same engines as may."""

    status = 429
    code = "queue_full"
    kind = "rate_limit_error"


class QueueTimeout(GatewayError):
    """The request waited as long as it may, or would not be served before its deadline."""

    status = 503
    code = "queue_timeout"


class Ask(Generic[P]):
    """A request as admission sees it. What it asks for may change while it waits, and counts from the next tick on.

    Args:
        tiers: the targets that it may use, those of the preferred tier first.
        score: chooses among the targets of a tier.
        key: whose request it is.
        priority: its class, one of `CLASSES`.
        spill: seconds; see above.
        prompt_tokens: an estimate.
        cost: what it counts for in its key's share, in tokens.

    Attributes:
        open: how many of its tiers it may use now.
        granted: its place.
        refused: why it waits no longer, though it has no place.
        waited: whether it had to wait for its place.
        wake: called when it is granted a place or refused.
        preempt: set by the request for as long as its place may be taken from it, which is until it sends something to
            its client. Called when that happens: the request then waits again. It must do no more than note that.
        preempted: how often that happened.
    """

    __slots__ = (
        "_tiers",
        "admitted",
        "arrived",
        "charged",
        "cost",
        "granted",
        "groups",
        "key",
        "number",
        "open",
        "preempt",
        "preempted",
        "priority",
        "prompt_tokens",
        "refused",
        "score",
        "since",
        "spill",
        "unready_since",
        "waited",
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
        self.granted: P | None = None
        self.refused: GatewayError | None = None
        self.waited = False
        self.wake: Callable[[], None] | None = None
        self.preempt: Callable[[], None] | None = None
        self.preempted = 0

        self.number = sys.maxsize
        """Of its arrival: smaller ones came before it."""
        self.arrived = 0.0
        self.since = 0.0
        """When it last began to wait."""
        self.unready_since: float | None = None
        """When none of its places was ready any more."""
        self.admitted = 0
        """The number of its admission."""
        self.charged: list[Group] = []
        """Where its place was counted for its key."""

    @property
    def tiers(self) -> Sequence[Sequence[P]]:
        return self._tiers

    @tiers.setter
    def tiers(self, tiers: Sequence[Sequence[P]]) -> None:
        self._tiers = tiers
        self.open = 1
        self.groups: list[Group] = []
        """Those that it waits in while it may use one tier, two, and so on, as far as they were looked at."""

    def places(self, tiers: int | None = None) -> Iterator[P]:
        """Those of the first so many tiers, or of those that are open."""
        return (place for tier in self._tiers[: self.open if tiers is None else tiers] for place in tier)
