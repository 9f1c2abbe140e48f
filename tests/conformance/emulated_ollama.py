"""Ollama as it was recorded: which recording answers a request, and what is put together where there is none."""

import json
from typing import Any

from tests.support.engine import Connection, Request
from tests.support.ollama import NDJSON_HEAD, ndjson_reply
from tests.support.sse import chunk, json_reply
from tests.support.wire import recording

ENDLESS = 1200
"""An answer of more tokens begins, and does not end."""
TOO_LONG = 10_000
"""Bytes of a request whose prompt is longer than the context."""
SCHEMA: dict[str, Any] = json.loads(recording("ollama", "native-chat-schema").request_body)["format"]
"""The one that an answer was recorded for."""

Lines = list[dict[str, Any]]


async def play(request: Request, connection: Connection) -> None:
    """Answers one request for generation."""
    body = request.json()
    last: dict[str, Any] = body.get("messages", [{}])[-1]
    if len(request.body) > TOO_LONG:
        await connection.send(recording("ollama", "native-chat-overflow-no-truncate").raw)
    elif last.get("images"):
        await connection.send(recording("ollama", "native-chat-image").raw)
    elif body.get("think") and last["content"] == "Say hello.":
        await connection.send(recording("ollama", "native-chat-think-no-capability").raw)
    elif body["options"]["num_predict"] > ENDLESS:
        await connection.send(NDJSON_HEAD)
        for line in _lines(body)[:-1]:
            await connection.send(chunk(_encode(line)))
        await connection.wait_closed()
    else:
        lines = _stopped(_lines(body), body["options"].get("stop"))
        await connection.send(ndjson_reply(*map(_encode, lines)) if body["stream"] else json_reply(_merged(lines)))


def _lines(body: dict[str, Any]) -> Lines:
    """The answer as a stream."""
    if "messages" not in body:
        return _recorded("native-generate-stream")
    if body.get("tools"):
        return _twice(_recorded("native-chat-tools-stream"), " and " in body["messages"][-1]["content"])
    if body.get("think"):
        return _recorded("native-chat-think-stream")
    if body.get("format"):
        return _in_two(_recorded("native-chat-schema"))
    if body.get("logprobs"):
        return _in_two(_recorded("native-chat-logprobs"))
    return _recorded("native-chat-stream")


def _recorded(name: str) -> Lines:
    return [json.loads(line) for line in recording("ollama", name).body.splitlines()]


def _in_two(lines: Lines) -> Lines:
    """A whole answer as a stream."""
    (whole,) = lines
    end = {key: value for key, value in whole.items() if key not in ("message", "logprobs")}
    first = {key: value for key, value in whole.items() if key in ("model", "created_at", "message", "logprobs")}
    return [{**first, "done": False}, {**end, "message": {"role": "assistant", "content": ""}}]


def _twice(lines: Lines, both: bool) -> Lines:
    """With a second call, for London, if `both` cities were asked for. Each call has a line of its own."""
    first, *rest = lines
    second = json.loads(json.dumps(first).replace("Paris", "London").replace("call_", "call_2"))
    return [first, *([second] if both else []), *rest]


def _stopped(lines: Lines, stop: list[str] | None) -> Lines:
    """Cut before the stop text, with the last line that Ollama then has."""
    *said, last = lines
    text = "".join(map(_text, said))
    if not stop or stop[0] not in text:
        return lines
    left, kept = len(text.partition(stop[0])[0]), []
    for line in said:
        piece = _text(line)[:left]
        left -= len(piece)
        kept += [_with_text(line, piece)] if piece else []
    return [*kept, {**last, "done_reason": "stop"}]


def _merged(lines: Lines) -> dict[str, Any]:
    """The whole answer that a stream stands for."""
    whole = _with_text(lines[-1], "".join(map(_text, lines)))
    messages = [line.get("message", {}) for line in lines]
    if thoughts := "".join(message.get("thinking", "") for message in messages):
        whole["message"]["thinking"] = thoughts
    if calls := [call for message in messages for call in message.get("tool_calls", [])]:
        whole["message"]["tool_calls"] = calls
    if logprobs := [token for line in lines for token in line.get("logprobs", [])]:
        whole["logprobs"] = logprobs
    return whole


def _text(line: dict[str, Any]) -> str:
    return str(line["message"]["content"] if "message" in line else line["response"])


def _with_text(line: dict[str, Any], text: str) -> dict[str, Any]:
    if "message" in line:
        return {**line, "message": {**line["message"], "content": text}}
    return {**line, "response": text}


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
