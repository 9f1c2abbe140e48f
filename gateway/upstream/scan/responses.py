"""OpenAI's responses: what their streams and their answers in one piece say.

Source: https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from typing import ClassVar

import msgspec

from gateway.upstream.events import EventScanner
from gateway.upstream.facts import NO_VALUE, EngineReport, filled


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = NO_VALUE


class _Answer(_Response):
    object: str = ""


class _Item(msgspec.Struct):
    type: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    response: _Response | None = None
    item: _Item | None = None
    delta: msgspec.Raw = NO_VALUE


class _Failed(msgspec.Struct):
    error: msgspec.Raw


_decode = msgspec.json.Decoder(_Event).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILURES = frozenset({"response.failed", "response.cancelled"})


class ResponsesScanner(EventScanner):
    """A stream of one response. Its last event is its end mark, and tells everything once more."""

    END: ClassVar[bytes] = b""

    @property
    def whole(self) -> bool:
        return bool(self.done) and not self.error

    def _event(self, payload: bytes, source: bytes) -> bool:
        try:
            event = _decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return self._unread(payload)
        kind, response = event.type, event.response
        if kind in _ENDS and response is not None:
            self.report = _report(response)
            self.finish_reason = _reason(response)
            self._end(source)
            return False
        if kind in _FAILURES or kind == "error":
            told = response.error if response is not None else NO_VALUE
            self.error = msgspec.json.encode(_Failed(told)) if filled(told) else payload
            return False
        calls = event.item is not None and event.item.type == "function_call"
        if filled(event.delta) or (calls and kind == "response.output_item.added"):
            self.events += 1
            self.output = self.started = True
        return True


def read_response(body: bytes) -> EngineReport:
    """The report inside a response that came in one piece.

    Raises:
        ValueError: it is no response, or one that failed.
    """
    answer = _decode_answer(body)
    if answer.object != "response" or answer.status not in ("completed", "incomplete"):
        raise ValueError("not a response that can be used")
    return _report(answer)


def _reason(response: _Response) -> str | None:
    details = response.incomplete_details
    return details.reason if details is not None and details.reason else response.status


def _report(response: _Response) -> EngineReport:
    usage = response.usage
    if usage is None:
        return EngineReport()
    details = usage.input_tokens_details
    return EngineReport(usage.input_tokens, usage.output_tokens, details.cached_tokens if details else None)
