"""What is wrong with a config file: every problem with its line, and never a secret."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import TypeVar

import msgspec

T = TypeVar("T")

Path = tuple[str | int, ...]
"""Where a value stands: `("engines", "fast", "url")`, or `("models", "small", 0)` for the first of a list."""

SECRET_KEYS = frozenset({"api_key", "headers", "key", "keys"})
"""Nothing written below one of these keys is repeated in a message."""


class Problem(msgspec.Struct, frozen=True, order=True):
    """One problem. `line` counts from 1; 0 stands for the file as a whole. `path` is dotted, or empty."""

    line: int
    path: str
    message: str


class ConfigError(Exception):
    """The config cannot be used. `problems` holds all that was found, in the order of their lines."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = sorted(problems)
        super().__init__("\n".join(map(self._line, self.problems)))

    def _line(self, problem: Problem) -> str:
        place = f"{self.source}:{problem.line}" if problem.line else self.source
        return ": ".join(part for part in (place, problem.path, problem.message) if part)


class Problems:
    """Gathers the problems of one config."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self._tainted: set[Path] = set()

    def add(self, line: int, path: Path, message: str) -> None:
        self.found.append(Problem(line, dotted(path), message))
        self._tainted.update(path[:end] for end in range(len(path) + 1))

    def none_in(self, path: Path) -> bool:
        """Whether the value at `path` and everything below it is free of problems so far."""
        return path not in self._tainted

    def sound(self, raw: object, kind: type[T], path: Path) -> T | None:
        """The section at `path` without those of its keys that have problems; `None` where it needs them."""
        if not isinstance(raw, dict):
            return None
        sound = {key: value for key, value in raw.items() if self.none_in((*path, key))}
        try:
            return msgspec.convert(sound, kind)
        except msgspec.ValidationError:
            return None  # a required key has the problem


def dotted(path: Path) -> str:
    """`engines.fast.models[0]`. A header's name is left out: a misplaced colon can make a secret part of it."""
    if "headers" in path:
        path = path[: path.index("headers") + 1]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def is_secret(path: Path) -> bool:
    return not SECRET_KEYS.isdisjoint(path)


def nearest(word: str, known: Collection[str]) -> str:
    """`, did you mean ...?` when one of `known` is close to `word`, else nothing."""
    close = get_close_matches(word.lower().replace("-", "_"), known, n=1) or get_close_matches(word, known, n=1)
    return f", did you mean `{close[0]}`?" if close else ""


def listed(names: Iterable[str], last: str = "and") -> str:
    """`` `a`, `b` and `c` ``, for a sentence."""
    *most, final = [f"`{name}`" for name in names] or ["none"]
    return f"{', '.join(most)} {last} {final}" if most else final
