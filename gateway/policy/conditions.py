"""Conditions: CEL expressions over flat facts, checked when they are loaded.

Source of the language: https://github.com/google/cel-spec. Beside the facts of a request a condition may use those of a
tier, as `small.queue`, and a header of the request, as `header("x-team")`, which is empty where it was not sent. Both
are rewritten to flat names, since a flat variable costs microseconds and a nested one tens of them.
"""

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Any, Protocol

import cel

from gateway.policy.facts import REQUEST_FACTS, TIER_FACTS, Facts, TierFacts

_TEXT = r"""(?P<text>[rR]?(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'))"""
_HEADER = re.compile(rf"""{_TEXT}|\bheader\s*\(\s*(?:"(?P<a>[\w-]+)"|'(?P<b>[\w-]+)')\s*\)""")
_TIER = re.compile(rf"{_TEXT}|(?<![\w.])(?P<tier>[A-Za-z_]\w*)\s*\.\s*(?P<fact>[a-z_]\w*)\b(?!\s*\()")
_SAMPLES = (0, 1)


class ConditionError(Exception):
    """A condition that cannot be used. The message says why, and what there is."""


class Moment(Protocol):
    """What a condition is held against."""

    facts: Facts

    def header(self, name: str) -> str: ...
    def tier(self, name: str) -> TierFacts: ...


class Condition:
    """A condition that has been checked.

    Args:
        text: as it was written.
        tiers: the names of tiers that it may use.

    Raises:
        ConditionError: it is no CEL, uses what there is not, compares what cannot be compared, or is no yes or no.
    """

    def __init__(self, text: str, tiers: Collection[str]) -> None:
        self.text = text
        self._headers: dict[str, str] = {}
        self._tiers: dict[str, tuple[str, str]] = {}
        flat = _HEADER.sub(self._flat_header, text)
        flat = _TIER.sub(lambda found: self._flat_tier(found, tiers), flat)
        try:
            self._program = cel.compile(flat)
        except ValueError as exc:
            raise ConditionError(f"not a CEL expression: {_first_line(str(exc), flat)}") from None
        used = self._program.variables()
        self._facts = [name for name in used if name in REQUEST_FACTS]
        known = {*REQUEST_FACTS, *self._headers, *self._tiers}
        if unknown := sorted(set(used) - known):
            raise ConditionError(_unknown(unknown[0], REQUEST_FACTS, tiers))
        self._check()

    def holds(self, moment: Moment) -> bool:
        """Whether it holds. A condition that fails while it is evaluated, such as by a division by 0, does not."""
        facts = moment.facts
        values: dict[str, Any] = {name: getattr(facts, name) for name in self._facts}
        for flat, header in self._headers.items():
            values[flat] = moment.header(header)
        for flat, (tier, fact) in self._tiers.items():
            values[flat] = getattr(moment.tier(tier), fact)
        try:
            return self._program.execute(values) is True
        except Exception:  # noqa: BLE001 - the library raises several kinds
            return False

    def _flat_header(self, found: re.Match[str]) -> str:
        if found["text"]:
            return found[0]
        name = (found["a"] or found["b"]).lower()
        flat = "header__" + name.replace("-", "_")
        self._headers[flat] = name
        return flat

    def _flat_tier(self, found: re.Match[str], tiers: Collection[str]) -> str:
        if found["text"]:
            return found[0]
        tier, fact = found["tier"], found["fact"]
        if tier not in tiers:
            return found[0]
        if fact not in TIER_FACTS:
            raise ConditionError(f"a tier has no `{fact}`{_near(fact, TIER_FACTS)}; it has {_listed(TIER_FACTS)}")
        flat = f"{tier}__{fact}"
        self._tiers[flat] = (tier, fact)
        return flat

    def _check(self) -> None:
        """Evaluates it once with the type that each name has; what is never reached is not checked."""
        sample: dict[str, Any] = {name: REQUEST_FACTS[name] for name in self._facts}
        sample |= dict.fromkeys(self._headers, "")
        sample |= {flat: TIER_FACTS[fact] for flat, (_, fact) in self._tiers.items()}
        for value in _SAMPLES:  # zero hides a division by it, and one of two sides of `&&`
            changed = {name: type(old)(value) if isinstance(old, int | float) else old for name, old in sample.items()}
            try:
                result = self._program.execute(changed)
            except TypeError as exc:
                raise ConditionError(f"it compares or adds what does not fit together: {_short(str(exc))}") from None
            except Exception as exc:  # noqa: BLE001 - the library raises several kinds
                if "ndefined" in str(exc):
                    raise ConditionError(f"it calls what there is not: {_short(str(exc))}") from None
                continue
            if not isinstance(result, bool):
                raise ConditionError(f"it must be true or false, and is `{result!r}` for a request without anything")


def _unknown(name: str, facts: Iterable[str], tiers: Collection[str]) -> str:
    there = f"a request has {_listed(facts)}"
    if tiers:
        there += f"; the tiers are {_listed(tiers)}, as in `{next(iter(tiers))}.queue`"
    return f"nothing is called `{name}`{_near(name, [*facts, *tiers])}; {there}"


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f", did you mean `{near[0]}`?" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _short(text: str) -> str:
    return text.split(". ")[0].splitlines()[0][:200]


def _first_line(text: str, expression: str) -> str:
    """The parser's words, without the expression that it repeats."""
    return _short(text.replace(f"Failed to parse expression '{expression}': ", "").replace("ERROR: <input>:", ""))
