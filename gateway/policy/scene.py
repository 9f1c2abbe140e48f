"""Moments that are made up, and moments that note what conditions look at in them."""

from collections.abc import Mapping
from typing import TypeAlias, cast

from gateway.policy.conditions import Moment
from gateway.policy.facts import Facts, TierFacts
from gateway.policy.rules import Verdict

Value: TypeAlias = bool | int | float | str

_IDLE = TierFacts()


class Scene:
    """A request and the state of the tiers as they are told. A tier that is not told of is idle."""

    def __init__(
        self, facts: Facts, headers: Mapping[str, str] | None = None, tiers: Mapping[str, TierFacts] | None = None
    ) -> None:
        self.facts = facts
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._tiers = tiers or {}

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def tier(self, name: str) -> TierFacts:
        return self._tiers.get(name, _IDLE)


def destination(verdict: Verdict, moment: Moment) -> str | None:
    """The tier that a request goes to, as the queue has it; `None` if it is rejected, or no tier is healthy.

    Tiers open one after the other while the wait at those that are open is longer than `spill`; of the open ones it is
    the one with the shortest wait, and of equals the first.
    """
    waits = [(moment.tier(name).predicted_wait_s, name) for name in verdict.tiers if moment.tier(name).healthy]
    opened = waits[:1]
    for wait in waits[1:]:
        if min(opened)[0] <= verdict.spill:
            break
        opened.append(wait)
    return min(opened, key=lambda wait: wait[0])[1] if opened else None


class Noting:
    """Another moment, with a note of each thing that is looked at, by the name that conditions have for it."""

    def __init__(self, moment: Moment) -> None:
        self.seen: dict[str, Value] = {}
        self.facts = cast("Facts", _Noted(moment.facts, "", self.seen))
        self._moment = moment

    def header(self, name: str) -> str:
        value = self._moment.header(name)
        self.seen[f'header("{name}")'] = value
        return value

    def tier(self, name: str) -> TierFacts:
        return cast("TierFacts", _Noted(self._moment.tier(name), f"{name}.", self.seen))


class _Noted:
    def __init__(self, facts: Facts | TierFacts, prefix: str, seen: dict[str, Value]) -> None:
        self._facts = facts
        self._prefix = prefix
        self._seen = seen

    def __getattr__(self, name: str) -> Value:
        value: Value = getattr(self._facts, name)
        self._seen[self._prefix + name] = value
        return value
