"""Anthropic's Messages dialect: builders of requests, both ways of the translators, a strict reader of streams."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.translate.anthropic import parse_messages
from gateway.translate.anthropic_openai import to_chat
from gateway.translate.openai_anthropic import MessagesWriter
from tests.support.http1 import ReplyMessage
from tests.support.sse import read_events

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
USER = {"role": "user", "content": "hi"}
ASK: dict[str, Any] = {"model": "m", "max_tokens": 16, "messages": [USER]}
"""The smallest request."""

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LINK_PART = {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "input_schema": SCHEMA}


def text(value: str) -> dict[str, Any]:
    """A block of text, in requests and in answers."""
    return {"type": "text", "text": value}


def thinking(value: str) -> dict[str, Any]:
    """Thoughts, without the signature that nobody here can give."""
    return {"type": "thinking", "thinking": value, "signature": ""}


def tool_use(call_id: str, name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(content: Any = "20C", call_id: str = "t1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as OpenAI's assistant messages have it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_for(**fields: Any) -> dict[str, Any]:
    """The chat that the smallest request becomes when `fields` are added."""
    request = parse_messages(json.dumps(ASK | fields).encode())
    return dict(json.loads(msgspec.json.encode(to_chat(request))))


def write(*events: bytes, **settings: Any) -> bytes:
    """The stream that a client gets for these events, one at a time."""
    writer = MessagesWriter("asked", **settings)
    return b"".join([*map(writer.feed, events), writer.finish()])


def whole(message: dict[str, Any], reason: str = "stop", *, usage: Any = None, **more: Any) -> dict[str, Any]:
    """What a client gets for a whole answer; `more` is the writer's, but for `stop_reason`."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    if "stop_reason" in more:
        choice["stop_reason"] = more.pop("stop_reason")
    body = {"id": "r1", "object": "chat.completion", "created": 1, "model": "M", "choices": [choice], "usage": usage}
    return dict(json.loads(MessagesWriter("asked", **more).whole(json.dumps(body).encode())))


@dataclass
class Streamed:
    """A stream read to its end. `input` of a tool's block is the JSON text as it came, not yet parsed."""

    start: dict[str, Any]
    """The message of `message_start`."""
    content: list[dict[str, Any]] = field(default_factory=list)
    stop: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def parsed(self) -> list[dict[str, Any]]:
        """The content as a whole answer has it."""
        return [
            block | {"input": json.loads(block["input"] or "{}")} if block["type"] == "tool_use" else block
            for block in self.content
        ]


def read_message(body: bytes) -> Streamed:
    """Reads a stream as the most demanding of clients would: each event in its place, one open block at a time.

    Raises:
        AssertionError: an event is not where it belongs, or the stream is neither whole nor failed.
    """
    events = _events(body)
    kind, first = next(events)
    assert kind == "message_start"
    told = Streamed(first["message"])
    for kind, event in events:
        match kind:
            case "content_block_start":
                assert event["index"] == len(told.content)
                told.error = _read_block(events, event, told.content)
                if told.error is not None:
                    assert next(events, None) is None
                    return told
            case "message_delta":
                told.stop, told.usage = event["delta"], event["usage"]
                assert next(events)[0] == "message_stop"
                assert next(events, None) is None
                return told
            case "error":
                told.error = event["error"]
                assert next(events, None) is None
                return told
            case _:
                raise AssertionError(f"{kind} is out of place")
    raise AssertionError("the stream breaks off")


def _events(body: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for event in read_events(body):
        assert event.json["type"] == event.name
        yield event.name, event.json


_TEXT_OF = {
    "text": ("text_delta", "text", "text"),
    "thinking": ("thinking_delta", "thinking", "thinking"),
    "tool_use": ("input_json_delta", "partial_json", "input"),
}
"""By type of block: that of its deltas, their text, and where it belongs in the block."""


def _read_block(
    events: Iterator[tuple[str, dict[str, Any]]], start: dict[str, Any], content: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Reads on to the end of a block and adds it to `content`; returns the error of a stream that failed in it."""
    block: dict[str, Any] = start["content_block"]
    kind, source, target = _TEXT_OF[block["type"]]
    assert not block[target]
    content.append(block | {target: ""})
    for name, event in events:
        if name == "error":
            return dict(event["error"])
        assert event["index"] == start["index"]
        if name == "content_block_stop":
            return None
        assert (name, event["delta"]["type"]) == ("content_block_delta", kind)
        content[-1][target] += event["delta"][source]
    raise AssertionError("the stream breaks off inside a block")


def anthropic_error(reply: ReplyMessage) -> dict[str, str]:
    """The error in a whole reply, which has the one form that Anthropic's clients rely on."""
    assert reply.complete, f"{reply.error}: {reply.status} {reply.body!r}"
    assert reply.headers.all("content-type") == ["application/json"]
    body = reply.json()
    assert (list(body), body["type"]) == (["type", "error"], "error")
    error = body["error"]
    assert list(error) == ["type", "message"]
    assert all(error.values())
    return dict(error)
