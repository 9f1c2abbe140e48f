"""Turns answers in OpenAI's chat dialect into those of Anthropic's Messages dialect."""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from gateway.errors import EngineFailed, InvalidRequest
from gateway.translate import chat
from gateway.translate.anthropic import (
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    Reply,
    Stop,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolUse,
    Usage,
    encode_event,
)
from gateway.translate.calls import Call, Calls
from gateway.translate.chunks import DialectWriter, ReadChunk, new_id

INVALID_JSON = "INVALID_JSON"
"""The member that holds a call's arguments which are not a JSON object, as Anthropic suggests for such cases.

Source: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/fine-grained-tool-streaming.
"""

_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use", "content_filter": "refusal"}

_decode = msgspec.json.Decoder(chat.Completion).decode


class MessagesWriter(DialectWriter):
    """Writes one answer; it is a `gateway.api.door.Writer`.

    Args:
        model: its name as the client knows it.
        stops: the texts that were asked to end the answer.
        thinking: whether the client is to see what the model thinks.
    """

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, model: str, *, stops: Sequence[str] = (), thinking: bool = True) -> None:
        self._reply = Reply(id=new_id("msg_"), model=model, usage=Usage())
        self._stops = stops
        self._thinking = thinking
        self._stream = _Blocks()
        self._began = False
        self._finish_reason: str | None = None
        self._stop_text: chat.Json = None

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            EngineFailed: `body` is no answer to a chat.
        """
        try:
            completion = _decode(body)
            choice = completion.choices[0]
        except (msgspec.DecodeError, RecursionError, IndexError):
            raise EngineFailed("The engine's answer cannot be put into the Messages dialect.") from None
        content = list(_content(choice.message, self._thinking))
        stop_text = None if choice.stop_reason is msgspec.UNSET else choice.stop_reason
        stop = self._stop(choice.finish_reason, stop_text, called=bool(choice.message.tool_calls))
        reply = msgspec.structs.replace(
            self._reply,
            content=content,
            stop_reason=stop.stop_reason,
            stop_sequence=stop.stop_sequence,
            usage=_usage(completion.usage),
        )
        return msgspec.json.encode(reply)

    def _begin(self) -> Iterator[bytes]:
        if not self._began:
            self._began = True
            yield encode_event(MessageStart(message=self._reply))

    def _chunk(self, chunk: ReadChunk) -> Iterator[bytes]:
        if chunk.usage is not None:
            self._reply.usage = _usage(chunk.usage)
        yield from self._begin()
        for choice in chunk.choices:
            said = choice.said
            if said.thought and self._thinking:
                yield from self._stream.thought(said.thought)
            if text := (said.content or "") + (said.refusal or ""):
                yield from self._stream.text(text)
            for part in said.tool_calls or []:
                yield from self._stream.call(part)
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.stop_reason is not msgspec.UNSET:
                self._stop_text = choice.stop_reason

    def _end(self) -> Iterator[bytes]:
        stop = self._stop(self._finish_reason, self._stop_text, called=self._stream.called)
        yield from self._begin()
        yield from self._stream.end()
        yield encode_event(MessageDelta(delta=stop, usage=self._reply.usage))
        yield encode_event(MessageStop())

    def _stop(self, finish_reason: str | None, stop_text: chat.Json, *, called: bool) -> Stop:
        if isinstance(stop_text, str) and stop_text in self._stops:
            return Stop(stop_reason="stop_sequence", stop_sequence=stop_text)
        if called and finish_reason not in ("length", "content_filter"):  # some engines call it `stop` all the same
            return Stop(stop_reason="tool_use")
        return Stop(stop_reason=_STOPS.get(finish_reason or "stop", "end_turn"))


class _Called(msgspec.Struct, eq=False, kw_only=True):
    call: Call
    block: int | None = None
    """The number of its block, once that has begun."""
    written: int = 0
    """How many pieces of the arguments are written."""


class _Blocks:
    """The blocks of one stream, one after the other.

    OpenAI's parts of parallel tool calls may come in any order. Only one call's block is open at a time; the others
    wait until its arguments are whole.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._open: type[Text | Thinking | ToolUse] | None = None
        self._calls = Calls("toolu_")
        self._called: list[_Called] = []
        self._waiting: deque[_Called] = deque()
        """Calls that are not whole, or not written; the block of the first one is open, or is to be the next."""

    @property
    def called(self) -> bool:
        return bool(self._called)

    def text(self, text: str) -> Iterator[bytes]:
        yield from self._continue(Text())
        yield self._delta(self._begun - 1, TextDelta(text=text))

    def thought(self, text: str) -> Iterator[bytes]:
        yield from self._continue(Thinking())
        yield self._delta(self._begun - 1, ThinkingDelta(thinking=text))

    def call(self, part: chat.ToolCall) -> Iterator[bytes]:
        call, piece = self._calls.take(part)
        one = next((one for one in self._called if one.call is call), None)
        if one is None:
            one = _Called(call=call)
            self._called.append(one)
            self._waiting.append(one)
        elif piece and one not in self._waiting:
            self._waiting.append(one)
        yield from self._write_calls()

    def end(self) -> Iterator[bytes]:
        yield from self._write_calls(all_of_them=True)
        yield from self._close()

    def _continue(self, block: Text | Thinking) -> Iterator[bytes]:
        yield from self._write_calls(all_of_them=True)
        if self._open is not type(block):
            yield from self._start(block)

    def _start(self, block: Text | Thinking | ToolUse) -> Iterator[bytes]:
        yield from self._close()
        self._open = type(block)
        yield encode_event(BlockStart(index=self._begun, content_block=block))
        self._begun += 1

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield encode_event(BlockStop(index=self._begun - 1))

    @staticmethod
    def _delta(index: int, delta: TextDelta | ThinkingDelta | InputDelta) -> bytes:
        return encode_event(BlockDelta(index=index, delta=delta))

    def _write_calls(self, *, all_of_them: bool = False) -> Iterator[bytes]:
        """Goes on with the first call that waits, and to the next one where the first is whole, or all are to be.

        A call that waits alone is not looked at, as long arguments would be parsed again for each of their parts.
        """
        while self._waiting:
            one = self._waiting[0]
            if one.block is None:
                one.block = self._begun
                yield from self._start(ToolUse(id=one.call.id, name=one.call.name, input={}))
            if unwritten := "".join(one.call.pieces[one.written :]):
                one.written = len(one.call.pieces)
                yield self._delta(one.block, InputDelta(partial_json=unwritten))
            if not all_of_them and (len(self._waiting) == 1 or not one.call.whole):
                return
            self._waiting.popleft()


def _content(message: chat.Message, thinking: bool) -> Iterator[Text | Thinking | ToolUse]:
    thought = message.reasoning_content or message.reasoning
    if thought and thinking:
        yield Thinking(thinking=thought)
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text or "" for part in content)
    if text or message.refusal:
        yield Text(text=text or message.refusal or "")
    taken: set[str] = set()
    for call in message.tool_calls or []:
        call_id = call.id if call.id and call.id not in taken else new_id("toolu_")
        taken.add(call_id)
        yield ToolUse(id=call_id, name=call.function.name or "", input=_input(call.function.arguments))


def _input(arguments: str | dict[str, chat.Json] | None) -> dict[str, chat.Json]:
    try:
        return chat.arguments_object(arguments, "the answer")
    except InvalidRequest:
        return {INVALID_JSON: arguments}


def _usage(usage: chat.Usage | None) -> Usage:
    """What the engine did not tell is 0: Anthropic's clients rely on numbers."""
    if usage is None:
        return Usage()
    cached = usage.cached_tokens or 0
    return Usage(
        input_tokens=max(0, usage.prompt_tokens - cached),
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=cached,
    )
