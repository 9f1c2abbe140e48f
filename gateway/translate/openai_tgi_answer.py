"""TGI's answers as OpenAI's: what its endpoints get wrong is put right while the answer arrives."""

import re
import time
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from gateway.errors import EngineRefused, EngineReported, GatewayError
from gateway.request import Endpoint
from gateway.translate.chat import Delta, Json, ToolCall
from gateway.translate.chunks import DONE, error_event, new_id
from gateway.translate.openai_tgi import Asked
from gateway.translate.openai_tgi_choice import Answer, Given, GivenChoice, GivenError, Piece, Usage
from gateway.translate.stops import Text, joined
from gateway.upstream.facts import EngineReport

_MAX_EVENT = 1024 * 1024
"""Bytes. TGI's events hold one token each."""
_OVERLOADED = "Model is overloaded"
_TYPES = {
    _OVERLOADED: "overloaded",
    "Input validation error": "validation",
    "Tool error": "tool_error",
    "Template error": "template_error",
}
"""TGI's own types of errors by how their texts begin, for where it does not tell them."""
_REFUSALS = {
    "overloaded": (429, "rate_limit_error"),
    "validation": (422, "invalid_request_error"),
    "tool_error": (422, "invalid_request_error"),
    "template_error": (422, "invalid_request_error"),
}
"""The status and OpenAI's type of errors that are not the engine's failure, by TGI's type."""
_OVERFLOW = re.compile(r"`inputs` (tokens \+ `max_new_tokens` must be <=|must have less than)")


class _Message(msgspec.Struct):
    role: str
    content: str | None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class _Choice(msgspec.Struct):
    index: int
    delta: Delta | UnsetType = UNSET
    message: _Message | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: Json = None
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    """A chunk or a whole reply."""

    id: str
    object: str
    created: int
    model: str
    choices: list[_Choice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET


_decode = msgspec.json.Decoder(Given).decode
_encode = msgspec.json.Encoder().encode


class TgiReader:
    """Reads one answer; see `gateway.engines.call.Reader`.

    An error event gets OpenAI's form, and nothing after it counts: TGI sends `[DONE]` after errors too.
    """

    content_type = b"text/event-stream"

    def __init__(self, asked: Asked) -> None:
        self.report = EngineReport()
        self._asked = asked
        self._chat = asked.endpoint is Endpoint.CHAT
        self._id = new_id("chatcmpl-" if self._chat else "cmpl-")
        self._created = 0
        self._fingerprint: str | UnsetType = UNSET
        self._answers: dict[int, Answer] = {}
        self._begun: set[int] = set()
        self._usage: Usage | UnsetType = UNSET
        self._rest = b""
        self._over = False

    def head(self, headers: Mapping[bytes, bytes]) -> None:
        """Takes what whole replies tell in their headers, times in milliseconds.

        `x-inference-time` is prefill and decode together, and `x-time-per-token` is that by the number of tokens, so
        that neither is known by itself. With several prompts the times are sums of what ran side by side.
        """
        queue = _number(headers, b"x-queue-time") if self._asked.choices == 1 else None
        self.report = EngineReport(
            prompt_tokens=_number(headers, b"x-prompt-tokens"),
            completion_tokens=_number(headers, b"x-generated-tokens"),
            queue=None if queue is None else queue / 1000,
        )

    # Streams

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._line, self._lines(data)))

    def flush(self) -> bytes:
        return self.feed(b"\n") + self._counts()

    def _lines(self, data: bytes) -> list[bytes]:
        """Those that are complete. Each event of TGI's is one line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_EVENT:
            lines.append(b'data: {"error":"an event is too large"}')
            self._rest = b""
        return lines

    def _line(self, line: bytes) -> bytes:
        if self._over:
            return b""
        if line.startswith(b":"):
            return b":\n\n"
        payload = _payload(line)
        if payload is None:
            return b""
        try:
            given = self._read(payload)
        except (msgspec.DecodeError, RecursionError):
            return b"data: " + payload + b"\n\n"
        if given.error is not None:
            return self._end(b"", error_event(_error_body(_failure(given))))
        chunks = self._chunks(self._take(given, streamed=True))
        if given.done:
            return chunks + self._chunks(self._close()) + self._end(self._counts())
        cut = any(answer.cut for answer in self._answers.values())
        if cut and len(self._answers) >= self._asked.choices and all(one.reason for one in self._answers.values()):
            return chunks + self._end(b"")  # before the engine has counted
        return chunks

    def _end(self, last: bytes, mark: bytes = DONE) -> bytes:
        self._over = True
        return last + mark

    def _chunks(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(map(self._chunk, pieces))

    def _chunk(self, piece: Piece) -> bytes:
        """A chunk. The counts of text completions stay with its end, where TGI has them, unless asked for apart."""
        said = piece.said
        choice = _Choice(piece.index, logprobs=self._logprobs(said), finish_reason=piece.reason)
        if self._chat:
            first = piece.index not in self._begun
            self._begun.add(piece.index)
            content = said.text if said.text or (first and not piece.calls) else None
            choice.delta = Delta(role="assistant" if first else None, content=content, tool_calls=piece.calls or None)
        else:
            choice.text = said.text
        here = bool(piece.reason) and not self._chat and not self._asked.usage
        return self._event([choice], self._usage if here else UNSET)

    def _counts(self) -> bytes:
        known = self._asked.usage and self._usage is not UNSET and not self._over
        return self._event([], self._usage) if known else b""

    def _event(self, choices: list[_Choice], usage: Usage | UnsetType) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return b"data: " + _encode(self._reply(kind, choices, usage)) + b"\n\n"

    # Whole replies

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            ValueError: it is no answer, or not a whole one.
            GatewayError: the engine reported an error where a stream was gathered.
        """
        if body.lstrip().startswith(b"{"):
            pieces = [*self._take(self._checked(body), streamed=False), *self._close()]
        else:
            pieces = self._gather(body)
        if not pieces or not all(answer.reason for answer in self._answers.values()):
            raise ValueError("not a whole answer")
        kind = "chat.completion" if self._chat else "text_completion"
        choices = [self._choice(index, pieces) for index in sorted(self._answers)]
        return _encode(self._reply(kind, choices, self._usage))

    def _gather(self, body: bytes) -> list[Piece]:
        pieces: list[Piece] = []
        for payload in filter(None, map(_payload, self._lines(body + b"\n"))):
            given = self._checked(payload)
            pieces += self._take(given, streamed=True)
            if given.done:
                return [*pieces, *self._close()]
        return pieces

    def _choice(self, index: int, pieces: list[Piece]) -> _Choice:
        own = [piece for piece in pieces if piece.index == index]
        said = joined(piece.said for piece in own)
        choice = _Choice(index, logprobs=self._logprobs(said), finish_reason=self._answers[index].reason)
        calls: dict[int | None, ToolCall] = {}
        for call in (call for piece in own for call in piece.calls):
            if (begun := calls.get(call.index)) is None:
                calls[call.index] = msgspec.structs.replace(call, index=None)
            else:
                begun.function.arguments = f"{begun.function.arguments}{call.function.arguments}"
        if not self._chat:
            choice.text = said.text
        else:
            content = said.text if said.text or not calls else None
            choice.message = _Message("assistant", content, list(calls.values()) if calls else UNSET)
        return choice

    # Both

    def _read(self, payload: bytes) -> Given:
        """
        Raises:
            msgspec.DecodeError, RecursionError: it is not in TGI's form.
        """
        return Given(done=True) if payload == b"[DONE]" else _decode(payload)

    def _checked(self, payload: bytes) -> Given:
        try:
            given = self._read(payload)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if given.error is not None:
            raise _failure(given)
        return given

    def _logprobs(self, said: Text) -> Json:
        return {"content": said.logprobs} if said.logprobs else None

    def _take(self, given: Given, *, streamed: bool) -> list[Piece]:
        self._created = self._created or given.created
        self._fingerprint = given.system_fingerprint or self._fingerprint
        choices = given.choices or []
        if given.usage is not None:
            self._count(given.usage, self._asked.limit if streamed else None)
        for choice in choices:
            if choice.index not in self._answers:
                self._answers[choice.index] = self._begin(choice.index, streamed)
        return [piece for choice in choices if (piece := self._answers[choice.index].take(choice)) is not None]

    def _begin(self, index: int, streamed: bool) -> Answer:
        asked = self._asked
        before = dict(enumerate(asked.echo)).get(index, "")
        return Answer(index, asked.limit, asked.stops, streamed=streamed, before=before)

    def _count(self, usage: Usage, limit: int | None) -> None:
        """Adds the counts of one prompt, without what the engine went on with after `limit`."""
        sum_ = self._usage or Usage()
        completion = usage.completion_tokens if limit is None else min(usage.completion_tokens, limit)
        self._usage = Usage(
            sum_.prompt_tokens + usage.prompt_tokens,
            sum_.completion_tokens + completion,
            sum_.total_tokens + usage.prompt_tokens + completion,
        )

    def _close(self) -> list[Piece]:
        """Takes the engine's `[DONE]`. One that comes alone ends a tool call that was cut off within its name."""
        if not self._answers and self._asked.tools and self._asked.limit is not None:
            return self._take(Given(choices=[GivenChoice(finish_reason="length")]), streamed=True)
        return [piece for answer in self._answers.values() if (piece := answer.close()) is not None]

    def _reply(self, kind: str, choices: list[_Choice], usage: Usage | UnsetType) -> _Reply:
        self._created = self._created or int(time.time())
        return _Reply(self._id, kind, self._created, self._asked.model, choices, usage, self._fingerprint)


def _payload(line: bytes) -> bytes | None:
    return line[5:].strip() if line.startswith(b"data:") else None


def _number(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name, b"")
    return int(value) if value.isdigit() else None


# Errors


def _failure(given: Given) -> GatewayError:
    """What an error inside a stream stands for. OpenAI's endpoints give each the status 422, so its words tell."""
    message = given.error.message if isinstance(given.error, GivenError) else given.error or ""
    kind = given.error_type or next((_TYPES[start] for start in _TYPES if message.startswith(start)), "")
    if kind not in _REFUSALS:
        return EngineReported(message or "The engine reported an error without words.")
    status, openai_type = _REFUSALS[kind]
    refused = EngineRefused(message, status=status)
    refused.kind = openai_type
    refused.code = code_of(message) or refused.code
    return refused


def code_of(message: str) -> str | None:
    """The code by which clients know an error, from its text."""
    if message.startswith(_OVERLOADED):
        return "engine_overloaded"
    return "context_length_exceeded" if _OVERFLOW.search(message) else None


def _error_body(error: GatewayError) -> bytes:
    body = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return _encode({"error": body})
