"""Keeps stop strings in place of an engine that does not."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.translate.chat import Json

Entry = dict[str, Json]
"""The log probability of one token, in OpenAI's form."""


class Text(NamedTuple):
    """Some text, with the log probabilities of its tokens if they were asked for."""

    text: str
    logprobs: list[Entry]


class StopFilter:
    """Ends a text before the one of `stops` that is complete first, and holds back what may be the beginning of one.

    Log probabilities go with the text that they belong to.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = False
        self._stops = stops
        self._held: list[Text] = []

    def take(self, given: Text) -> Text:
        """What may go on."""
        if not self._stops:
            return given
        self._held.append(given)
        held = "".join(one.text for one in self._held)
        places = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        self.found = bool(places)
        return self._release(min(places)[1] if places else len(held) - _begun(held, self._stops))

    def rest(self) -> Text:
        """What was held back, once no stop string can come of it any more."""
        return joined(self._held)

    def _release(self, end: int) -> Text:
        """Lets the first `end` characters go."""
        free, kept = list[Text](), list[Text]()
        for one in self._held:
            if end >= len(one.text):
                free.append(one)
            elif end > 0:
                free.append(Text(one.text[:end], _entries_before(end, one.logprobs)))
                kept.append(Text(one.text[end:], []))
            else:
                kept.append(one)
            end -= len(one.text)
        self._held = kept
        return joined(free)


def joined(pieces: Iterable[Text]) -> Text:
    """All of `pieces` as one."""
    pieces = list(pieces)
    return Text("".join(one.text for one in pieces), [entry for one in pieces for entry in one.logprobs])


def _begun(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    sizes = (size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size]))
    return max(sizes, default=0)


def _entries_before(end: int, entries: list[Entry]) -> list[Entry]:
    """Those of the tokens that begin before the character `end`."""
    kept, at = list[Entry](), 0
    for entry in entries:
        if at >= end:
            break
        kept.append(entry)
        at += len(str(entry.get("token", "")))
    return kept
