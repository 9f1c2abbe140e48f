"""What one request to an engine is, and how its answer is read."""

from typing import NamedTuple, Protocol

from gateway.upstream.http import httpx


class Reader(Protocol):
    """Turns an engine's own dialect into OpenAI's while it arrives; one for each answer.

    It raises nothing: what is no answer comes out as an error event, or as bytes that are no JSON.
    """

    content_type: bytes
    """That of the engine's streams."""

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
    """A request, and the reader of its answer where the engine does not speak OpenAI's dialect."""

    request: httpx.Request
    reader: Reader | None = None
