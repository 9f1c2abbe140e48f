"""Conditions: CEL expressions over flat facts, checked when they are loaded, so that none can fail on a request."""

import functools
import re
from collections.abc import Collection
from typing import Any, Protocol

import cel

from gateway.policy.facts import Facts, TierFacts
from gateway.policy.language import OWN, read
from gateway.policy.tokens import ConditionError

__all__ = ["Condition", "ConditionError", "Moment"]

_REMEMBERED = 1024
"""Outcomes of `matches` that are kept: the library compiles a pattern anew each time, in up to milliseconds."""
_LONGEST_REMEMBERED = 256
"""Characters of a text whose outcome is kept, so that clients cannot fill the memory."""
_COPIES = 50
"""A pattern is refused if so many of it are more than the library compiles (10 MB): one would take milliseconds."""

_matching = cel.compile("text.matches(pattern)")


class Moment(Protocol):
    """What a condition is held against."""

    @property
    def facts(self) -> Facts: ...
    def header(self, name: str) -> str:
        """The value of a header, by its name in lower case; empty where it was not sent."""

    def tier(self, name: str) -> TierFacts: ...


class Condition:
    """A condition that has been checked.

    Beside the facts of a request it may use those of a tier, as `small.queue`, and a header of the request, as
    `header("x-team")`, which is empty where it was not sent.

    Args:
        text: as it was written.
        tiers: the names of tiers that it may use.

    Raises:
        ConditionError: it is no CEL, uses what there is not, compares what cannot be compared, or is no yes or no.
    """

    def __init__(self, text: str, tiers: Collection[str]) -> None:
        self.text = text
        read_ = read(text, tiers)
        for literal in read_.patterns:
            _check_pattern(literal)
        self._facts = read_.facts
        self._headers = list(read_.headers.items())
        self._tiers = [(flat, tier, fact) for flat, (tier, fact) in read_.tiers.items()]
        self._functions = {name: _FUNCTIONS[name] for name in read_.calls}
        self._program = _compiled(read_.flat)

    def holds(self, moment: Moment) -> bool:
        """Whether it holds. A condition that fails while it is evaluated, such as by a division by 0, does not."""
        facts = moment.facts
        values: dict[str, Any] = self._functions | {name: getattr(facts, name) for name in self._facts}
        for flat, header in self._headers:
            values[flat] = moment.header(header)
        for flat, tier, fact in self._tiers:
            values[flat] = getattr(moment.tier(tier), fact)
        try:
            return self._program.execute(values) is True
        except Exception:  # noqa: BLE001 - the library raises several kinds
            return False


def _compiled(expression: str) -> cel.Program:
    try:
        return cel.compile(expression)
    except ValueError as exc:
        [_, *found] = re.split(r"ERROR: <input>:\d+:\d+: ", str(exc))
        raise ConditionError(f"not a CEL expression: {found[0].splitlines()[0] if found else exc}") from None


def _check_pattern(literal: str) -> None:
    pattern = _compiled(literal).execute()
    wrong = _wrong_with(pattern)
    if wrong is None and _wrong_with(f"(?:{pattern}\n){{{_COPIES}}}") is not None:
        wrong = "it is too large; repeat less in it"
    if wrong is not None:
        raise ConditionError(f"the pattern {literal} of `matches` cannot be used: {wrong}")


def _wrong_with(pattern: str) -> str | None:
    try:
        _found("", pattern)
    except RuntimeError as exc:
        found = re.search(r"^error: (.*?)\.?(?: Check function arguments.*)?$", str(exc), re.MULTILINE)
        return found[1] if found else "it is too large"
    return None


def _matches(text: str, pattern: str) -> bool:
    """Whether `pattern` is found in `text`, in a time that grows with their lengths alone."""
    return _remembered(text, pattern) if len(text) <= _LONGEST_REMEMBERED else _found(text, pattern)


def _found(text: str, pattern: str) -> bool:
    return _matching.execute({"text": text, "pattern": pattern}) is True


_remembered = functools.lru_cache(_REMEMBERED)(_found)
_FUNCTIONS = {OWN["matches"]: _matches, OWN["size"]: len}
"""`size` is here since the library counts bytes."""
