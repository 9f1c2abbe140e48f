"""Whatever is written as a condition: it is refused with its place, or it means what the CEL library says."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import cel
import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.config import policy
from gateway.policy.conditions import Condition, ConditionError
from gateway.policy.facts import REQUEST_FACTS, TIER_FACTS, Facts, TierFacts
from gateway.policy.language import read
from tests.unit.test_conditions import FACTS, LARGE, SMALL, TIERS, Moment, holds, refusal


class TestSize:
    """The library recurses without a limit: what it cannot take never gets there."""

    @pytest.mark.parametrize("count", [21, 101, 1000, 100_000])
    @pytest.mark.parametrize(
        ("before", "middle", "after"),
        [
            ("(", "stream", ")"),
            ("!(", "stream", ")"),
            ("[", "1", "]"),
            ("size([", "1", "])"),
            ("(stream || ", "stream", ")"),
            ("stream ? true : (", "stream", ")"),
            ("[1].exists(x, ", "stream", ")"),
        ],
    )
    def test_what_is_nested_too_deeply_is_refused(self, count: int, before: str, middle: str, after: str) -> None:
        message = refusal(before * count + middle + after * count)
        assert "in one another" in message or "at most 4000 characters" in message

    @pytest.mark.parametrize("count", [100, 1000, 100_000])
    @pytest.mark.parametrize("link", [" + 1", " == 1", "||stream", "&&stream", " * 1", ".queue", "[0]", ".size()"])
    def test_what_is_too_long_is_refused(self, count: int, link: str) -> None:
        assert refusal("small" + link * count)

    @pytest.mark.parametrize(
        "text",
        [
            "(" * 19 + "stream" + ")" * 19,
            "!" * 3000 + "stream",
            "-" * 3000 + "1 == 1",
            " || ".join(["!stream"] * 99) + " || stream",
            "1" + " + 1" * 99 + " == 100",
            'key in ["bob",' + '"nobody",' * 400 + '"alice"]',
            f'key != "{"x" * 3900}"',
        ],
    )
    def test_what_is_large_but_not_too_large_works(self, text: str) -> None:
        assert holds(text)


# Expressions of any form, most of which make no sense

_LEAVES = st.sampled_from(
    [
        *REQUEST_FACTS,
        *(f"{tier}.{fact}" for tier in TIERS for fact in TIER_FACTS),
        *("0", "1", "2", "4000", "9223372036854775807", "0.5", "2.5", "true", "false", '""', '"chat"', "'a'", r'r"\d"'),
        *('header("x-a")', "n", "[1, 2]", '["chat", "a"]', "[]", "nothing", "small"),
    ]
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    marks = st.sampled_from(["||", "&&", "==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%"])
    methods = st.sampled_from(["contains", "startsWith", "endsWith", "size", "lower"])
    macros = st.sampled_from(["exists", "all", "exists_one", "filter", "map"])
    return st.one_of(
        st.tuples(inner, marks, inner).map(" ".join),
        st.tuples(inner, marks, inner).map(lambda p: f"({' '.join(p)})"),
        st.tuples(st.sampled_from("!-"), inner).map("".join),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} ? {p[1]} : {p[2]})"),
        st.tuples(inner, methods, inner).map(lambda p: f"{p[0]}.{p[1]}({p[2]})"),
        st.tuples(inner, macros, inner).map(lambda p: f"{p[0]}.{p[1]}(n, {p[2]})"),
        st.tuples(st.sampled_from(["size", "int", "double", "string"]), inner).map(lambda p: f"{p[0]}({p[1]})"),
        st.lists(inner, max_size=3).map(lambda p: f"[{', '.join(p)}]"),
        inner.map(lambda one: f'{one}.matches("a|(b)")'),
    )


EXPRESSIONS = st.recursive(_LEAVES, _grown, max_leaves=8)


TEXTS = st.text(max_size=40) | st.text("smal.queheadr(\"x')&|!=<>+-*/%?:[],1.5 \\n", max_size=60)
MUTATED = st.tuples(EXPRESSIONS, st.integers(0, 60), st.sampled_from([*"()[]\"'.,&|=<>~{}#@k_5 \\", "is", "null"])).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
)
"""Expressions with something in them that does not belong there."""

_COUNTS = st.integers(0, 2**40)
_WORDS = st.sampled_from(["", "chat", "a", "alice", "grün"]) | st.text(st.characters(codec="utf-8"), max_size=5)
_SECONDS = st.floats(0, 1e6) | st.just(math.inf)
REQUESTS = st.builds(
    Facts,
    model=_WORDS,
    prompt_tokens=_COUNTS,
    max_tokens=_COUNTS,
    images=st.integers(0, 3),
    tools=st.integers(0, 3),
    structured=st.booleans(),
    stream=st.booleans(),
    dialect=st.sampled_from(get_args(policy.Dialect)),
    endpoint=st.sampled_from(get_args(policy.Endpoint)),
    key=_WORDS,
    key_class=st.sampled_from(get_args(policy.Class)),
    app=_WORDS,
    hour=st.integers(0, 23),
)
TIER_STATES = st.builds(
    TierFacts,
    healthy=st.booleans(),
    queue=st.integers(0, 9),
    running=st.integers(0, 9),
    predicted_wait_s=_SECONDS,
    predicted_ttft_s=_SECONDS,
    warm=st.booleans(),
    prefix_hit=st.floats(0, 1),
)


class NotANumber(Exception):
    """Such as of `int("chat")`."""


def evaluated(text: str, values: Mapping[str, Any]) -> Any:
    """What the library makes of an expression by itself."""
    try:
        return cel.evaluate(text, dict(values))
    except RuntimeError as failed:
        if "string parse error" in str(failed):
            raise NotANumber from failed
        raise


def problems_of(text: str) -> Sequence[str]:
    try:
        Condition(text, TIERS)
    except ConditionError as refused:
        return refused.problems
    return ()


def pointed_at(problem: str, text: str) -> bool:
    """Whether a problem tells its place in `text`: it repeats a part of it, is of its end, or of all of it."""
    if re.search(r"at the end|at the beginning|in one another|in a row|at most 4000|is empty", problem):
        return True
    words = " ".join(text.split())
    quoted = [*re.findall(r"`([^`]+)`", problem), *re.findall(r"the pattern (.+) of `matches`", problem)]
    return "`" in text or any(part.removeprefix("...").removesuffix("...") in words for part in quoted)


class TestAnything:
    @settings(deadline=None, max_examples=400)
    @given(EXPRESSIONS, st.sampled_from([FACTS, Facts()]))
    def test_what_is_accepted_has_the_right_types(self, text: str, facts: Facts) -> None:
        """It is true or false, or fails by a number that is none: never by its types, whatever was not looked at."""
        try:
            condition = Condition(text, TIERS)
        except ConditionError:
            return
        assert condition.holds(Moment(facts)) in (True, False)
        expression = read(text, TIERS)
        values: dict[str, Any] = {name: getattr(facts, name) for name in expression.facts}
        values |= dict.fromkeys(expression.headers, "12")
        values |= {flat: getattr(SMALL, fact) for flat, (_, fact) in expression.tiers.items()}
        flat = expression.flat.replace("_matches(", "matches(").replace("_size(", "size(")
        with suppress(ArithmeticError, NotANumber):
            assert isinstance(evaluated(flat, values), bool)

    @settings(deadline=None, max_examples=300)
    @given(st.text(max_size=40) | st.text("smal.queheadr(\"x')&|!=<>+-*/%?:[],1.5 \\n", max_size=60) | EXPRESSIONS)
    def test_whatever_is_written_is_a_condition_or_is_refused(self, text: str) -> None:
        with suppress(ConditionError):
            assert Condition(text, TIERS).holds(Moment()) in (True, False)

    @settings(deadline=None, max_examples=300)
    @given(MUTATED | TEXTS | EXPRESSIONS)
    def test_each_problem_tells_its_place(self, text: str) -> None:
        for problem in problems_of(text):
            assert pointed_at(problem, text), problem
            assert problem.isprintable() or not text.isprintable(), problem
            assert len(problem) < 500, problem

    @settings(deadline=None, max_examples=300)
    @given(MUTATED | TEXTS | EXPRESSIONS)
    def test_the_library_refuses_nothing_that_was_read(self, text: str) -> None:
        """Its own words are not for users, and it does not say where in the condition it means."""
        assert not [problem for problem in problems_of(text) if "not a CEL expression" in problem]

    @settings(deadline=None, max_examples=300)
    @given(EXPRESSIONS, REQUESTS, TIER_STATES, st.text(max_size=5))
    def test_it_means_what_the_library_says(self, text: str, facts: Facts, small: TierFacts, header: str) -> None:
        """Whatever the facts are, it holds where the library says so of the same text with everything as a map."""
        try:
            condition = Condition(text, TIERS)
        except ConditionError:
            return
        assume(".size()" not in text and "size(" not in text)  # the library counts bytes
        plain = text.replace('header("x-a")', "header_x_a")
        values = msgspec.structs.asdict(facts) | {
            "small": msgspec.structs.asdict(small),
            "large": msgspec.structs.asdict(LARGE),
            "header_x_a": header,
        }
        try:
            expected = cel.evaluate(plain, values)
        except Exception:  # noqa: BLE001 - the library raises several kinds, and what it cannot evaluate does not hold
            expected = False
        assert condition.holds(Moment(facts, {"x-a": header}, small)) is (expected is True)
