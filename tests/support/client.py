"""An HTTP/1.1 client on a raw socket: it reads only when told to, logs when what arrived, and leaves as told."""

import asyncio
import json
import socket
import struct
import time
from types import TracebackType
from typing import Any, Self

from tests.support.http1 import ReplyMessage

READ_SIZE = 65536


class Reply(ReplyMessage):
    """What came back. `complete` is false where the connection ended before the reply did."""

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.reads: list[tuple[float, bytes]] = []
        """Each read from the socket, head included, with its time by `time.monotonic`."""

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.reads)

    def read(self, data: bytes) -> None:
        self.reads.append((time.monotonic(), data))
        self.feed(data)


class RawClient:
    """One connection. Bytes that nobody reads stay in the kernel, so that the sender feels it.

    Args:
        receive_buffer: the size of the kernel's buffer, in bytes, for clients that are to be slow.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", *, receive_buffer: int | None = None) -> None:
        self._address = (host, port)
        self._receive_buffer = receive_buffer
        self.reply = Reply("GET")
        """The reply to the last request, as far as it was read."""

    async def __aenter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def request(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> None:
        """Sends a whole request; a body that is not bytes is sent as JSON. Its reply is then `self.reply`."""
        self.reply = Reply(method)
        await self.send(encode_request(method, path, body, headers or {}))

    async def read(self) -> bytes:
        """One read from the socket, of which `reply` takes note; empty at the end of the connection.

        Raises:
            ConnectionResetError: the peer broke the connection.
        """
        data = await asyncio.get_running_loop().sock_recv(self._socket, READ_SIZE)
        self.reply.read(data)
        return data

    async def read_until(self, token: bytes, count: int = 1, timeout: float = 10.0) -> None:
        """Reads until the body holds `token` that often.

        Raises:
            EOFError: the reply ended first.
        """
        async with asyncio.timeout(timeout):
            while self.reply.body.count(token) < count:
                if not await self.read():
                    raise EOFError(f"no {token!r} in {self.reply.body!r}")

    async def finish(self, timeout: float = 30.0) -> Reply:
        """Reads the reply to its end, or to that of the connection."""
        async with asyncio.timeout(timeout):
            while not self.reply.complete and self.reply.error is None:
                try:
                    await self.read()
                except ConnectionResetError:
                    self.reply.error = "the connection was reset"
        return self.reply

    def close(self) -> None:
        """Leaves as most clients do: by FIN, even with bytes unread."""
        self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()

    def reset(self) -> None:
        """Leaves by a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


async def post_json(
    port: int, path: str, body: object, headers: dict[str, str] | None = None, *, timeout: float = 30.0
) -> Reply:
    """One request on a connection of its own; a body that is bytes is sent as it is."""
    return await _once("POST", port, path, body, headers, timeout)


async def get(port: int, path: str, headers: dict[str, str] | None = None, *, timeout: float = 30.0) -> Reply:
    return await _once("GET", port, path, None, headers, timeout)


async def _once(
    method: str, port: int, path: str, body: object, headers: dict[str, str] | None, timeout: float
) -> Reply:
    async with RawClient(port) as client:
        await client.request(method, path, body, headers)
        return await client.finish(timeout)


def encode_request(method: str, path: str, body: Any, headers: dict[str, str]) -> bytes:
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "sluice.test"}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
    fields |= headers
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + content
