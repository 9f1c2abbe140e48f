"""An engine on a real socket that does exactly what its script says, and remembers what was done to it.

    async with ScriptedEngine([SSE_HEAD, chunk(ROLE), 0.02, chunk(T("a")), Step.RESET]) as engine:
        await post_json(gateway_port, "/v1/chat/completions", {...})
        assert engine.requests[0].json()["model"] == "m"
        await engine.gone(1)

A script is a list of steps: bytes are sent in one write, a number is a pause in seconds, and the rest is in `Step`.
After its last step the connection serves the next request. Peers that send what is no request, and errors in a script,
fail the test when the engine stops. A list of scripts serves one request each, on whatever
connection, and its last one all further ones. An async function may do anything.
"""

import asyncio
import enum
import json
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from tests.support.http1 import Headers, RequestMessage
from tests.support.sse import json_reply, reply


class Step(enum.Enum):
    FIN = "end what was sent and close the connection"
    RESET = "break the connection with a TCP reset"
    HANG = "do nothing until the peer closes"


class Close(enum.Enum):
    """How the peer closed a connection."""

    FIN = enum.auto()
    RESET = enum.auto()


Script: TypeAlias = Sequence[bytes | float | Step]
FreeScript: TypeAlias = Callable[["Request", "Connection"], Awaitable[None]]
AnyScript: TypeAlias = Script | Sequence[Script] | FreeScript


@dataclass(eq=False)
class Request:
    """A request as it came. `head` and the names in it are the bytes on the wire, `headers` have lower-case names."""

    connection: "Connection"
    method: str
    path: str
    head: bytes
    headers: Headers
    body: bytes
    at: float
    """When its last byte came, by `time.monotonic`."""
    sent: list[tuple[float, bytes]] = field(default_factory=list)
    """What was written for it, and when."""

    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedEngine:
    """Requests by POST are generation and run the script; GETs are probes and are answered as an idle engine would.

    Args:
        script: what to do with requests.
        model: the one name in the model list.
        probes: replies to GETs by path, in place of the usual ones or beside them; `probe_replies` holds them all, to
            be changed as a test goes on.
        host: the address to listen on.
        port: 0 is any free one.
        tls: the server's side of TLS.
    """

    def __init__(
        self,
        script: AnyScript = (),
        *,
        model: str = "m",
        probes: Mapping[str, bytes] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.probes: list[Request] = []
        self.connections: list[Connection] = []
        self.running = 0
        """Generation requests whose script is running."""
        self.max_parallel = 0
        self.port = port
        self._host = host
        self._tls = tls
        self.probe_replies = {**_idle_engine(model), **(probes or {})}

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        faults = await asyncio.gather(*(connection.stop() for connection in self.connections))
        await self._server.wait_closed()
        for fault in filter(None, faults if exc is None else []):
            raise fault

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    @property
    def generating(self) -> list["Connection"]:
        """The connections that carried a generation request, open or closed."""
        return [connection for connection in self.connections if connection.generates]

    async def gone(self, timeout: float) -> None:
        """Waits until every connection that carried a generation request is closed.

        Raises:
            TimeoutError: the peer left one open for `timeout` seconds.
        """
        assert self.generating, "no generation request came, so that nothing can be gone"
        async with asyncio.timeout(timeout):
            for connection in self.generating:
                await connection.wait_closed()

    async def serve(self, request: Request) -> None:
        """Answers `request` on its connection."""
        if request.method != "POST":
            self.probes.append(request)
            await request.connection.send(self.probe_replies.get(request.path, NOT_FOUND))
            return
        self.requests.append(request)
        self.running += 1
        self.max_parallel = max(self.max_parallel, self.running)
        try:
            await self._run(request)
        finally:
            self.running -= 1

    async def _run(self, request: Request) -> None:
        if callable(self.script):
            await self.script(request, request.connection)
            return
        for step in _script_of(self.script, len(self.requests) - 1):
            await request.connection.do(step)


class Connection(asyncio.Protocol):
    """One connection to a scripted engine.

    `closed` is how the peer closed it, and `closed_at` when; both stay `None` when the engine itself closed it first.
    """

    def __init__(self, engine: ScriptedEngine) -> None:
        self.requests: list[Request] = []
        self.opened_at = 0.0
        self.closed: Close | None = None
        self.closed_at: float | None = None
        self._engine = engine
        self._received = bytearray()
        self._news = asyncio.Event()
        self._lost = asyncio.Event()
        self._writable = asyncio.Event()
        self._ended_here = False

    @property
    def generates(self) -> bool:
        return any(request.method == "POST" for request in self.requests)

    @property
    def open(self) -> bool:
        return not self._lost.is_set()

    @property
    def sent_bytes(self) -> int:
        """Bytes of all replies that the kernel has taken."""
        written = sum(len(data) for request in self.requests for _, data in request.sent)
        return written - self._transport.get_write_buffer_size()

    # What a script can do

    async def do(self, step: bytes | float | Step) -> None:
        match step:
            case bytes():
                await self.send(step)
            case Step.FIN:
                await self.fin()
            case Step.RESET:
                await self.reset()
            case Step.HANG:
                await self.wait_closed()
            case _:
                await asyncio.sleep(step)

    async def send(self, data: bytes) -> None:
        """Writes at once, then waits until the kernel has taken it.

        Raises:
            ConnectionError: the connection is closed.
        """
        if not self.open or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self.requests[-1].sent.append((time.monotonic(), data))
        self._transport.write(data)
        await self._writable.wait()

    async def fin(self) -> None:
        self._ended_here = True
        self._transport.close()
        await self._lost.wait()

    async def reset(self) -> None:
        self._ended_here = True
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
        await self._lost.wait()

    async def wait_closed(self) -> None:
        await self._lost.wait()

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writable.set()
        self.opened_at = time.monotonic()
        self._engine.connections.append(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._news.set()

    def eof_received(self) -> None:
        self._close_by_peer(Close.FIN)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_by_peer(Close.FIN if exc is None else Close.RESET)
        self._lost.set()
        self._news.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _close_by_peer(self, how: Close) -> None:
        if self.closed is None and not self._ended_here:
            self.closed, self.closed_at = how, time.monotonic()

    # Serving

    async def stop(self) -> Exception | None:
        """Ends it and tells what went wrong in it: in a script of the test, or because a request was not HTTP."""
        self._ended_here = True
        self._task.cancel()
        self._transport.abort()
        (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
        await self._lost.wait()
        return outcome if isinstance(outcome, Exception) else None

    async def _serve(self) -> None:
        with suppress(ConnectionError):
            while request := await self._next_request():
                self.requests.append(request)
                await self._engine.serve(request)

    async def _next_request(self) -> Request | None:
        """`None` stands for the end of the connection."""
        message, raw = RequestMessage(), bytearray()
        while True:
            data, self._received = bytes(self._received), bytearray()
            if data:
                raw += data
                message.feed(data)
            if message.complete:
                self._received = bytearray(message.rest) + self._received
                head = bytes(raw[: raw.index(b"\r\n\r\n") + 4])
                return Request(
                    self, message.method, message.path, head, message.headers, message.body, at=time.monotonic()
                )
            if message.error is not None:
                await self.reset()
                raise AssertionError(f"the peer sent what is no request, {message.error}: {bytes(raw[:500])!r}")
            if not self.open:
                return None
            self._news.clear()
            await self._news.wait()


def _script_of(script: Script | Sequence[Script], number: int) -> Script:
    """The steps for a request, counted from 0."""
    if not script or isinstance(script[0], bytes | float | int | Step):
        return script  # type: ignore[return-value]
    return script[min(number, len(script) - 1)]  # type: ignore[return-value]


NOT_FOUND = json_reply({"error": {"message": "not found"}}, 404)


def _idle_engine(model: str) -> dict[str, bytes]:
    return {
        "/health": json_reply({"status": "ok"}),
        "/v1/models": json_reply({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "test"}]}),
        "/props": json_reply({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}),
        "/slots": json_reply([{"id": number, "n_ctx": 4096, "is_processing": False} for number in range(4)]),
        "/metrics": reply(b"", "Content-Type: text/plain; version=0.0.4"),
    }
