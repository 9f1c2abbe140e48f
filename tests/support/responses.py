"""OpenAI's Responses dialect: builders of requests, both ways of the translators, a strict reader of streams."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.translate.openai_responses import ResponsesWriter, start_response
from gateway.translate.responses import parse_responses
from gateway.translate.responses_openai import to_chat
from tests.support.sse import read_events

RESPONSES = "/v1/responses"
ASK: dict[str, Any] = {"model": "m", "input": "hi"}
"""The smallest request."""

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def says(role: str, content: Any) -> dict[str, Any]:
    """A message, in requests."""
    return {"type": "message", "role": role, "content": content}


def input_text(value: str) -> dict[str, Any]:
    return {"type": "input_text", "text": value}


def output_text(value: str) -> dict[str, Any]:
    return {"type": "output_text", "text": value, "annotations": [], "logprobs": []}


def thought(value: str) -> dict[str, Any]:
    """A reasoning item as one is sent back."""
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": value}]}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def result(output: Any = "20C", call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as the assistant's messages in a chat have it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_for(**fields: Any) -> dict[str, Any]:
    """The chat that the smallest request becomes when `fields` are added."""
    request = parse_responses(json.dumps(ASK | fields).encode())
    return dict(json.loads(msgspec.json.encode(to_chat(request))))


def writer(**fields: Any) -> ResponsesWriter:
    return ResponsesWriter(start_response(parse_responses(json.dumps(ASK | fields).encode())))


def write(*events: bytes, **fields: Any) -> bytes:
    """The stream that a client gets for these events, one at a time."""
    made = writer(**fields)
    return b"".join([*map(made.feed, events), made.finish()])


def whole(message: dict[str, Any], reason: str = "stop", *, usage: Any = None, **fields: Any) -> dict[str, Any]:
    """What a client gets for a whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    body = {"id": "r1", "object": "chat.completion", "created": 1, "model": "M", "choices": [choice], "usage": usage}
    return dict(json.loads(writer(**fields).whole(json.dumps(body).encode())))


def brief(item: dict[str, Any]) -> tuple[str, ...]:
    """What an item says: `("message", "hi")`, `("reasoning", "hm")` or `("function_call", "c1", "f", "{}")`."""
    if item["type"] == "function_call":
        return item["type"], item["call_id"], item["name"], item["arguments"]
    [part] = item["content"]
    return item["type"], part["text"]


@dataclass
class Streamed:
    """A stream read to its end. `items` is what its events added up to."""

    kinds: list[str]
    items: list[dict[str, Any]]
    response: dict[str, Any] | None
    """The response at the end, unless the stream failed."""
    error: dict[str, Any] | None

    @property
    def said(self) -> list[tuple[str, ...]]:
        return [brief(item) for item in self.items]


_TEXTS = {"response.output_text": "message", "response.reasoning_text": "reasoning"}
_ARGUMENTS = "response.function_call_arguments"


def read_response(body: bytes) -> Streamed:
    """Reads a stream as the most demanding of clients would: each event in its place, and all that it says consistent.

    Raises:
        AssertionError: an event is not where it belongs, or the stream is neither whole nor failed.
    """
    events = list(_numbered(body))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    first = events[0]["response"]
    assert events[1]["response"] == first
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    items: list[dict[str, Any]] = []
    done: dict[int, dict[str, Any]] = {}
    for event in events[2:-1]:
        _take(event, items, done)
    last = events[-1]
    if last["type"] == "error":
        return Streamed(kinds, items, None, last)
    response = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert response["id"] == first["id"]
    assert response["output"] == [done[at] for at in range(len(items))]
    return Streamed(kinds, response["output"], response, None)


def _numbered(body: bytes) -> Iterator[dict[str, Any]]:
    """The events' objects, which are named and counted."""
    for number, event in enumerate(read_events(body)):
        assert event.json["type"] == event.name
        assert event.json["sequence_number"] == number
        yield event.json


def _take(event: dict[str, Any], items: list[dict[str, Any]], done: dict[int, dict[str, Any]]) -> None:
    kind, at = event["type"], event["output_index"]
    if kind == "response.output_item.added":
        assert at == len(items)
        assert event["item"]["status"] == "in_progress"
        assert not event["item"].get("content")
        items.append(event["item"])
        return
    item = items[at]
    assert at not in done
    if kind == "response.output_item.done":
        assert event["item"] == item | {"status": event["item"]["status"]}
        assert event["item"]["status"] in ("completed", "incomplete")
        done[at] = event["item"]
        return
    assert event["item_id"] == item["id"]
    stem, _, what = kind.rpartition(".")
    if stem == _ARGUMENTS:
        item["arguments"] += event.get("delta", "")
        assert what == "delta" or event["arguments"] == item["arguments"]
    elif stem == "response.content_part":
        assert event["content_index"] == 0
        assert item["content"] == ([] if what == "added" else [event["part"]])
        item["content"] = [event["part"]]
    else:
        assert (_TEXTS[stem], event["content_index"]) == (item["type"], 0)
        [part] = item["content"]
        part["text"] += event.get("delta", "")
        assert what == "delta" or event["text"] == part["text"]
