"""A policy's rules, held against a request: which tiers it may use, in which order, and on what terms."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gateway.config.policy import Cap, Fields, ModelPolicy, Rule
from gateway.policy.conditions import Condition, Moment


class Verdict(NamedTuple):
    """What the rules say of a request.

    Attributes:
        tiers: names of those that it may use, the preferred one first; empty if it is rejected.
        rule: the rule that routed or rejected it; `None` if none did, so that all tiers are in order.
        matched: all rules whose conditions held.
        reject: why it is rejected.
        priority: its class, where a rule sets it.
        deadline: seconds from its arrival, where a rule sets them.
        cut: whether a stream that has begun ends there like one that reached `max_tokens`, and not with an error.
        spill: seconds of predicted wait beyond which the next tier is used too.
        set, cap: what rules do to its fields.
    """

    tiers: tuple[str, ...]
    rule: str | None = None
    matched: tuple[str, ...] = ()
    reject: str | None = None
    priority: str | None = None
    deadline: float | None = None
    cut: bool = False
    spill: float = 0.0
    set: Mapping[str, int | float] = {}
    cap: Mapping[str, int | float] = {}


class Rules:
    """The rules for one model.

    Raises:
        ConditionError: a condition cannot be used.
    """

    def __init__(self, policy: ModelPolicy) -> None:
        self.policy = policy
        self._tiers = tuple(policy.tiers)
        self._rules = [_Compiled(at, rule, policy.tiers) for at, rule in enumerate(policy.rules)]

    def decide(self, moment: Moment) -> Verdict:
        """The verdict on the request of `moment`."""
        matched: list[str] = []
        priority: str | None = None
        deadline: float | None = None
        cut = False
        spill = self.policy.spill
        changes: dict[str, int | float] = {}
        caps: dict[str, int | float] = {}
        tiers, decided, reject = self._tiers, None, None
        for compiled in self._rules:
            if compiled.condition is not None and not compiled.condition.holds(moment):
                continue
            rule = compiled.rule
            matched.append(compiled.name)
            priority = rule.priority or priority
            deadline = rule.deadline or deadline
            cut = cut if rule.on_deadline is None else rule.on_deadline == "cut"
            spill = spill if rule.spill is None else rule.spill
            changes |= compiled.set
            caps |= compiled.cap
            if rule.reject is not None or rule.route is not None:
                decided, reject = compiled.name, rule.reject
                tiers = tuple(rule.route or ()) if reject is None else ()
                break
        return Verdict(tiers, decided, tuple(matched), reject, priority, deadline, cut, spill, changes, caps)


class _Compiled:
    def __init__(self, at: int, rule: Rule, tiers: Collection[str]) -> None:
        self.rule = rule
        self.name = rule.name or f"rule {at + 1}"
        self.set = _given(rule.set)
        self.cap = _given(rule.cap)
        self.condition = None if rule.when is None else Condition(rule.when, tiers)


def _given(fields: Fields | Cap | None) -> dict[str, int | float]:
    if fields is None:
        return {}
    named = {name: getattr(fields, name) for name in fields.__struct_fields__}
    return {name: value for name, value in named.items() if value is not None}
