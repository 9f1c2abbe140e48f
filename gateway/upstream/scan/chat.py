"""OpenAI's chats and completions: what their streams and their answers in one piece say."""

import json
from typing import ClassVar

import msgspec

from gateway.upstream.events import EventScanner
from gateway.upstream.facts import NO_VALUE, EngineReport, Usage, filled, read_progress, read_report


class _Delta(msgspec.Struct):
    content: msgspec.Raw = NO_VALUE
    reasoning: msgspec.Raw = NO_VALUE
    reasoning_content: msgspec.Raw = NO_VALUE
    refusal: msgspec.Raw = NO_VALUE
    tool_calls: msgspec.Raw = NO_VALUE
    function_call: msgspec.Raw = NO_VALUE
    audio: msgspec.Raw = NO_VALUE


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: msgspec.Raw = NO_VALUE
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: msgspec.Raw = NO_VALUE
    object: str | None = None
    usage: Usage | None = None
    timings: msgspec.Raw = NO_VALUE
    prompt_progress: msgspec.Raw = NO_VALUE


class _Ended(msgspec.Struct):
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Ended] | None = None
    error: msgspec.Raw = NO_VALUE
    usage: Usage | None = None
    timings: msgspec.Raw = NO_VALUE


_decode = msgspec.json.Decoder(_Event).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode


class ChatScanner(EventScanner):
    """A stream of chunks. Without `[DONE]` it is whole when all choices that were asked for have finished."""

    END: ClassVar[bytes] = b"data: [DONE]\n\n"

    def __init__(self, choices: int = 1, max_event_bytes: int = 64 * 1024 * 1024) -> None:
        super().__init__(choices, max_event_bytes)
        self._begun: set[int] = set()
        self._finished: set[int] = set()

    @property
    def whole(self) -> bool:
        if self.error:
            return False
        if self.done:  # the engine's own word for it, unless a choice is still open
            return bool(self._finished) and self._begun <= self._finished
        return len(self._finished) >= self._choices

    def cut_short(self) -> bytes:
        """A last chunk for each choice that is unfinished, with the members that the latest one had."""
        try:
            members = msgspec.json.decode(self.last, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            return b""
        members = {name: value for name, value in members.items() if name not in ("usage", "timings", "choices")}
        is_text = bytes(members.get("object", NO_VALUE)) == b'"text_completion"'
        empty: dict[str, object] = {"text": ""} if is_text else {"delta": {}}
        ends = ({"index": index, **empty, "finish_reason": "length"} for index in sorted(self._begun - self._finished))
        chunks = (members | {"choices": msgspec.Raw(msgspec.json.encode([end]))} for end in ends)
        return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)

    def _event(self, payload: bytes, source: bytes) -> bool:
        try:
            event = _decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return self._odd_event(payload, source)
        self.last = payload
        if event.prompt_progress is not NO_VALUE and self._progress(event) and self.hides_progress:
            return False
        if event.choices:
            self.events += 1
            for choice in event.choices:
                self._begun.add(choice.index)
                if choice.finish_reason:
                    self._finished.add(choice.index)
                    self.finish_reason = choice.finish_reason
                if not self.output and _has_output(choice):
                    self.output = self.started = True
        elif filled(event.error) or event.object == "error":
            self.error = payload
            return False
        if event.usage is not None or event.timings is not NO_VALUE:
            self.report = read_report(self.report, event.usage, event.timings)
        return True

    def _progress(self, event: _Event) -> bool:
        """Notes how far llama.cpp's prefill is, and returns whether `event` says nothing else."""
        told = read_progress(event.prompt_progress)
        self.progress = (told.processed, told.total)
        if self.prefilling is None:
            self.prefilling = told.time_ms / 1000
            self.report = EngineReport(prompt_tokens=told.total or None, cached_tokens=told.cache)
        return not any(_has_output(choice) or choice.finish_reason for choice in event.choices or ())

    def _odd_event(self, payload: bytes, source: bytes) -> bool:
        """What is not JSON as expected: the end mark, JSON with NaN or odd types (passed on), or broken (dropped)."""
        if payload.strip() == b"[DONE]":
            self._end(source)
            return False
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.dropped += 1
            return False
        if value.get("error") and not value.get("choices"):
            self.error = payload
            return False
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self.events += 1
                self.output = self.started = True
                index = choice.get("index")
                index = index if isinstance(index, int) else 0
                self._begun.add(index)
                if choice.get("finish_reason"):
                    self._finished.add(index)
                    self.finish_reason = str(choice["finish_reason"])
        return True


def _has_output(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return filled(choice.text)
    return (
        filled(delta.content)
        or filled(delta.reasoning)
        or filled(delta.reasoning_content)
        or filled(delta.tool_calls)
        or filled(delta.refusal)
        or filled(delta.function_call)
        or filled(delta.audio)
    )


def read_completion(body: bytes) -> EngineReport:
    """The report inside a reply that came in one piece.

    JSON of odd types, or with NaN, is an answer that tells nothing here.

    Raises:
        ValueError: `body` is not a JSON object, or is an error.
    """
    try:
        reply = _decode_completion(body)
    except msgspec.DecodeError:
        value = json.loads(body)
        if not isinstance(value, dict) or (value.get("error") and not value.get("choices")):
            raise ValueError("not an answer") from None
        return EngineReport()
    if not reply.choices and reply.error is not NO_VALUE and bytes(reply.error) != b"null":
        raise ValueError("an error")
    return read_report(EngineReport(), reply.usage, reply.timings)
