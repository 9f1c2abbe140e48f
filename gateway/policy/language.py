"""The language of conditions: reads one, and says all in it that does not fit.

It is CEL (https://github.com/google/cel-spec/blob/master/doc/langdef.md) as far as facts can use it: without maps,
messages, bytes and times. It is read here although a library evaluates it, since the library knows types only when it
evaluates: a mistake behind an `&&` would stay hidden until a request comes that far, and one in an `==` for ever.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.config.problems import listed, nearest
from gateway.policy import kinds
from gateway.policy.facts import REQUEST_FACTS, TIER_FACTS
from gateway.policy.kinds import FRACTION, FUNCTIONS, LIST, TEXT, TRUTH, UNKNOWN, WHOLE, Kind, Part
from gateway.policy.tokens import INSTEAD, RESERVED, ConditionError, Token, scan, shortened, unexpected

OWN = {"matches": "_matches", "size": "_size"}
"""Functions of the gateway's own by those in whose place they are, and which the library has slow or wrong."""

_LONGEST = 4000
"""Characters of a condition."""
_DEEPEST = 20
"""Parentheses in one another: the library's recursion knows no limit, and ends the process."""
_MOST_LINKS = 100
"""Operators of one kind in a row, for the same reason."""
_LARGEST = 2**63 - 1
_HEADER = re.compile(r"""["']([!#$%&*+.^_|~0-9A-Za-z-]+)["']""")
_TESTS = ("contains", "startsWith", "endsWith", "matches")
_MACROS: Mapping[str, Callable[[Kind, Kind], Kind]] = {
    "exists": lambda _whole, _result: TRUTH,
    "all": lambda _whole, _result: TRUTH,
    "exists_one": lambda _whole, _result: TRUTH,
    "filter": lambda whole, _result: whole,
    "map": lambda _whole, result: kinds.of_list([result.anything()]),
}
"""What each gives, by the types of the list and of what is said of its items."""


class Expression(NamedTuple):
    """A condition as the library gets it: flat, which costs microseconds where a nested value costs tens of them.

    Attributes:
        flat: its text.
        facts: the facts of the request that it uses.
        headers: by their names in `flat`, those of headers, in lower case.
        tiers: by their names in `flat`, facts of tiers: a tier and a fact.
        calls: those of the gateway's own functions that it uses.
        patterns: regular expressions, as they are written: CEL literals.
    """

    flat: str
    facts: Collection[str]
    headers: Mapping[str, str]
    tiers: Mapping[str, tuple[str, str]]
    calls: Collection[str]
    patterns: Sequence[str]


def read(text: str, tiers: Collection[str]) -> Expression:
    """Reads a condition that may use facts of `tiers`. Raises ConditionError with every problem found."""
    if len(text) > _LONGEST:
        raise ConditionError(f"a condition has at most {_LONGEST} characters, this one has {len(text)}")
    reader = _Reader(text, tiers)
    reader.whole()
    if reader.problems:
        raise ConditionError(*reader.problems)
    headers = {flat: name for name, flat in reader.headers.items()}
    facts = {flat: fact for fact, flat in reader.tier_facts.items()}
    return Expression(reader.flat(), tuple(reader.facts), headers, facts, reader.calls, reader.patterns)


class _Reader:
    """Reads words from left to right, each level of the grammar by a method that gives the type of what it has read."""

    def __init__(self, text: str, tiers: Collection[str]) -> None:
        self.problems: dict[str, None] = {}
        self.facts: dict[str, None] = {}
        self.headers: dict[str, str] = {}
        self.tier_facts: dict[tuple[str, str], str] = {}
        self.calls: set[str] = set()
        self.patterns: list[str] = []
        self._text = text
        self._tiers = tiers
        self._tokens = scan(text)
        self._at = 0
        self._depth = 0
        self._items: dict[str, Kind] = {}
        """Names that macros give to a list's items."""
        self._changes: list[tuple[int, int, str]] = []

    def flat(self) -> str:
        """The text with the changes made."""
        pieces, done = [], 0
        for start, end, new in sorted(self._changes):
            pieces += [self._text[done:start], new]
            done = end
        return "".join([*pieces, self._text[done:]])

    def whole(self) -> None:
        if self._next.kind == "end":
            raise ConditionError("the condition is empty; leave `when` out for every request")
        part = self._choice()
        if self._next.kind != "end":
            raise unexpected(self._text, self._next)
        self._note(kinds.must(part, (TRUTH,), "a condition must be true or false"))

    # The grammar, from what binds least to what binds most

    def _choice(self) -> Part:
        start = self._next.start
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConditionError(f"more than {_DEEPEST} parentheses or brackets in one another")
        part = self._either()
        if self._take("?"):
            self._note(kinds.must(part, (TRUTH,), "what stands before `?` must be true or false"))
            yes = self._either()
            self._expect(":")
            no = self._choice()
            fits = self._note(kinds.alike(yes, no, "both sides of `:` must be of one kind"))
            part = self._part(yes.kind.anything() if fits else UNKNOWN, start)
        self._depth -= 1
        return part

    def _either(self) -> Part:
        return self._chain(("||",), self._both, kinds.logic, TRUTH)

    def _both(self) -> Part:
        return self._chain(("&&",), self._relation, kinds.logic, TRUTH)

    def _relation(self) -> Part:
        return self._chain(("==", "!=", *kinds.ORDER, "in"), self._sum, kinds.compared, TRUTH)

    def _sum(self) -> Part:
        return self._chain(("+", "-"), self._product, kinds.calculated)

    def _product(self) -> Part:
        return self._chain(("*", "/", "%"), self._signed, kinds.calculated)

    def _chain(
        self,
        marks: Collection[str],
        read: Callable[[], Part],
        wrong: Callable[[str, Part, Part], Iterator[str]],
        result: Kind | None = None,
    ) -> Part:
        """Parts with operators between them; `result` is their type, else that of the first."""
        start = self._next.start
        left = read()
        for _ in range(_MOST_LINKS):
            mark = self._take(*marks)
            if mark is None:
                return left
            right = read()
            fits = self._note(wrong(mark.text, left, right)) and right.kind is not UNKNOWN
            left = self._part(result or (left.kind.anything() if fits else UNKNOWN), start)
        raise ConditionError(f"more than {_MOST_LINKS} parts in a row; `in [...]` looks for one of many texts")

    def _signed(self) -> Part:
        mark = self._take("!", "-")
        if mark is None:
            return self._member()
        while self._take(mark.text):
            pass
        part = self._member()
        if mark.text == "!":
            self._note(kinds.must(part, (TRUTH,), "what stands behind `!` must be true or false"))
            return self._part(TRUTH, mark.start)
        fits = self._note(kinds.must(part, (WHOLE, FRACTION), "what stands behind `-` must be a number"))
        return self._part(part.kind if fits else UNKNOWN, mark.start)

    def _member(self) -> Part:
        start = self._next.start
        part = self._single()
        while self._take("."):
            name = self._name()
            if self._take("("):
                kind = self._method(part, name)
            else:
                kind = self._wrong(*kinds.must(part, (), f"`.{name.text}` belongs to a tier"))
            part = self._part(kind, start)
        return part

    def _single(self) -> Part:
        token = self._next
        self._at += 1
        match token.kind, token.text:
            case "whole", _:
                kind = WHOLE if int(token.text) <= _LARGEST else self._too_large(token)
            case "fraction", _:
                kind = FRACTION if math.isfinite(float(token.text)) else self._too_large(token)
            case "text", literal:
                kind = TEXT._replace(values=(literal.lstrip("rR")[1:-1],))
            case "name", _:
                kind = self._named(token)
            case _, "(":
                kind = self._choice().kind
                self._expect(")")
            case _, "[":
                kind = self._list()
            case _:
                raise unexpected(self._text, token)
        return self._part(kind, token.start)

    def _list(self) -> Kind:
        items = self._until("]")
        known = [item for item in items if item.kind is not UNKNOWN]
        for item in known[1:]:
            if not self._note(kinds.alike(known[0], item, "a list holds what is of one kind")):
                return kinds.of_list([])
        return kinds.of_list([item.kind for item in known])

    def _until(self, end: str) -> list[Part]:
        parts: list[Part] = []
        while not self._take(end):
            if parts:
                self._expect(",", end)
                if end == "]" and self._take(end):
                    break
            parts.append(self._choice())
        return parts

    # Names

    def _named(self, token: Token) -> Kind:
        name = token.text
        if name in ("true", "false"):
            return TRUTH
        if name == "header":
            return self._header(token)
        if self._take("("):
            return self._function(token)
        if name in self._items:
            return self._items[name]
        if name in REQUEST_FACTS:
            self.facts[name] = None
            return kinds.of_fact(name, REQUEST_FACTS)
        if self._dotted or (name in self._tiers and self._next.text == "."):
            self._at += 1
            return self._tier_fact(token, self._name())
        if name in INSTEAD:
            raise unexpected(self._text, token)
        if name in self._tiers:
            return self._wrong(f"`{name}` is a tier: say which fact of it, as in `{name}.queue`")
        first = next(iter(self._tiers), "TIER")
        if name in TIER_FACTS:
            return self._wrong(f"`{name}` is of a tier: say of which one, as in `{first}.{name}`")
        near = nearest(name, [*REQUEST_FACTS, *self._items, *self._tiers])
        there = f"a request has {listed(REQUEST_FACTS)}, and tiers have {listed(TIER_FACTS)}, as in `{first}.queue`"
        return self._wrong(f"nothing is called `{name}`{near or f'; a text needs quotes; {there}'}")

    def _tier_fact(self, tier: Token, fact: Token) -> Kind:
        if tier.text not in self._tiers and fact.text in REQUEST_FACTS:
            return self._wrong(f"`{tier.text}.{fact.text}` is written `{fact.text}` alone")
        if tier.text not in self._tiers:
            near = nearest(tier.text, self._tiers) or f"; the tiers are {listed(self._tiers)}"
            return self._wrong(f"no tier is named `{tier.text}`{near}")
        if fact.text not in TIER_FACTS:
            near = nearest(fact.text, TIER_FACTS) or f"; it has {listed(TIER_FACTS)}"
            return self._wrong(f"a tier has no `{fact.text}`{near}")
        flat = self.tier_facts.setdefault((tier.text, fact.text), f"_tier{len(self.tier_facts)}")
        self._changes.append((tier.start, fact.end, flat))
        return kinds.of_fact(fact.text, TIER_FACTS)

    def _header(self, token: Token) -> Kind:
        opened, name, closed, *_ = *self._tokens[self._at :], self._tokens[-1], self._tokens[-1]
        written = _HEADER.fullmatch(name.text)
        if opened.text != "(" or written is None or closed.text != ")":
            raise ConditionError('a header is written `header("x-team")`: one name, in quotes')
        self._at += 3
        flat = self.headers.setdefault(written[1].lower(), f"_header{len(self.headers)}")
        self._changes.append((token.start, self._end, flat))
        return TEXT

    # Calls

    def _function(self, token: Token) -> Kind:
        name = token.text
        parts = self._until(")")
        if name in _TESTS:
            return self._wrong(f'`{name}` comes behind a text, as in `model.{name}("x")`')
        if name in INSTEAD:
            raise unexpected(self._text, token)
        if name not in FUNCTIONS:
            there = [*FUNCTIONS, "header"]
            return self._wrong(f"there is no function `{name}`{nearest(name, there) or f'; there are {listed(there)}'}")
        gives, takes = FUNCTIONS[name]
        if len(parts) != 1:
            return self._wrong(f"`{name}` takes one value, not {len(parts)}")
        words = " or ".join(kind.words for kind in takes)
        self._note(kinds.must(parts[0], takes, f"`{name}` takes {words}"))
        if name == "size" and parts[0].kind.same(TEXT):
            self._own(token)
        return gives

    def _method(self, part: Part, name: Token) -> Kind:
        is_list = part.kind.same(LIST)
        if is_list and name.text in _MACROS:
            return self._macro(part.kind, name.text)
        parts = self._until(")")
        if name.text == "size" and not parts and (is_list or part.kind.same(TEXT)):
            if not is_list:
                self._own(name)
            return WHOLE
        there = (*_MACROS, "size") if is_list else (*_TESTS, "size") if part.kind.same(TEXT) else ()
        if name.text not in there:
            near = nearest(name.text, there) or (f"; it has {listed(there)}" if there else "")
            return self._wrong(
                *(f"{wrong}{near}" for wrong in kinds.must(part, (), f"there is no `.{name.text}(...)`"))
            )
        if name.text == "size" or len(parts) != 1 or not (parts[0].kind.same(TEXT) or parts[0].kind is UNKNOWN):
            return self._wrong(f"`{name.text}` takes {'nothing' if name.text == 'size' else 'one text'}")
        if name.text == "matches":
            self._pattern(name)
        return TRUTH

    def _pattern(self, name: Token) -> None:
        before, pattern = self._tokens[self._at - 3 : self._at - 1]
        if before.text != "(" or pattern.kind != "text":
            self._wrong("the pattern of `matches` must be one text in quotes, so that it can be checked")
        self.patterns.append(pattern.text)
        self._own(name)

    def _own(self, name: Token) -> None:
        self.calls.add(OWN[name.text])
        self._changes.append((name.start, name.end, OWN[name.text]))

    def _macro(self, whole: Kind, macro: str) -> Kind:
        item = self._name()
        self._expect(",")
        taken = {*REQUEST_FACTS, *self._tiers, *self._items, *RESERVED}
        if item.text in taken or item.text.startswith("_"):
            self._wrong(f"`{item.text}` cannot be the name of a list's items: it means something else")
        outside = self._items
        self._items = outside | {item.text: (whole.item or UNKNOWN).anything()}
        part = self._choice()
        self._items = outside
        self._expect(")")
        if macro != "map":
            self._note(kinds.must(part, (TRUTH,), f"what `{macro}` says of an item must be true or false"))
        return _MACROS[macro](whole, part.kind)

    # Problems

    def _note(self, wrong: Iterable[str]) -> bool:
        """Keeps what is wrong, and says whether nothing is."""
        found = dict.fromkeys(wrong)
        self.problems |= found
        return not found

    def _wrong(self, *problems: str) -> Kind:
        self._note(problems)
        return UNKNOWN

    def _too_large(self, number: Token) -> Kind:
        return self._wrong(f"`{shortened(number.text)}` is too large a number")

    # Words

    @property
    def _dotted(self) -> bool:
        """Whether a dot and a name come next, and no method."""
        words = [token.text for token in self._tokens[self._at : self._at + 3]]
        return words[0] == "." and words[2:] != ["("]

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    @property
    def _end(self) -> int:
        """Of what has been read."""
        return self._tokens[self._at - 1].end

    def _part(self, kind: Kind, start: int) -> Part:
        return Part(kind, self._text[start : self._end])

    def _take(self, *marks: str) -> Token | None:
        token = self._next
        if token.text not in marks or token.kind not in ("mark", "name"):
            return None
        self._at += 1
        return token

    def _expect(self, *marks: str) -> None:
        if not self._take(*marks[:1]):
            raise unexpected(self._text, self._next, *marks)

    def _name(self) -> Token:
        token = self._next
        if token.kind != "name":
            raise unexpected(self._text, token)
        self._at += 1
        return token
