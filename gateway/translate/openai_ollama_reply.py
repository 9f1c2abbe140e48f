"""Answers of Ollama's native API as OpenAI's: lines of JSON as the events of a stream, and answers in one piece."""

import time
from collections.abc import Mapping
from typing import Protocol

import msgspec

from gateway.translate import ollama
from gateway.translate.chat import (
    Choice,
    Completion,
    Delta,
    FunctionCall,
    Message,
    Timings,
    ToolCall,
    Usage,
    make_usage,
)
from gateway.translate.chunks import DONE, ChunkWriter, error_event, new_id
from gateway.translate.embeddings import pack
from gateway.translate.ndjson import LineSplitter
from gateway.translate.ollama import Line
from gateway.translate.texts import Embedding, EmbeddingList, EmbeddingUsage, TextWriter
from gateway.upstream.facts import EngineReport

NDJSON = b"application/x-ndjson"

_MAX_LINE = 64 * 1024 * 1024
_LOADED = 0.1
"""Seconds above which `load_duration` means that the model was loaded: it takes some milliseconds when it was there."""
_UNREADABLE = b"data: unreadable\n\n"
"""Stands for a line that is no answer. It is no JSON, so that the relay counts it and leaves it out."""

_NO_ERROR = (b"", b"null")

_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(Line).decode
_decode_embedded = msgspec.json.Decoder(ollama.Embedded).decode


class _Error(msgspec.Struct):
    message: str
    type: str


class _ErrorBody(msgspec.Struct):
    error: _Error


class _Logprobs(msgspec.Struct):
    """OpenAI's `logprobs`."""

    content: list[ollama.TokenLogprob]
    refusal: None = None


class _Ending(Protocol):
    """Writes what ends a stream."""

    def finish(self, reason: str, timings: Timings | None = None) -> bytes: ...
    def usage(self, usage: Usage) -> bytes: ...


class _LineReader:
    """What both kinds of streams have in common. A stream without its last line ends without `[DONE]`.

    Args:
        ending: writes the end of the stream.
        usage: whether an event that counts tokens is part of it.

    Attributes:
        report: from the answer's end on, how long the model took to load for it, the wait for that included, if it
            was not loaded before.
    """

    content_type = NDJSON

    def __init__(self, ending: _Ending, *, usage: bool) -> None:
        self.report = EngineReport()
        self._ending = ending
        self._usage = usage
        self._lines = LineSplitter(_MAX_LINE)
        self._over = False

    def head(self, headers: Mapping[bytes, bytes]) -> None:
        """Ollama's headers say nothing."""

    def feed(self, data: bytes) -> bytes:
        """The events of the lines that are complete now."""
        events = b"".join(map(self._event, self._lines.feed(data)))
        if self._lines.too_large:
            events += self._error(f"The engine sent a line above {_MAX_LINE} bytes.")
        return events

    def flush(self) -> bytes:
        """The events of a last line without a line end."""
        return b"".join(map(self._event, self._lines.flush()))

    def _event(self, data: bytes) -> bytes:
        if self._over:
            return b""
        try:
            line = _decode_line(data)
            if bytes(line.error) not in _NO_ERROR:
                return self._error(ollama.read_fault(bytes(line.error)).message)
            output = self._output(line)
        except (ValueError, RecursionError):
            return _UNREADABLE
        return output + self._end(line) if line.done else output

    def _error(self, message: str) -> bytes:
        if self._over:
            return b""
        self._over = True
        told = _Error(message or "The engine reported an error without saying which.", "engine_error")
        return error_event(_encode(_ErrorBody(told)))

    def _end(self, line: Line) -> bytes:
        self._over = True
        self.report = EngineReport(load=_load(line))
        usage = _usage(line) if self._usage else None
        return (
            self._ending.finish(self._reason(line), _timings(line))
            + (self._ending.usage(usage) if usage is not None else b"")
            + DONE
        )

    def _whole(self, body: bytes) -> Line:
        """
        Raises:
            ValueError: it is no answer.
        """
        try:
            line = _decode_line(body)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if bytes(line.error) not in _NO_ERROR or not line.done:
            raise ValueError("not an answer")
        self.report = EngineReport(load=_load(line))
        return line

    def _output(self, line: Line) -> bytes:
        """The events for what a line holds of the answer."""
        raise NotImplementedError

    def _reason(self, line: Line) -> str:
        """OpenAI's `finish_reason`: Ollama's `length`, and `stop` for all others, such as a model without output."""
        return "length" if line.done_reason == "length" else "stop"


class ChatReader(_LineReader):
    """Reads one answer of `/api/chat`.

    Args:
        model: the name that the answer gives for its model.
        usage: whether a stream ends with an event that counts tokens.
        one_call: leave out all tool calls but the first, for a client that takes one at a time.
    """

    def __init__(self, model: str, *, usage: bool = False, one_call: bool = False) -> None:
        self._writer = ChunkWriter(model)
        super().__init__(self._writer, usage=usage)
        self._model = model
        self._one_call = one_call
        self._ids: list[str] = []
        """Those of the calls so far."""

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            ValueError: it is no answer.
        """
        line = self._whole(body)
        if line.message is None:
            raise ValueError("no message")
        said = line.message
        message = Message(
            role="assistant",
            content=said.content,
            reasoning_content=said.thinking or None,
            tool_calls=self._calls(said, streamed=False) or None,
        )
        choice = Choice(message=message, finish_reason=self._reason(line), logprobs=_logprobs(line))
        return _encode(
            Completion(
                id=new_id("chatcmpl-"),
                object="chat.completion",
                created=int(time.time()),
                model=self._model,
                choices=[choice],
                usage=_usage(line),
                timings=_timings(line),
            )
        )

    def _output(self, line: Line) -> bytes:
        said = line.message or ollama.Said()
        events = self._writer.reasoning(said.thinking) if said.thinking else b""
        logprobs = _logprobs(line)
        if said.content or logprobs is not None:
            events += self._writer.delta(Delta(content=said.content), logprobs=logprobs)
        if calls := self._calls(said, streamed=True):
            events += self._writer.delta(Delta(tool_calls=calls))
        return events

    def _calls(self, said: ollama.Said, *, streamed: bool) -> list[ToolCall]:
        """The calls in a message, each with an id that no other call of the answer has; counted up in a stream."""
        calls = []
        for call in said.tool_calls or []:
            if self._one_call and self._ids:
                break
            call_id = call.id if call.id and call.id not in self._ids else new_id("call_")
            function = FunctionCall(name=call.function.name, arguments=_arguments(call.function.arguments))
            index = len(self._ids) if streamed else None
            calls.append(ToolCall(index=index, id=call_id, type="function", function=function))
            self._ids.append(call_id)
        return calls

    def _reason(self, line: Line) -> str:
        reason = super()._reason(line)
        return "tool_calls" if reason == "stop" and self._ids else reason


class CompletionReader(_LineReader):
    """Reads one answer of `/api/generate`; the arguments are those of a `ChatReader`."""

    def __init__(self, model: str, *, usage: bool = False) -> None:
        self._writer = TextWriter(model)
        super().__init__(self._writer, usage=usage)

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            ValueError: it is no answer.
        """
        line = self._whole(body)
        return self._writer.whole(line.response, self._reason(line), _usage(line), _timings(line))

    def _output(self, line: Line) -> bytes:
        return self._writer.text(line.response) if line.response else b""


class EmbeddingReader:
    """Reads an answer of `/api/embed`.

    Args:
        model: the name that the answer gives for its model.
        count: how many texts were sent.
        as_base64: give each vector as the base64 of its float32 numbers, as OpenAI's SDKs ask for.
    """

    content_type = b"application/json"

    def __init__(self, model: str, count: int, *, as_base64: bool) -> None:
        self._model = model
        self._count = count
        self._as_base64 = as_base64
        self.report = EngineReport()

    def head(self, headers: Mapping[bytes, bytes]) -> None:
        """Ollama's headers say nothing."""

    def feed(self, data: bytes) -> bytes:
        """Embeddings do not stream."""
        return data

    def flush(self) -> bytes:
        """Embeddings do not stream."""
        return b""

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            ValueError: it is no answer, or not one vector for each text, or a number is none (NaN).
        """
        embedded = _decode_embedded(body)
        if len(embedded.embeddings) != self._count or not all(embedded.embeddings):
            raise ValueError("not one vector for each text")
        tokens = embedded.prompt_eval_count
        return _encode(
            EmbeddingList(
                model=self._model,
                data=[Embedding(index=at, embedding=self._shape(vec)) for at, vec in enumerate(embedded.embeddings)],
                usage=msgspec.UNSET if tokens is None else EmbeddingUsage(tokens, tokens),
            )
        )

    def _shape(self, vector: list[float]) -> list[float] | str:
        if not self._as_base64:
            return vector
        try:
            return pack(vector)
        except OverflowError:
            raise ValueError("a number beyond float32") from None


def _arguments(raw: msgspec.Raw) -> str:
    """A call's arguments as the text of a JSON object.

    Raises:
        ValueError: a string is not JSON.
    """
    data = bytes(raw)
    if data.startswith(b'"'):
        return msgspec.json.decode(data, type=str) or "{}"
    return "{}" if data in (b"", b"null") else data.decode()


def _logprobs(line: Line) -> _Logprobs | None:
    return None if line.logprobs is None else _Logprobs(line.logprobs)


def _load(line: Line) -> float | None:
    seconds = (line.load_duration or 0) / 1e9
    return seconds if seconds > _LOADED else None


def _usage(line: Line) -> Usage | None:
    """`None` where the engine did not count the prompt; an output that is not counted is empty."""
    if line.prompt_eval_count is None:
        return None
    return make_usage(line.prompt_eval_count, line.eval_count or 0, line.prompt_eval_cached_count)


def _timings(line: Line) -> Timings | None:
    """`None` where the engine measured nothing."""
    prompt, cached = line.prompt_eval_count, line.prompt_eval_cached_count
    timings = Timings(
        cache_n=cached,
        prompt_n=None if prompt is None else max(0, prompt - (cached or 0)),
        prompt_ms=_ms(line.prompt_eval_duration),
        predicted_n=line.eval_count,
        predicted_ms=_ms(line.eval_duration),
    )
    return timings if timings != Timings() else None


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6
