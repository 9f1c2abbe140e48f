"""What one request to an engine is, and how its answer is read."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from gateway.upstream.facts import EngineReport
from gateway.upstream.http import httpx


class Reader(Protocol):
    """Turns an engine's own dialect into OpenAI's while it arrives; one for each answer.

    It raises nothing: what is no answer comes out as an error event, or as bytes that are no JSON.
    """

    content_type: bytes
    """That of the engine's streams."""
    report: EngineReport
    """What the engine says of its work in a way that OpenAI's dialect has no place for, as far as it is read."""

    def head(self, headers: Mapping[bytes, bytes]) -> None:
        """Takes the reply's headers, their names in lower case, before its body."""

    def feed(self, data: bytes) -> bytes:
        """Takes one read of a stream and returns whole events in OpenAI's dialect, or nothing yet."""

    def flush(self) -> bytes:
        """Takes the end of a stream."""

    def whole(self, body: bytes) -> bytes:
        """Takes an answer in one piece.

        Raises:
            ValueError: it is no answer.
        """


class Call(NamedTuple):
    """A request, and how its answer is read.

    `reader` is there where the engine does not speak the dialect of the request. `hides_progress` says that the
    engine was asked for events about its prefill which the client did not ask for.
    """

    request: httpx.Request
    reader: Reader | None = None
    hides_progress: bool = False
