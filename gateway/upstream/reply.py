"""One HTTP/1.1 reply of an engine while it arrives: parsed by httptools, read as an httpx byte stream."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Self

import httptools

from gateway.upstream.http import httpx

HIGH_WATER = 256 * 1024
"""Unread body bytes above which the engine is no longer read from, so that a slow client holds its engine back."""

_NO_BODY = frozenset({204, 304})


class Reply(httpx.AsyncByteStream):
    """A reply's head, then its body as chunks, each holding all that arrived since the last one was taken.

    It knows no socket: bytes come in by `feed`, the end of the connection by `feed_eof` or `fail`, and what it
    needs of its connection are the three callables.

    Args:
        method: the request's method; a reply to HEAD has no body.
        max_head_bytes: a longer head is an error.
        pause: stops reading from the engine.
        resume: reads on.
        done: called once by `aclose`, with whether the connection may serve another request.
    """

    def __init__(
        self,
        method: str,
        max_head_bytes: int,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        done: Callable[[bool], None],
    ) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.touched = False
        """Whether any byte of a reply came: from then on the request must not be sent again unseen."""
        self.complete = False
        self.read_timeout: float | None = None
        self._method = method
        self._pause, self._resume, self._done = pause, resume, done
        self._parser = httptools.HttpResponseParser(self)
        self._head_room = max_head_bytes
        self._head_complete = False
        self._informational = False
        self._until_close = True
        self._reusable = False
        self._paused = False
        self._closed = False
        self._error: Exception | None = None
        self._parts: list[bytes] = []
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._sink_error: Exception | None = None

    # From the connection

    def feed(self, data: bytes) -> None:
        """Takes the bytes of one read."""
        self.touched = True
        if self.complete:
            self._reusable = False
            return
        head, data = (b"", data) if self._head_complete else (data[: self._head_room + 1], data[self._head_room + 1 :])
        self._head_room -= len(head)
        try:
            if head:
                self._parser.feed_data(head)
            if data and self._head_complete:
                self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(httpx.RemoteProtocolError("the engine switched protocols"))
        except httptools.HttpParserError as exc:
            if not self.complete:
                self.fail(httpx.RemoteProtocolError(f"not an HTTP reply: {exc}"))
            self._reusable = False
        if not self._head_complete and self._head_room < 0:
            self.fail(httpx.RemoteProtocolError("the head of the reply is too large"))
        if self._sink is not None and self._parts:
            self._push(self._sink)
        if self._sink is not None and not self.complete and self._error is None:
            return
        if self._unread > HIGH_WATER and not self._paused:
            self._paused = True
            self._pause()
        self._wake()

    def feed_eof(self) -> None:
        """The engine closed its side: the end of a body without a length, an error for any other."""
        self._reusable = False
        if self._head_complete and self._until_close:
            self.complete = True
            self._wake()
        else:
            where = "in the middle of its reply" if self.touched else "without a reply"
            self.fail(httpx.RemoteProtocolError(f"the engine closed the connection {where}"))

    def fail(self, error: Exception) -> None:
        """Ends an unfinished reply with `error`, which is raised after all that came before it was read."""
        self._reusable = False
        if not self.complete and self._error is None:
            self._error = error
            self._wake()

    # From the parser

    def on_message_begin(self) -> None:
        if self.complete:
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_complete:  # a trailer
            return
        lower = name.lower()
        if lower == b"content-length" or (lower == b"transfer-encoding" and b"chunked" in value.lower()):
            self._until_close = False
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status < 100:
            self.fail(httpx.RemoteProtocolError(f"not an HTTP reply: status {status}"))
            return
        if 100 <= status < 200:
            self._informational = True
            self._until_close = True
            self.headers = []
            return
        self.status = status
        self._head_complete = True
        self._reusable = self._parser.should_keep_alive()
        if status in _NO_BODY:
            self._until_close = False
        if self._method == "HEAD":
            self.complete, self._reusable = True, False

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._parts.append(data)
            self._unread += len(data)

    def on_message_complete(self) -> None:
        if self._informational:
            self._informational = False
        else:
            self.complete = True

    # From the caller

    async def head(self) -> None:
        """Waits until `status` and `headers` are there.

        Raises:
            httpx.TransportError: the reply broke off, or is not HTTP.
            httpx.ReadTimeout: `read_timeout` passed.
        """
        while not self._head_complete:
            if self._error is not None:
                raise self._error
            await self._wait()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self.complete or self._closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._take()

    async def push(self, sink: Callable[[bytes], bool]) -> None:
        """Hands each chunk to `sink` in the moment it arrives, which spares waking a task for it.

        Returns when `sink` has returned `False`, or at the reply's end; iterate to learn how it ended. With a
        `read_timeout` it returns at once, since that is kept by iterating.
        """
        if self._parts or self.complete or self._closed or self._error is not None or self.read_timeout is not None:
            return
        self._sink = sink
        try:
            await self._wait()
        finally:
            self._sink = None
        if self._sink_error is not None:
            raise self._sink_error

    def _push(self, sink: Callable[[bytes], bool]) -> None:
        try:
            if not sink(self._take()):
                self._sink = None
        except Exception as exc:  # noqa: BLE001 - a fault of the caller's, which is waiting in `push` and shall have it
            self._sink, self._sink_error = None, exc

    def _take(self) -> bytes:
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        self._unread = 0
        if self._paused:
            self._paused = False
            self._resume()
        return data

    async def aclose(self) -> None:
        """Gives the connection back when the reply was read to its end, and else closes it at once."""
        if not self._closed:
            self._closed = True
            self._parts = []
            del self._parser  # it and this object hold each other
            self._done(self.complete and self._reusable)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if self.read_timeout is None:
                await self._waiter
            else:
                async with asyncio.timeout(self.read_timeout):
                    await self._waiter
        except TimeoutError:
            raise httpx.ReadTimeout("the engine sent nothing for too long") from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
