"""Anthropic's messages: what their streams and their answers in one piece say.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from typing import ClassVar

import msgspec

from gateway.upstream.events import EventScanner
from gateway.upstream.facts import NO_VALUE, EngineReport, filled


class _Usage(msgspec.Struct):
    """`input_tokens` leaves out those that were read from a cache or written into one."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str = ""


class _Delta(msgspec.Struct):
    text: msgspec.Raw = NO_VALUE
    thinking: msgspec.Raw = NO_VALUE
    partial_json: msgspec.Raw = NO_VALUE
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    type: str
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


class MessagesScanner(EventScanner):
    """A stream of one message. It is whole once it has said why it stops."""

    END: ClassVar[bytes] = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    @property
    def whole(self) -> bool:
        return self.finish_reason is not None and not self.error

    def _event(self, payload: bytes, source: bytes) -> bool:
        try:
            event = _decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return self._unread(payload)
        match event.type:
            case "message_stop":
                self._end(source)
                return False
            case "error":
                self.error = payload
                return False
            case "message_start" if event.message is not None:
                self.report = _report(self.report, event.message.usage)
            case "message_delta":
                self.report = _report(self.report, event.usage)
                if event.delta is not None and event.delta.stop_reason:
                    self.finish_reason = event.delta.stop_reason
            case "content_block_start" if event.content_block is not None and event.content_block.type == "tool_use":
                self._output()
            case "content_block_delta" if event.delta is not None and _has_output(event.delta):
                self._output()
        return True

    def _output(self) -> None:
        self.events += 1
        self.output = self.started = True


def read_message(body: bytes) -> EngineReport:
    """The report inside a message that came in one piece.

    Raises:
        ValueError: it is no message.
    """
    answer = _decode_answer(body)
    if answer.type != "message":
        raise ValueError("not a message")
    return _report(EngineReport(), answer.usage)


def _has_output(delta: _Delta) -> bool:
    return filled(delta.text) or filled(delta.thinking) or filled(delta.partial_json)


def _report(before: EngineReport, usage: _Usage | None) -> EngineReport:
    if usage is None:
        return before
    prompt, completion, cached = before.prompt_tokens, before.completion_tokens, before.cached_tokens
    if usage.cache_read_input_tokens is not None:
        cached = usage.cache_read_input_tokens
    if usage.input_tokens is not None:
        prompt = usage.input_tokens + (cached or 0) + (usage.cache_creation_input_tokens or 0)
    if usage.output_tokens is not None:
        completion = usage.output_tokens
    return EngineReport(prompt, completion, cached)
