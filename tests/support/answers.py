"""Answers: one for an engine to give, and what every error for a client looks like."""

from typing import Any

from tests.support.http1 import ReplyMessage
from tests.support.sse import json_reply

ANSWER = {
    "id": "r1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
}
OK = json_reply(ANSWER)
"""The whole reply of an engine that does its work."""


def error_of(reply: ReplyMessage) -> dict[str, Any]:
    """The error in a whole reply, which has the one form that clients rely on."""
    assert reply.complete, f"{reply.error}: {reply.status} {reply.body!r}"
    assert reply.headers.all("content-type") == ["application/json"]
    body = reply.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert all(error[name] and isinstance(error[name], str) for name in ("message", "type", "code")), error
    assert error["param"] is None or isinstance(error["param"], str)
    return dict(error)
