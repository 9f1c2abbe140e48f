"""Writes and reads streams of OpenAI chat chunks."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.errors import EngineFailed
from gateway.translate.chat import Chunk, ChunkChoice, Delta, FunctionCall, Timings, ToolCall, Usage

DONE = b"data: [DONE]\n\n"
_BOM = b"\xef\xbb\xbf"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Chunk).decode


def new_id(prefix: str) -> str:
    return f"{prefix}{os.urandom(12).hex()}"


class ChunkWriter:
    """Writes the events of one stream: one id, one model, one role.

    The role goes with the first delta, as OpenAI sends it.
    """

    def __init__(self, model: str) -> None:
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._model = model
        self._began = False

    def delta(self, delta: Delta, *, finish_reason: str | None = None, logprobs: object = None) -> bytes:
        if not self._began:
            self._began = True
            delta.role = "assistant"
        choice = ChunkChoice(delta=delta, finish_reason=finish_reason, logprobs=logprobs)
        return self._event([choice])

    def text(self, text: str) -> bytes:
        return self.delta(Delta(content=text))

    def reasoning(self, text: str) -> bytes:
        return self.delta(Delta(reasoning_content=text))

    def tool_call(self, index: int, call_id: str, name: str, arguments: str) -> bytes:
        """A call in one piece; `arguments` is JSON text."""
        function = FunctionCall(name=name, arguments=arguments)
        return self.delta(Delta(tool_calls=[ToolCall(index=index, id=call_id, type="function", function=function)]))

    def finish(self, reason: str, timings: Timings | None = None) -> bytes:
        if not self._began:
            self._began = True
            choice = ChunkChoice(delta=Delta(role="assistant", content=""), finish_reason=reason)
        else:
            choice = ChunkChoice(finish_reason=reason)
        return self._event([choice], timings=timings)

    def usage(self, usage: Usage) -> bytes:
        return self._event([], usage=usage)

    def _event(
        self, choices: list[ChunkChoice], *, usage: Usage | None = None, timings: Timings | None = None
    ) -> bytes:
        chunk = Chunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            timings=timings,
        )
        return b"data: " + _encode(chunk) + b"\n\n"


def error_event(payload: bytes) -> bytes:
    """An event that says that the stream failed; `payload` is a JSON object with a member `error`."""
    return b"data: " + payload + b"\n\n"


def read_chunks(block: bytes) -> Iterator[Chunk]:
    """The chunks of whole events; comments and `[DONE]` are passed over.

    Raises:
        EngineFailed: an event is no chunk. It may have held text, so the answer cannot be whole without it.
    """
    for event in block.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
        payload = b"\n".join(lines).strip()
        if payload and payload != b"[DONE]":
            try:
                yield _decode(payload)
            except (msgspec.DecodeError, RecursionError):
                yield _read_odd(payload)


def _read_odd(payload: bytes) -> Chunk:
    """A chunk with `NaN` or odd types: what nobody needs of it may be anything."""
    try:
        value = json.loads(payload)
        choices = [_choice(choice) for choice in value.get("choices") or []]
        usage = {name: count for name, count in (value.get("usage") or {}).items() if isinstance(count, int)}
        return msgspec.convert({"choices": choices, "usage": usage or None}, Chunk)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise EngineFailed("The engine sent an event that cannot be translated.") from None


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    delta = {name: value for name, value in (choice.get("delta") or {}).items() if value is not None}
    if isinstance(delta.get("content"), list):
        delta["content"] = "".join(part.get("text") or "" for part in delta["content"])
    calls = [
        {name: value for name, value in call.items() if value is not None} for call in delta.get("tool_calls") or []
    ]
    return {
        "index": choice.get("index") or 0,
        "delta": delta | {"tool_calls": calls},
        "finish_reason": choice.get("finish_reason"),
        "stop_reason": choice.get("stop_reason"),
    }
