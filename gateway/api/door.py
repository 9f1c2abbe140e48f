"""What a front door is: one path of one dialect. A new dialect is one file with its doors, and an entry in `DOORS`."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from gateway.errors import GatewayError
from gateway.request import InferenceRequest


class Writer(Protocol):
    """Turns an answer in OpenAI's dialect into the client's while it is relayed; one for each answer."""

    content_type: bytes
    """That of its streams."""

    def feed(self, events: bytes) -> bytes:
        """Takes whole OpenAI events, `[DONE]` excepted, and returns what the client gets for them."""

    def finish(self) -> bytes:
        """What ends a whole stream, in place of `[DONE]`."""

    def whole(self, body: bytes) -> bytes:
        """An answer in one piece."""


class Asked(NamedTuple):
    """A request as engines are given it, and the writer of its answer where the client speaks another dialect.

    `as_chat` makes the same request for engines that do not have its endpoint, and raises what `Door.read` does.
    `failed` takes the place of `Door.error_event` where that depends on what was written before.
    """

    request: InferenceRequest
    writer: Writer | None = None
    as_chat: "Callable[[], Asked] | None" = None
    failed: Callable[[GatewayError], bytes] | None = None


class Door(Protocol):
    """One inference endpoint as clients see it. It knows no HTTP."""

    path: str
    dialect: str
    """`openai`, `anthropic` or `ollama`."""
    breaks_off: bool
    """Whether a stream that failed ends in mid-air, for clients that could take its error for a part of it."""

    def read(self, body: bytes) -> Asked:
        """
        Raises:
            InvalidRequest: the body is no request of this dialect, or asks for what cannot be carried.
        """

    def error_body(self, error: GatewayError) -> bytes:
        """The body of an answer that is an error."""

    def error_event(self, error: GatewayError) -> bytes:
        """What ends a stream that failed after it had begun."""
