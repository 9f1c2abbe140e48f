"""A canary: a tier that gets a share of a model's traffic, until it does badly. Pure; it is told of each outcome."""

import random
import statistics
from collections import deque
from typing import NamedTuple

from gateway.config import policy as schema


class Outcome(NamedTuple):
    """A request that the canary's tier answered, or failed on.

    Attributes:
        failed: by an engine's fault: not a client's mistake, nor its leaving.
        ttft: seconds from its dispatch to its first output, if there was one.
    """

    failed: bool
    ttft: float | None = None


class Canary:
    """One canary and what became of it.

    Args:
        config: as the policy has it. One that is changed is a new canary; see `goes_on_as`.
        seed: for the lots that requests draw.

    Attributes:
        ended: why it gets no more traffic; `None` while it does. It stays so.
    """

    def __init__(self, config: schema.Canary, seed: int | None = None) -> None:
        self.config = config
        self.ended: str | None = None
        self._latest: deque[Outcome] = deque(maxlen=max(config.back.window, config.back.least))
        self._rng = random.Random(seed)  # noqa: S311 - it draws lots between tiers

    def goes_on_as(self, config: schema.Canary | None) -> bool:
        """Whether it is the one of a policy that was loaded again, so that what is known of it stays."""
        return self.config == config

    def order(self, tiers: tuple[str, ...]) -> tuple[str, ...]:
        """The tiers that a request may use, of those that the rules give it: the canary first for those that draw it.

        All others do not use it; but where the rules leave nothing else, they mean it. The share is counted among
        requests that a rule has not routed past the canary.
        """
        others = self.past(tiers)
        if others == tiers:
            return tiers
        drawn = self.ended is None and self._rng.random() < self.config.share
        return (self.config.tier, *others) if drawn else others

    def past(self, tiers: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a request that does not draw it."""
        return tuple(tier for tier in tiers if tier != self.config.tier) or tiers

    def learn(self, outcome: Outcome) -> bool:
        """Takes note of a request that went to the canary's tier; `True` if that has just ended it."""
        if self.ended is not None:
            return False
        self._latest.append(outcome)
        self.ended = self._verdict()
        return self.ended is not None

    def _verdict(self) -> str | None:
        back, seen = self.config.back, len(self._latest)
        if seen < back.least:
            return None
        failed = sum(outcome.failed for outcome in self._latest)
        if failed / seen > back.errors:
            return f"{failed} of its latest {seen} requests failed, more than {back.errors:.0%} (`back.errors`)"
        times = [outcome.ttft for outcome in self._latest if outcome.ttft is not None]
        if back.ttft is not None and len(times) >= back.least and (median := statistics.median(times)) > back.ttft:
            return (
                f"the median time to first token of its latest {len(times)} was {median:.2f} s, "
                f"more than {back.ttft:g} s (`back.ttft`)"
            )
        return None
