"""Reads an event stream while it is relayed: which bytes may go on, and what they say.

Bytes are taken as they come and given back unchanged, cut only between events, so that a client never holds half of
one. The format is that of https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. What
the events of a dialect say is for the subclasses.
"""

import json
import re
from typing import ClassVar

from gateway.upstream.facts import EngineReport

_LINE_END = re.compile(rb"\r\n|\r|\n")
_EVENT_END = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r(?!\n)|\n)")
_BOM = b"\xef\xbb\xbf"


class EventScanner:
    """The facts of one stream, kept up to date by `feed`.

    Args:
        choices: how many choices were asked for.
        max_event_bytes: a larger event is an error.

    Attributes:
        output: whether the last `feed` brought text, reasoning or a tool call.
        started: whether any output came yet.
        events: events with output so far.
        dropped: events left out because they were not JSON objects.
        done: the end mark's own bytes, once it came; whatever follows it is ignored.
        error: the payload of an error event, once one came; whatever follows it is ignored.
        report: token counts and times that the engine told.
        last: the payload of the latest event that went on, for `cut_short`.
        finish_reason: why the answer ended, in the dialect's own words; of several choices, that which ended last.
        hides_progress: events that only tell how far prefill is are read and do not go on: the client asked for none.
        prefilling: seconds that the engine had been at work on the prompt when it first told of its progress.
        progress: tokens of the prompt that it has processed, and all, when it last told.
    """

    END: ClassVar[bytes]
    """The end mark, for engines that leave it out after a whole answer."""

    def __init__(self, choices: int = 1, max_event_bytes: int = 64 * 1024 * 1024) -> None:
        self.output = False
        self.started = False
        self.events = 0
        self.dropped = 0
        self.done = b""
        self.error = b""
        self.too_large = False
        self.report = EngineReport()
        self.finish_reason: str | None = None
        self.last = b""
        self.hides_progress = False
        self.prefilling: float | None = None
        self.progress: tuple[int, int] | None = None
        self._choices = choices
        self._max_event_bytes = max_event_bytes
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._first = True
        self._last_byte = b""

    # What a dialect says for itself

    @property
    def whole(self) -> bool:
        """Whether the answer is complete: nothing but its end mark may be missing."""
        raise NotImplementedError

    def _event(self, payload: bytes, source: bytes) -> bool:
        """Notes what an event's payload says, and returns whether the event goes on.

        Args:
            source: the event's own bytes, with or without the blank line that ends it.
        """
        raise NotImplementedError

    def cut_short(self) -> bytes:
        """Events that end an unfinished answer as if it had reached its limit; nothing where the dialect has none."""
        return b""

    # Framing

    def feed(self, data: bytes) -> bytes:
        """Takes one read and returns the events that are complete, byte for byte."""
        self.output = False
        if self.done or self.error:
            return b""
        block = self._complete(data)
        return self._scan(block) if block else b""

    def flush(self) -> bytes:
        """Takes the end of the stream: a last event that lacks only its blank line counts as complete."""
        self.output = False
        if self.done or self.error:
            return b""
        block, self._tail, self._tail_size = b"".join(self._tail), [], 0
        return self._scan(block + b"\n\n") if block.strip() else block

    def _complete(self, data: bytes) -> bytes:
        """Cuts what is held and `data` after the last blank line, and holds the rest."""
        if not self._tail and data.endswith(b"\n\n") and b"\r" not in data:
            return data
        window = self._last_byte + data  # what is held has no blank line: a long event in pieces is searched but once
        end = _last_event_end(window) - len(self._last_byte)
        block = b""
        if end > 0:
            block = b"".join([*self._tail, data[:end]])
            self._tail, self._tail_size, data = [], 0, data[end:]
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
        self._last_byte = data[-1:]
        self.too_large = self._tail_size > self._max_event_bytes
        return block

    def _scan(self, block: bytes) -> bytes:
        """Reads the events of `block`, and returns it without those that are dropped or come too late."""
        if self._first:
            self._first = False
            if block.startswith(_BOM):
                return _BOM + self._scan(block[len(_BOM) :])
        if b"\r" in block:
            return self._scan_slow(block)
        kept: list[bytes] | None = None
        parts = block.split(b"\n\n")
        for at, part in enumerate(parts):
            if not part:
                continue
            if part.startswith(b"data: ") and b"\n" not in part:
                keep = self._event(part[6:], part)
            else:
                keep = self._fields(part)
            if keep:
                if kept is not None:
                    kept.append(part)
                continue
            if kept is None:
                kept = parts[:at]
            if self.done or self.error:
                break
        if kept is None:
            return block
        return b"".join(part + b"\n\n" for part in kept if part)

    def _scan_slow(self, block: bytes) -> bytes:
        """As `_scan`, for any of the three line ends."""
        kept: list[bytes] = []
        start = 0
        while start < len(block):
            found = _EVENT_END.search(block, start)
            end = found.end() if found else len(block)
            part = block[start:end]
            if self._fields(part):
                kept.append(part)
            elif self.done or self.error:
                break
            start = end
        return b"".join(kept)

    def _fields(self, part: bytes) -> bool:
        """Reads one event of any form; comments and unknown fields count for nothing."""
        data: list[bytes] = []
        name = b""
        for line in _LINE_END.split(part):
            field, colon, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
            elif field == b"error" and colon:  # as old llama.cpp servers report a failure
                data, name = [value], b"error"
                break
        if not data or data == [b""]:
            return not data
        payload = b"\n".join(data)
        if name == b"error":
            self.error = payload
            return False
        return self._event(payload, part)

    def _unread(self, payload: bytes) -> bool:
        """Takes an event of odd types: it goes on if it is a JSON object at all, and tells nothing here."""
        try:
            known = isinstance(json.loads(payload), dict)
        except (ValueError, RecursionError):
            known = False
        self.dropped += not known
        return known

    def _end(self, source: bytes) -> None:
        """Takes the end mark, completed where its blank line is only implied."""
        self.done = source if source.endswith((b"\n", b"\r")) else source + b"\n\n"
        if self.done.endswith(b"\n\r"):  # the other half of this CRLF comes with a later read, if at all
            self.done += b"\n"


def _last_event_end(block: bytes) -> int:
    """The offset after the last blank line, or 0."""
    if b"\r" not in block:
        at = block.rfind(b"\n\n")
        return at + 2 if at >= 0 else 0
    end = 0
    for found in _EVENT_END.finditer(block):
        end = found.end()
    return end
