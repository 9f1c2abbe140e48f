"""Writes streams of OpenAI chat chunks, and reads them for the writers of other dialects."""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from gateway.errors import EngineFailed
from gateway.translate.chat import Chunk, ChunkChoice, Delta, FunctionCall, Json, Timings, ToolCall, Usage

DONE = b"data: [DONE]\n\n"
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_READ = "The engine's answer is not in OpenAI's form and cannot be translated."

_encode = msgspec.json.Encoder().encode


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


# What an engine sent


class ReadChoice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Json = None
    stop_reason: Json | msgspec.UnsetType = msgspec.UNSET

    @property
    def said(self) -> Delta:
        return self.delta or self.message or Delta(content=self.text)


class ReadChunk(msgspec.Struct):
    """What is needed of a chunk, or of a whole answer, of a chat or of a completion; the rest may be anything."""

    choices: list[ReadChoice] = []
    usage: Usage | None = None
    timings: Timings | None = None


class DialectWriter:
    """Writes a stream in another dialect out of chunks. A dialect gives what `_chunk` and `_end` say in it."""

    _failure: EngineFailed | None = None

    def feed(self, events: bytes) -> bytes:
        """Raises nothing, as it may be called while the engine's bytes are being read: `finish` does instead."""
        written: list[bytes] = []
        try:
            for chunk in _read_chunks(events) if self._failure is None else ():
                written += self._chunk(chunk)
        except EngineFailed as exc:
            self._failure = exc
        except (OverflowError, RecursionError):
            self._failure = EngineFailed(_NOT_READ)
        return b"".join(written)

    def finish(self) -> bytes:
        """
        Raises:
            EngineFailed: an event could not be translated. Nothing was written since.
        """
        if self._failure is not None:
            raise self._failure
        return b"".join(self._end())

    def _chunk(self, chunk: ReadChunk) -> Iterable[bytes]:
        raise NotImplementedError

    def _end(self) -> Iterable[bytes]:
        raise NotImplementedError


_decode = msgspec.json.Decoder(ReadChunk).decode
_decode_choices = msgspec.json.Decoder(list[ReadChoice]).decode


def read_chunk(payload: bytes) -> ReadChunk:
    """
    Raises:
        EngineFailed: it is not in OpenAI's form. It may have held text, so that no answer is whole without it.
    """
    try:
        return _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return _read_odd(payload)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        raise EngineFailed(_NOT_READ) from None


def _read_chunks(block: bytes) -> Iterator[ReadChunk]:
    """The chunks of whole events; comments and `[DONE]` are passed over."""
    for event in block.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
        payload = b"\n".join(lines).strip()
        if payload and payload != b"[DONE]":
            yield read_chunk(payload)


# Chunks with `NaN`, halves of surrogate pairs or odd types


def _read_odd(payload: bytes) -> ReadChunk:
    read = json.loads(payload, parse_constant=lambda _: None)
    choices = json.dumps([_choice(choice) for choice in read.get("choices") or []], ensure_ascii=False)
    return ReadChunk(
        choices=_decode_choices(_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", choices)),
        usage=_facts(Usage, read.get("usage")),
        timings=_facts(Timings, read.get("timings")),
    )


def _choice(choice: dict[str, Json]) -> dict[str, Json]:
    said = {name: _said(choice[name]) for name in ("delta", "message") if choice.get(name) is not None}
    return said | _present(choice, "index", "text", "finish_reason", "logprobs", "stop_reason")


def _said(said: dict[str, Json]) -> dict[str, Json]:
    texts = _present(said, "content", "reasoning", "reasoning_content", "refusal")
    return {
        **{name: _text(text) for name, text in texts.items()},
        "tool_calls": [_call(call) for call in said.get("tool_calls") or []],
    }


def _text(text: Json) -> Json:
    """A list of parts as one text."""
    if not isinstance(text, list):
        return text
    return "".join(part if isinstance(part, str) else part["text"] or "" for part in text)


def _call(call: dict[str, Json]) -> dict[str, Json]:
    function = _present(call.get("function") or {}, "name", "arguments")
    return _present(call, "index", "id") | {"function": function}


def _present(members: dict[str, Json], *names: str) -> dict[str, Json]:
    return {name: members[name] for name in names if members.get(name) is not None}


_Facts = TypeVar("_Facts", Usage, Timings)


def _facts(kind: type[_Facts], told: Json) -> _Facts | None:
    """What is told of an answer's cost; a member of an odd type tells nothing."""
    if not isinstance(told, dict):
        return None
    facts = kind()
    for field in msgspec.structs.fields(kind):
        with contextlib.suppress(msgspec.ValidationError):
            setattr(facts, field.name, msgspec.convert(told.get(field.name), field.type))
    return facts
