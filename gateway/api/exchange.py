"""One HTTP request and its answer, as an ASGI server carries them."""

import asyncio
import itertools
import os
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from gateway.errors import InvalidRequest
from gateway.guard import Guard

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
HeaderList = Sequence[tuple[bytes, bytes]]

CONNECTION = "sluice.connection"
"""The ASGI extension under which our own server passes a `Connection`."""

_PROCESS = f"req_{os.urandom(8).hex()}"
_numbers = itertools.count()
_SAFE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Connection(Protocol):
    """A client's connection, as our own server shows it."""

    on_lost: Callable[[], None] | None
    """Called when the client closes it."""

    def read_on(self) -> None:
        """Reads again if a large body had reading stopped: a client's leaving is only seen by reading."""

    def write_now(self, data: bytes) -> bool:
        """Writes a part of the body under way, unless the connection must be waited for: then `False`."""

    def abort(self) -> None:
        """Closes it at once, whatever is still to be sent."""

    def hang_up(self) -> None:
        """Closes it in the middle of an answer, once all that was written has gone."""


class ClientGone(Exception):
    """The client closed its connection before it had sent its request or got its answer."""


class Exchange:
    """Reads the request's body, writes the answer, and watches for the client's leaving in between.

    Attributes:
        request_id: the client's `X-Request-Id` when it is harmless to repeat, else a new one.
        head_sent: whether the answer's head was sent, after which its status is fixed.
        started: whether the answer itself has begun, and not only comments that keep the connection open.
        finishing: whether the last part of the answer is being sent, or was.
        finished: whether the client's connection has taken it.
        on_start: called once when the answer itself begins.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers = dict(self.raw_headers)
        asked = self.headers.get(b"x-request-id")
        self.request_id = (
            asked.decode() if asked is not None and _SAFE_ID.fullmatch(asked) else f"{_PROCESS}{next(_numbers):08x}"
        )
        self.status = 0
        self.head_sent = False
        self.started = False
        self.finishing = False
        self.finished = False
        self.on_start: Callable[[], None] | None = None
        self._receive = receive
        self._send = send
        self._connection: Connection | None = scope.get("extensions", {}).get(CONNECTION, {}).get("connection")

    async def read_body(self, guard: Guard, max_bytes: int, pause: float) -> bytes:
        """The whole body.

        Args:
            guard: gets the limit `body` while the client is waited for.
            max_bytes: a larger body is refused, unread where its length was announced.
            pause: the longest wait for the next piece, in seconds.

        Raises:
            InvalidRequest: the body is too large (413) or compressed (415).
            ClientGone: the client left before it had sent everything.
        """
        encoding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b""):
            raise InvalidRequest(
                "The request body is compressed: send it without Content-Encoding.",
                status=415,
                code="unsupported_encoding",
            )
        if int(self.headers.get(b"content-length", b"0")) > max_bytes:
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        size = 0
        while True:
            guard.until("body", time.perf_counter() + pause)
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > max_bytes:
                raise _too_large(max_bytes)
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def watch(self, guard: Guard) -> "_Watch":
        """An `async with` block that `guard` cancels when the client leaves."""
        return _Watch(self, self._connection, self._receive, guard)

    async def start(self, status: int, headers: HeaderList) -> None:
        """Begins the answer. Where a comment came before it, its head has gone with that."""
        self.started = True
        if self.on_start is not None:
            self.on_start()
        if not self.head_sent:
            await self._send_head(status, headers)

    async def _send_head(self, status: int, headers: HeaderList) -> None:
        self.head_sent = True
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*self._id_headers(), *headers],
            }
        )

    def write_now(self, data: bytes) -> bool:
        """Writes without waiting, where that can be done; `False` says to `write` instead."""
        return self._connection is not None and self._connection.write_now(data)

    def _id_headers(self) -> list[tuple[bytes, bytes]]:
        """Anthropic's libraries look for the id under a name of their own."""
        request_id = self.request_id.encode()
        named = [(b"request-id", request_id)] if b"anthropic-version" in self.headers else []
        return [(b"x-request-id", request_id), *named]

    async def comment(self, text: str) -> None:
        """Keeps the connection of a client that waits for a stream of events open."""
        if not self.head_sent:
            headers = [
                (b"content-type", b"text/event-stream"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ]
            await self._send_head(200, headers)
        await self.write(b": " + text.encode() + b"\n\n")

    async def write(self, data: bytes) -> None:
        """Returns when the client's connection can take more."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        self.finishing = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self.finished = True

    async def break_off(self, data: bytes) -> None:
        """Ends an answer in mid-air after `data`, so that nobody can take it for whole."""
        if self._connection is None:
            await self.finish(data)
        else:
            await self.write(data)
            self.finishing = self.finished = True
            self._connection.hang_up()

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """A whole answer at once."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.finish(body)

    def abort(self) -> None:
        """Cuts the client's connection, whatever of the answer is still to be sent."""
        self.finishing = self.finished = True
        if self._connection is not None:
            self._connection.abort()


class _Watch:
    """Hears from our own server when the client leaves; of any other it asks, in a task that ends with the block."""

    def __init__(self, exchange: Exchange, connection: Connection | None, receive: Receive, guard: Guard) -> None:
        self._exchange = exchange
        self._connection = connection
        self._receive = receive
        self._guard = guard
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._connection is not None:
            self._connection.on_lost = self._lost
            self._connection.read_on()
        else:
            self._task = asyncio.get_running_loop().create_task(self._wait())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None:
            if self._connection.on_lost == self._lost:  # else the client's next request is under way
                self._connection.on_lost = None
        elif self._task is not None:
            self._task.cancel()

    def _lost(self) -> None:
        if not self._exchange.finishing:  # servers report the end of an answer as the client's leaving too
            self._guard.cancel(Guard.GONE)

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._lost()


def _too_large(max_bytes: int) -> InvalidRequest:
    return InvalidRequest(
        f"The request body is larger than {max_bytes} bytes, the limit of this server.",
        status=413,
        code="request_too_large",
    )
