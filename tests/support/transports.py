"""The transports that reach engines, and requests over them without a client in between."""

import ssl
from collections.abc import AsyncIterable
from dataclasses import dataclass

from gateway.upstream.http import httpx
from gateway.upstream.transport import NativeTransport

TRANSPORTS = ("httpx", "native")


def make_transport(
    name: str, verify: ssl.SSLContext | bool = True, keepalive_expiry: float = 3.0
) -> httpx.AsyncBaseTransport:
    """A transport by the name it has in the config."""
    if name == "httpx":
        return httpx.AsyncHTTPTransport(verify=verify, limits=httpx.Limits(keepalive_expiry=keepalive_expiry))
    return NativeTransport(verify=verify, keepalive_expiry=keepalive_expiry)


@dataclass(frozen=True)
class Answer:
    """A reply read to its end; the body is as it was sent, still compressed if it was."""

    status: int
    headers: httpx.Headers
    body: bytes


async def ask(
    transport: httpx.AsyncBaseTransport,
    url: str,
    content: bytes | AsyncIterable[bytes] | None = b"{}",
    *,
    method: str = "POST",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    connect: float | None = 5.0,
    read: float | None = 5.0,
) -> httpx.Response:
    """Sends a request and returns its reply with the body unread. The limits are in seconds."""
    timeout = {"connect": connect, "read": read, "write": None, "pool": None}
    request = httpx.Request(method, url, headers=headers, content=content, extensions={"timeout": timeout})
    return await transport.handle_async_request(request)


async def take(response: httpx.Response, into: list[bytes] | None = None) -> bytes:
    """Reads a body to its end and closes the reply; `into` gets the pieces as they come."""
    pieces = [] if into is None else into
    assert isinstance(response.stream, httpx.AsyncByteStream)
    try:
        async for piece in response.stream:
            pieces.append(piece)
    finally:
        await response.stream.aclose()
    return b"".join(pieces)


async def fetch(transport: httpx.AsyncBaseTransport, url: str, *args: object, **kwargs: object) -> Answer:
    """`ask` and `take` in one."""
    response = await ask(transport, url, *args, **kwargs)  # type: ignore[arg-type]
    return Answer(response.status_code, response.headers, await take(response))
