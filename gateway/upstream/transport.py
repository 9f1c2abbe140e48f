"""An httpx transport for local engines: HTTP/1.1 on asyncio protocols, with a keep-alive pool for each origin.

It is several times cheaper than the stock transport (docs/performance.md) and knows what engines do: they close idle
connections after a few seconds, often just as the next request is written. It opens no proxy connection and reads
nothing from the environment.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from types import TracebackType
from typing import Self, cast

from gateway.upstream.http import httpx
from gateway.upstream.reply import Reply

Origin = tuple[str, str, int]
"""Scheme, host and port."""

_STALE = 1.0
"""Seconds within which a connection that had been closed before it was used says so. Later it was the engine that
died, perhaps of this very request."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


class NativeTransport(httpx.AsyncBaseTransport):
    """Sends requests over kept-alive connections; any number of them at once.

    It honours the `connect` and `read` entries of `request.extensions["timeout"]`, in seconds. A request that a
    reused connection answered with its end is sent once more on a fresh one: that connection had been closed before
    it was used.

    Args:
        verify: how TLS certificates are checked: `True` by the system's authorities, or a context.
        keepalive_expiry: seconds that an unused connection is kept. Engines close theirs after 5 or more.
        max_head_bytes: the largest reply head.
    """

    def __init__(
        self, *, verify: ssl.SSLContext | bool = True, keepalive_expiry: float = 3.0, max_head_bytes: int = 64 * 1024
    ) -> None:
        self._verify = verify
        self._tls: ssl.SSLContext | None = None
        self._expiry = keepalive_expiry
        self._max_head_bytes = max_head_bytes
        self._idle: dict[Origin, deque[_Connection]] = {}
        self._connections: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends `request` and returns its reply once the head is there; the body is read from `stream`.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: no connection could be made.
            httpx.ReadError, httpx.ReadTimeout, httpx.WriteError: the connection broke, or stayed silent.
            httpx.RemoteProtocolError: the reply is not HTTP, or ended before its head did.
            httpx.LocalProtocolError: the request cannot be written as HTTP.
            httpx.UnsupportedProtocol: the scheme is neither http nor https.
        """
        url = request.url
        scheme = url.scheme
        if scheme not in _DEFAULT_PORTS:
            raise httpx.UnsupportedProtocol(f"an engine is reached by http or https, not {scheme or 'nothing'}")
        origin = (scheme, url.host, url.port or _DEFAULT_PORTS[scheme])
        timeout = request.extensions.get("timeout") or {}
        head = _encode_head(request)
        whole = isinstance(request.stream, httpx.ByteStream)

        connection = self._take_idle(origin)
        reused = connection is not None
        if connection is None:
            connection = await self._connect(origin, timeout.get("connect"))
        loop = asyncio.get_running_loop()
        while True:
            sent_at = loop.time()
            reply = connection.begin(request.method, timeout.get("read"))
            try:
                if whole:
                    connection.write(head + b"".join(request.stream))  # type: ignore[arg-type]
                else:
                    await connection.write_stream(head, request)
                await reply.head()
            except (httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError):
                await reply.aclose()
                if reply.touched or not reused or not whole or loop.time() - sent_at > _STALE:
                    raise
                reused = False
                connection = await self._connect(origin, timeout.get("connect"))
            except BaseException:
                await reply.aclose()
                raise
            else:
                return httpx.Response(reply.status, headers=reply.headers, stream=reply)

    async def aclose(self) -> None:
        """Closes every connection, those in use included."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in list(self._connections):
            connection.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def _connect(self, origin: Origin, limit: float | None) -> "_Connection":
        scheme, host, port = origin
        connection = _Connection(self, origin)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit):
                await loop.create_connection(lambda: connection, host, port, ssl=self._context(scheme))
        except TimeoutError:
            connection.abort()
            raise httpx.ConnectTimeout(f"no connection to the engine within {limit:g} s") from None
        except (OSError, UnicodeError) as exc:
            connection.abort()
            raise httpx.ConnectError(str(exc)) from exc
        except BaseException:
            connection.abort()
            raise
        return connection

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        if scheme == "http":
            return None
        if self._tls is None:
            self._tls = (
                self._verify if isinstance(self._verify, ssl.SSLContext) else httpx.create_ssl_context(self._verify)
            )
        return self._tls

    # The pool

    def _take_idle(self, origin: Origin) -> "_Connection | None":
        idle = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - self._expiry
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    def keep(self, connection: "_Connection") -> None:
        """Takes a connection back that can serve another request."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(connection.origin, deque()).append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._expiry, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._expiry
        kept = False
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.popleft().abort()
            kept = kept or bool(idle)
        self._sweeper = loop.call_later(self._expiry, self._sweep) if kept else None

    def opened(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def closed(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle is not None:
            with contextlib.suppress(ValueError):
                idle.remove(connection)


class _Connection(asyncio.Protocol):
    """One connection to an engine, serving one request at a time."""

    def __init__(self, pool: NativeTransport, origin: Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._aborted = False
        self._writable: asyncio.Event | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # From the caller

    def begin(self, method: str, read_timeout: float | None) -> Reply:
        transport = cast("asyncio.Transport", self._transport)
        self._reply = reply = Reply(
            method,
            self._pool._max_head_bytes,
            pause=transport.pause_reading,
            resume=transport.resume_reading,
            done=self._finish,
        )
        reply.read_timeout = read_timeout
        return reply

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def write_stream(self, head: bytes, request: httpx.Request) -> None:
        """Writes a body that comes in pieces, no faster than the engine takes them."""
        stream = cast("httpx.AsyncByteStream", request.stream)
        chunked = b"chunked" in request.headers.get("transfer-encoding", "").lower().encode()
        self.write(head)
        async for piece in stream:
            if self._writable is not None:
                await self._writable.wait()
            if self._reply is None or self._reply.touched:  # it answers already, and may not want the rest
                return
            if not self.usable:
                raise httpx.WriteError("the engine closed the connection while the request was sent")
            if piece:
                self.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.write(b"0\r\n\r\n")

    def abort(self) -> None:
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, reusable: bool) -> None:
        """A connection with a part of its request unsent is not kept: the engine answered without wanting it."""
        self._reply = None
        transport = self._transport
        if reusable and transport is not None and self.usable and transport.get_write_buffer_size() == 0:
            self._pool.keep(self)
        else:
            self.abort()

    # From the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pool.opened(self)
        if self._aborted:  # cancelled while it was being made
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._reply is not None:
            self._reply.feed(data)
            self.resume_writing()
        else:  # nobody asked: whatever it is, the next request must not take it for its reply
            self.abort()

    def eof_received(self) -> None:
        if self._reply is not None:
            self._reply.feed_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.closed(self)
        self.resume_writing()
        if self._reply is None:
            return
        if exc is None:
            self._reply.feed_eof()
        else:
            self._reply.fail(httpx.ReadError(f"the connection to the engine broke: {exc}"))

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None


def _encode_head(request: httpx.Request) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in request.headers.raw]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1 or b"\0" in head:
        raise httpx.LocalProtocolError("a header holds a line break or a null character")
    return head + b"\r\n\r\n"
