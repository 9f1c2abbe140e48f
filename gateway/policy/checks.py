"""What the types alone cannot say of a model's policy: names that must be known, rules that must be of use."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from gateway.config.document import Node
from gateway.config.policy import Canary, Example, Rule, Shadow, Target
from gateway.config.problems import Path, Problems, listed, nearest
from gateway.config.schema import Config
from gateway.policy.conditions import Condition, ConditionError
from gateway.policy.facts import REQUEST_FACTS
from gateway.policy.kinds import FUNCTIONS
from gateway.policy.tokens import INSTEAD, RESERVED

_TIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN = frozenset({*RESERVED, *INSTEAD, *REQUEST_FACTS, *FUNCTIONS, "header"})

T = TypeVar("T")


class Checks:
    """Checks all of one model's policy that can be read without its parts that have problems.

    Args:
        raw: the policy as plain data, in which parts with a problem are of no use.
        places: where each value was written.
        problems: gets what is found.
    """

    def __init__(
        self, name: str, raw: Mapping[str, object], config: Config, places: Mapping[Path, Node], problems: Problems
    ) -> None:
        self._name = name
        self._raw = raw
        self._config = config
        self._places = places
        self._problems = problems
        self._tiers: Collection[str] = _mapping(raw.get("tiers"))

    def run(self) -> None:
        if self._name in self._config.models:
            self._add((), "this name is under `models` of the config file too: keep one of them")
        for name, targets in _mapping(self._raw.get("tiers")).items():
            self._tier(name, targets)
        self._rules()
        for kind in (Canary, Shadow):
            self._beside(kind)
        for at, raw in enumerate(_sequence(self._raw.get("examples"))):
            if (example := self._sound(raw, Example, ("examples", at))) is not None:
                self._example(("examples", at), example)

    # Tiers

    def _tier(self, name: str, targets: object) -> None:
        at = ("tiers", name)
        if not _TIER.fullmatch(name):
            self._add(at, "a tier's name is letters, digits and `_`, and begins with a letter: conditions use it")
        elif name in _TAKEN:
            self._add(at, f"`{name}` means something else in conditions: give the tier another name")
        if targets == []:
            self._add(at, "expected at least one engine")
        seen: dict[tuple[str, str | None], int] = {}
        for number, raw in enumerate(_sequence(targets)):
            where = (*at, number)
            target = self._sound(raw, Target, where)
            if target is not None:
                self._target(target, where)
                self._once((target.engine, target.model), seen, where, "this engine is in the tier already")

    def _target(self, target: Target, at: Path) -> None:
        weight, score = (*at, "weight"), self._raw.get("score", "predicted_ttft")
        if self._whole(weight) in self._places and self._none_in(weight) and score not in ("weighted", None):
            self._add(weight, f"of use with `score: weighted` alone; the score is `{score}`")
        engine = self._config.engines.get(target.engine)
        if engine is None:
            known = self._config.engines
            near = nearest(target.engine, known) or f"; the engines are {listed(known)}"
            self._add((*at, "engine"), f"no engine is named `{target.engine}`{near}")
        elif target.model is not None and engine.models and target.model not in engine.models:
            near = nearest(target.model, engine.models) or f"; it has {listed(engine.models)}"
            self._add((*at, "model"), f"the engine `{target.engine}` has no model `{target.model}`{near}")
        elif target.model is None and len(engine.models) > 1 and self._name not in engine.models:
            there = f"say which one is meant with `model`; it has {listed(engine.models)}"
            self._add((*at, "engine"), f"the engine `{target.engine}` has no model `{self._name}`: {there}")

    # Rules

    def _rules(self) -> None:
        last: int | None = None
        names: dict[str, int] = {}
        for number, raw in enumerate(_sequence(self._raw.get("rules"))):
            at = ("rules", number)
            rule = self._sound(raw, Rule, at)
            if last is not None:
                self._add(at, f"never looked at: rule {last + 1} has no `when`, so that every request ends there")
                last = None
            if rule is None:
                continue
            whole = self._none_in(at)
            self._once(rule.name or f"rule {number + 1}", names, (*at, "name"), "another rule has this name")
            self._actions(rule, at)
            if rule.when is not None and self._tiers:
                self._condition(rule.when, (*at, "when"))
            if whole and rule == Rule(name=rule.name, when=rule.when):
                self._add(
                    at, "it does nothing: give it `route`, `reject`, `class`, `set`, `cap`, `deadline` or `spill`"
                )
            if rule.on_deadline is not None and not self._deadlines():
                self._add((*at, "on_deadline"), "of use with a `deadline` alone, and no rule sets one")
            if whole and rule.when is None and (rule.route is not None or rule.reject is not None):
                last = number

    def _deadlines(self) -> bool:
        """Whether any rule sets one."""
        return any("deadline" in _mapping(rule) for rule in _sequence(self._raw.get("rules")))

    def _actions(self, rule: Rule, at: Path) -> None:
        if rule.route is not None and rule.reject is not None:
            self._add(at, "both `route` and `reject` are set: keep one of them")
        if rule.route == []:
            self._add((*at, "route"), "expected at least one tier")
        seen: dict[str, int] = {}
        for number, tier in enumerate(rule.route or []):
            where = (*at, "route", number)
            self._known_tier(tier, where)
            self._once(tier, seen, where, "this tier is there already")
        if rule.set is not None and rule.cap is not None and None not in (rule.set.max_tokens, rule.cap.max_tokens):
            self._add((*at, "cap", "max_tokens"), "`set` gives it a value in the same rule: keep one of them")

    def _condition(self, text: str, at: Path) -> None:
        try:
            Condition(text, self._tiers)
        except ConditionError as exc:
            for problem in exc.problems:
                self._add(at, problem)

    # Beside the rules

    def _beside(self, kind: type[Canary] | type[Shadow]) -> None:
        at = (kind.__name__.lower(),)
        found = self._sound(self._raw.get(at[0]), kind, at)
        if found is None:
            return
        self._known_tier(found.tier, (*at, "tier"))
        if set(self._tiers) == {found.tier}:
            self._add((*at, "tier"), "there is no other tier for all other requests")

    def _example(self, at: Path, example: Example) -> None:
        expect = example.expect
        for tier in example.tiers:
            self._known_tier(tier, (*at, "tiers", tier))
        if expect.tier is not None:
            self._known_tier(expect.tier, (*at, "expect", "tier"))
        if expect == type(expect)():
            self._add((*at, "expect"), f"it expects nothing: give it {listed(expect.__struct_encode_fields__, 'or')}")
        if expect.rejected and expect.tier is not None:
            self._add((*at, "expect", "tier"), "a request that is rejected goes to no tier")
        rules = [
            _mapping(raw).get("name") or f"rule {n + 1}" for n, raw in enumerate(_sequence(self._raw.get("rules")))
        ]
        names = [str(name) for name in rules]
        if expect.rule is not None and expect.rule not in names:
            near = nearest(expect.rule, names) or f"; there are {listed(names)}"
            self._add((*at, "expect", "rule"), f"no rule is named `{expect.rule}`{near}")

    # What is used above

    def _known_tier(self, name: str, at: Path) -> None:
        if self._tiers and name not in self._tiers:
            near = nearest(name, self._tiers) or f"; the tiers are {listed(self._tiers)}"
            self._add(at, f"no tier is named `{name}`{near}")

    def _once(self, value: T, seen: dict[T, int], at: Path, message: str) -> None:
        line = self._line(at)
        if value in seen:
            self._add(at, f"{message}, on line {seen[value]}")
        seen.setdefault(value, line)

    def _sound(self, raw: object, kind: type[T], at: Path) -> T | None:
        return self._problems.sound(raw, kind, self._whole(at))

    def _none_in(self, at: Path) -> bool:
        return self._problems.none_in(self._whole(at))

    def _whole(self, at: Path) -> Path:
        return ("models", self._name, *at)

    def _line(self, at: Path) -> int:
        place = self._places.get(self._whole(at)) or self._places[self._whole(at[:-1])]
        return place.line

    def _add(self, at: Path, message: str) -> None:
        self._problems.add(self._line(at), self._whole(at), message)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []
