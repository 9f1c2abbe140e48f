"""Answers in OpenAI's dialect as those of Ollama's native one.

Source: `api/types.go` in https://github.com/ollama/ollama, and recordings of a real server. A stream is one JSON object
a line, of which the last is `done`; durations are whole nanoseconds, and what is not known is absent.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.errors import EngineFailed, InvalidRequest
from gateway.translate.calls import Calls
from gateway.translate.chat import Timings, Usage, arguments_object
from gateway.translate.chunks import DialectWriter, ReadChunk, read_chunk

Json = Any
"""A JSON value that is carried and not looked into."""


class _CalledFunction(msgspec.Struct):
    index: int
    name: str
    arguments: dict[str, Json]


class _ToolCall(msgspec.Struct):
    id: str
    function: _CalledFunction


class _Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[_ToolCall] | None = None


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a stream, or an answer in one piece. `message` is of a chat, `response` of a generation."""

    model: str
    created_at: datetime
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool
    done_reason: str | None = None
    logprobs: list[Json] | None = None
    total_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_cached_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class _Embedding(msgspec.Struct):
    embedding: msgspec.Raw
    index: int = 0


class _EmbeddingList(msgspec.Struct):
    data: list[_Embedding]
    usage: Usage | None = None


class _Embedded(msgspec.Struct, kw_only=True, omit_defaults=True):
    model: str
    embeddings: list[msgspec.Raw]
    total_duration: int | None = None
    prompt_eval_count: int | None = None


class _EmbeddedOne(msgspec.Struct):
    embedding: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode_embeddings = msgspec.json.Decoder(_EmbeddingList).decode


class ChatWriter(DialectWriter):
    """Writes one answer to `/api/chat`.

    Args:
        model: the name that the client asked for.
    """

    content_type = b"application/x-ndjson"

    def __init__(self, model: str) -> None:
        self._model = model
        self._began = time.perf_counter_ns()
        self._calls = Calls("call_")
        self._reason: str | None = None
        self._usage: Usage | None = None
        self._timings: Timings | None = None

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            EngineFailed: it is no answer of OpenAI's dialect, or a tool call is no such.
        """
        line = self._line_of(read_chunk(body), done=True)
        if line is None:
            raise EngineFailed("The engine's answer has no choices.")
        return _encode(self._ended(line))

    def idle(self, reason: str) -> bytes:
        """The answer to a request that asked for nothing."""
        line = self._line("", "", [])
        line.done, line.done_reason = True, reason
        return _encode(line)

    def _chunk(self, chunk: ReadChunk) -> Iterator[bytes]:
        line = self._line_of(chunk, done=False)
        if line is not None:
            yield _encode(line) + b"\n"

    def _end(self) -> Iterator[bytes]:
        line = self._line("", "", _whole_calls(self._calls, self._reason))
        yield _encode(self._ended(line)) + b"\n"

    def _line_of(self, answer: ReadChunk, *, done: bool) -> Line | None:
        """The line for what `answer` says, or `None` where that is nothing but facts, kept for the last line."""
        self._usage = answer.usage or self._usage
        self._timings = answer.timings or self._timings
        choice = next((choice for choice in answer.choices if choice.index == 0), None)
        if choice is None:
            return None
        said = choice.said
        for part in said.tool_calls or []:
            self._calls.take(part)
        self._reason = choice.finish_reason or self._reason
        calls = _whole_calls(self._calls, self._reason) if done or choice.finish_reason else []
        text = (said.content or "") + (said.refusal or "")
        logprobs = choice.logprobs.get("content") if isinstance(choice.logprobs, dict) else None
        if not (text or said.thought or calls or logprobs or done):
            return None
        line = self._line(text, said.thought or "", calls)
        line.logprobs = logprobs
        return line

    def _line(self, text: str, thought: str, calls: "list[_ToolCall]") -> Line:
        message = _Message(role="assistant", content=text, thinking=thought or None, tool_calls=calls or None)
        return Line(model=self._model, created_at=datetime.now(UTC), message=message, done=False)

    def _ended(self, line: Line) -> Line:
        """Makes `line` the last one, with all that became known of the answer's cost."""
        line.done = True
        line.done_reason = "length" if self._reason == "length" else "stop"
        line.total_duration = time.perf_counter_ns() - self._began
        if (timings := self._timings) is not None:
            line.prompt_eval_count = ((timings.prompt_n or 0) + (timings.cache_n or 0)) or None
            line.prompt_eval_cached_count = timings.cache_n
            line.prompt_eval_duration = _nanoseconds(timings.prompt_ms)
            line.eval_count = timings.predicted_n
            line.eval_duration = _nanoseconds(timings.predicted_ms)
        if (usage := self._usage) is not None:
            line.prompt_eval_count = usage.prompt_tokens or line.prompt_eval_count
            line.eval_count = usage.completion_tokens or line.eval_count
            if usage.cached_tokens is not None:
                line.prompt_eval_cached_count = usage.cached_tokens
        return line


class GenerateWriter(ChatWriter):
    """Writes one answer to `/api/generate`, out of one to a chat or a completion."""

    def _line(self, text: str, thought: str, calls: "list[_ToolCall]") -> Line:  # noqa: ARG002 - no tools were offered
        return Line(
            model=self._model, created_at=datetime.now(UTC), response=text, thinking=thought or None, done=False
        )


class EmbedWriter:
    """Writes one answer to `/api/embed`. There are no streams of it."""

    content_type = b"application/json"

    def __init__(self, model: str) -> None:
        self._model = model
        self._began = time.perf_counter_ns()

    def feed(self, events: bytes) -> bytes:
        raise NotImplementedError

    def finish(self) -> bytes:
        raise NotImplementedError

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            EngineFailed: it is no list of embeddings.
        """
        vectors, usage = _vectors(body)
        embedded = _Embedded(model=self._model, embeddings=vectors)
        embedded.total_duration = time.perf_counter_ns() - self._began
        embedded.prompt_eval_count = (usage.prompt_tokens or None) if usage is not None else None
        return _encode(embedded)

    def idle(self, _: str) -> bytes:
        return _encode(_Embedded(model=self._model, embeddings=[]))


class EmbeddingsWriter(EmbedWriter):
    """Writes one answer to `/api/embeddings`."""

    def whole(self, body: bytes) -> bytes:
        vectors, _ = _vectors(body)
        return _encode(_EmbeddedOne(vectors[0]))

    def idle(self, _: str) -> bytes:
        return _encode(_EmbeddedOne(msgspec.Raw(b"[]")))


def _whole_calls(calls: Calls, reason: str | None) -> list[_ToolCall]:
    """The calls so far, for clients that get them whole. One that the output limit cut is left out.

    Raises:
        EngineFailed: the arguments of another one are not a JSON object.
    """
    whole: list[_ToolCall] = []
    for call in calls.take_all():
        try:
            arguments = arguments_object(call.arguments, "the answer")
        except InvalidRequest:
            if reason == "length":
                continue
            raise EngineFailed("The engine called a tool with arguments that are not a JSON object.") from None
        whole.append(_ToolCall(call.id, _CalledFunction(len(whole), call.name, arguments)))
    return whole


def _vectors(body: bytes) -> tuple[list[msgspec.Raw], Usage | None]:
    """The embeddings in the order of their inputs, number by number as the engine wrote them."""
    try:
        answer = _decode_embeddings(body)
    except (msgspec.DecodeError, RecursionError):
        answer = _EmbeddingList([])
    vectors = [one.embedding for one in sorted(answer.data, key=lambda one: one.index)]
    if not vectors or not all(bytes(vector).startswith(b"[") for vector in vectors):
        raise EngineFailed("The engine's answer holds no embeddings as lists of numbers.")
    return vectors, answer.usage


def _nanoseconds(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * 1e6)
