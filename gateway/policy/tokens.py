"""The words of a condition: names, numbers, texts and marks, with their places in it."""

import re
import sys
from typing import NamedTuple

from gateway.config.problems import listed


class ConditionError(Exception):
    """A condition that cannot be used. `problems` says all that is wrong with it, and what there is."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Token(NamedTuple):
    """A word from `start` to `end` of a condition. `kind` is the name of a group of `_WORD`, or `end`."""

    kind: str
    text: str
    start: int
    end: int


_ESCAPE = r"""\\(?:[abfnrtv\\?"'`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""
_WORD = re.compile(
    rf"""(?P<space>\s+)
    | (?P<fraction>(?:\d+\.\d+|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?)
    | (?P<whole>\d+)
    | (?P<text>[rR](?:"[^"\n]*"|'[^'\n]*') | "(?:[^"\\\n]|{_ESCAPE})*" | '(?:[^'\\\n]|{_ESCAPE})*')
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>===|=~|=>|<>|&&|\|\||[=!<>]=|[-+*/%!<>?:.,()\[\]])""",
    re.VERBOSE | re.ASCII,
)
_LONGEST_QUOTE = 60
"""Characters of a condition that a message repeats."""
_QUOTED = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")

INSTEAD = {
    **dict.fromkeys(("=", "===", "is"), "`==` compares"),
    "<>": "`!=` is the word for not equal",
    "=>": "`>=` is the word for at least",
    **dict.fromkeys(("=~", "~"), 'a pattern is written `model.matches("x")`'),
    "&": "`&&` is the word for and",
    "and": "`&&` is the word for and",
    "|": "`||` is the word for or",
    "or": "`||` is the word for or",
    "not": "`!` is the word for not",
    **dict.fromkeys(("True", "False"), "`true` and `false` are in small letters"),
    **dict.fromkeys(("yes", "no"), "`true` and `false` are the words for it"),
    **dict.fromkeys(("null", "None"), "what was not sent is an empty text or 0"),
    "between": "it is written `hour >= 9 && hour < 17`",
    "headers": 'a header is written `header("x-team")`',
    "[": 'a fact of a tier is written `small.queue`, a header `header("x-team")`',
    "#": "a comment stands behind the whole value",
    **dict.fromkeys(("contains", "startsWith", "endsWith"), 'such a word is written `model.contains("x")`'),
    **dict.fromkeys("`\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}", "a text is in plain quotes"),
}
"""What people write who know another language."""


RESERVED = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
        *("namespace", "null", "package", "return", "true", "var", "void", "while"),
    )
)
"""Words that are no names in CEL."""


def scan(text: str) -> list[Token]:
    """The words of `text`, and an empty one of the kind `end`. Raises ConditionError at what is none."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        found = _WORD.match(text, at)
        if found is None:
            raise ConditionError(_unreadable(text, at))
        if found.lastgroup == "text" and found[0][0] not in "rR":
            _check_characters(found[0])
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), found[0], at, found.end()))
        at = found.end()
    return [*tokens, Token("end", "", at, at)]


def _check_characters(literal: str) -> None:
    """Raises ConditionError at an escape whose number is that of no character."""
    for escape in re.findall(r"\\.[0-9a-fA-F]*", literal):
        code = int(escape[2:10] if escape[1] == "U" else escape[2:6], 16) if escape[1] in "uU" else 0
        if 0xD800 <= code < 0xE000 or code > sys.maxunicode:
            raise ConditionError(f"`{escape}` is no character")


def unexpected(text: str, token: Token, *expected: str) -> ConditionError:
    """The error for a word of `text` where it cannot stand, but one of `expected` can."""
    but = f"; expected {listed(expected, 'or')}" if expected else ""
    if token.kind == "end":
        return ConditionError(f"something is missing at the end{but}")
    hint = f"; {INSTEAD[token.text]}" if token.text in INSTEAD else but
    if text[: token.start][-1:].isdigit() and (token.kind == "name" or text[token.end : token.end + 1].isdigit()):
        hint = "; a number has no unit and no separators, as in `2000`"
    before = shortened(text[: token.start], at_end=False)
    place = f"after `{before}`" if before else "at the beginning"
    return ConditionError(f"`{token.text}` is not expected {place}{hint}")


def shortened(text: str, *, at_end: bool = True) -> str:
    """A part of a condition as a message may repeat it, on one line and cut off at its end or its beginning."""
    words = " ".join(text.split())
    if len(words) <= _LONGEST_QUOTE:
        return words
    return f"{words[: _LONGEST_QUOTE - 3]}..." if at_end else f"...{words[3 - _LONGEST_QUOTE :]}"


def _unreadable(text: str, at: int) -> str:
    if text[at] not in "\"'":
        return str(unexpected(text, Token("mark", text[at], at, at + 1)))
    quoted = _QUOTED.match(text, at)
    if quoted is None:
        return f"a quote is not closed: `{shortened(text[at:])}`"
    [escape, *_] = [found for found in re.findall(r"\\.", quoted[0]) if not re.match(_ESCAPE, found)]
    return f"`{escape}` means nothing in a text; write `\\{escape}`, or an `r` before the quotes"
