"""The words of a condition: names, numbers, texts and marks, with their places in it."""

import re
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
    | (?P<mark>&&|\|\||[=!<>]=|[-+*/%!<>?:.,()\[\]])""",
    re.VERBOSE | re.ASCII,
)
_QUOTED = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")

INSTEAD = {
    "=": "`==` compares",
    "is": "`==` compares",
    "&": "`&&` is the word for and",
    "and": "`&&` is the word for and",
    "|": "`||` is the word for or",
    "or": "`||` is the word for or",
    "not": "`!` is the word for not",
    **dict.fromkeys(("True", "False"), "`true` and `false` are in small letters"),
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
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), found[0], at, found.end()))
        at = found.end()
    return [*tokens, Token("end", "", at, at)]


def unexpected(token: Token, *expected: str) -> ConditionError:
    """The error for a word where it cannot stand, but one of `expected` can."""
    but = f"; expected {listed(expected, 'or')}" if expected else ""
    if token.kind == "end":
        return ConditionError(f"something is missing at the end{but}")
    hint = f"; {INSTEAD[token.text]}" if token.text in INSTEAD else but
    return ConditionError(f"`{token.text}` is not expected here{hint}")


def _unreadable(text: str, at: int) -> str:
    if text[at] not in "\"'":
        return str(unexpected(Token("mark", text[at], at, at)))
    quoted = _QUOTED.match(text, at)
    if quoted is None:
        return "a quote is not closed"
    [escape, *_] = [found for found in re.findall(r"\\.", quoted[0]) if not re.match(_ESCAPE, found)]
    return f"`{escape}` means nothing in a text; write `\\{escape}`, or an `r` before the quotes"
