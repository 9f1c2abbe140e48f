"""Renders errors for clients of the OpenAI dialect. Other dialects have a file of their own."""

import math

import msgspec

from gateway.errors import EngineRefused, GatewayError


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _Body(msgspec.Struct):
    error: _Error


def error_body(error: GatewayError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`; an engine's own error of that form as it came."""
    if isinstance(error, EngineRefused) and error.body is not None:
        return error.body
    return msgspec.json.encode(_Body(_Error(error.message, error.kind, error.param, error.code)))


def error_event(error: GatewayError) -> bytes:
    """The event that ends a stream which failed; no `[DONE]` follows it."""
    return b"data: " + error_body(error).replace(b"\n", b" ") + b"\n\n"


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """Headers beside the error's body: its type, and when to come back where that is known."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(0, math.ceil(error.retry_after))))
    return headers
