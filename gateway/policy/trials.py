"""What policies try beside answering: canaries, which get a share of the requests, and shadows, which get copies."""

import random
from collections.abc import Mapping

from gateway.policy.canary import Canary, Outcome
from gateway.policy.rules import Rules


class Trials:
    """The canaries and shadows of all policies.

    Args:
        seed: for the lots that are drawn.
    """

    def __init__(self, policies: Mapping[str, Rules], seed: int | None = None) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - it draws lots between requests
        self._policies: Mapping[str, Rules] = {}
        self._canaries: dict[str, Canary] = {}
        self.update(policies)

    def update(self, policies: Mapping[str, Rules]) -> None:
        """Goes by other policies. What is known of a canary stays, for as long as its section does."""
        before, self._canaries = self._canaries, {}
        self._policies = policies
        for name, rules in policies.items():
            config = rules.policy.canary
            if config is not None:
                old = before.get(name)
                goes_on = old is not None and old.goes_on_as(config)
                self._canaries[name] = old if old is not None and goes_on else Canary(config, self._rng.getrandbits(64))

    def tiers(self, model: str, tiers: tuple[str, ...]) -> tuple[str, ...]:
        """Those that a request may use, of those that the rules give it. It may draw the canary."""
        canary = self._canaries.get(model)
        return self._without_shadow(model, tiers if canary is None else canary.order(tiers))

    def usual(self, model: str, tiers: tuple[str, ...]) -> tuple[str, ...]:
        """The same for one that does not draw the canary."""
        canary = self._canaries.get(model)
        return self._without_shadow(model, tiers if canary is None else canary.past(tiers))

    def _without_shadow(self, model: str, tiers: tuple[str, ...]) -> tuple[str, ...]:
        shadow = self._policies[model].policy.shadow
        if shadow is None or tiers == (shadow.tier,):
            return tiers
        return tuple(tier for tier in tiers if tier != shadow.tier)

    def shadow(self, model: str) -> str | None:
        """The tier that gets a copy of a request, if this one has drawn that."""
        rules = self._policies.get(model)
        shadow = rules.policy.shadow if rules is not None else None
        return shadow.tier if shadow is not None and self._rng.random() < shadow.share else None

    def learn(self, model: str, tier: str, outcome: Outcome) -> str | None:
        """Takes note of a request that went to a tier; why its canary is over, if that has just ended it."""
        canary = self._canaries.get(model)
        if canary is None or canary.config.tier != tier:
            return None
        return canary.ended if canary.learn(outcome) else None

    def canary(self, model: str) -> Canary | None:
        return self._canaries.get(model)
