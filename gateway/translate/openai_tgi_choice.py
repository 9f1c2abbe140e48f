"""TGI's answers as typed structs, and one choice of an answer put right while it arrives.

Sources: `router/src/chat.rs` and `server.rs` in https://github.com/huggingface/text-generation-inference, and
recordings of its router.
"""

from collections.abc import Iterator, Sequence

import msgspec

from gateway.translate.chat import FunctionCall, ToolCall, arguments_text
from gateway.translate.chunks import new_id
from gateway.translate.stops import Entry, StopFilter, Text, joined

_REASONS = {None: None, "": None, "eos_token": "stop", "stop_sequence": "stop"}


class GivenCall(msgspec.Struct):
    """Its id is not read: TGI numbers calls within an answer, so that the next has the same."""

    index: int | None = None
    function: FunctionCall = msgspec.field(default_factory=FunctionCall)


class GivenMessage(msgspec.Struct):
    """Old versions send one tool call without the list around it."""

    content: str | None = None
    tool_calls: list[GivenCall] | GivenCall | None = None


class GivenLogprobs(msgspec.Struct):
    content: list[Entry] | None = None


class GivenChoice(msgspec.Struct):
    """A chunk's choice has a `delta`, that of a whole reply a `message`, and one of text completions a `text`."""

    index: int = 0
    delta: GivenMessage | None = None
    message: GivenMessage | None = None
    text: str | None = None
    logprobs: GivenLogprobs | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class GivenError(msgspec.Struct):
    message: str = ""


class Given(msgspec.Struct):
    """One event, or a whole reply. `error_type` is TGI's own word, and `done` whether an event ends its stream."""

    created: int = 0
    system_fingerprint: str | None = None
    choices: list[GivenChoice] | None = None
    usage: Usage | None = None
    error: GivenError | str | None = None
    error_type: str = ""
    done: bool = False


class Piece(msgspec.Struct, frozen=True):
    """What one event, or a whole reply, said of one choice."""

    index: int
    said: Text = Text("", [])
    calls: list[ToolCall] = []
    reason: str | None = None


class Answer:
    """One choice while it arrives.

    Args:
        limit: in tokens. TGI's streams have one event for each, but none for the name of a tool.
        streamed: whether it comes as a stream.
        before: what its text begins with.
    """

    def __init__(
        self, index: int, limit: int | None, stops: Sequence[str], *, streamed: bool, before: str = ""
    ) -> None:
        self.reason: str | None = None
        self.cut = False
        """Whether it ended here while the engine goes on."""
        self._index = index
        self._limit = limit
        self._streamed = streamed
        self._filter = StopFilter(stops)
        self._before = before
        self._events = 0
        self._arguments: dict[int, str] = {}

    def take(self, given: GivenChoice) -> Piece | None:
        if self.reason is not None:
            return None
        self._events += 1
        message = given.delta or given.message or GivenMessage(given.text)
        # The token that ends an answer is text in text completions, such as `<|im_end|>`, and arguments in old versions
        is_end = self._streamed and given.finish_reason == "eos_token"
        entries = given.logprobs.content if given.logprobs is not None else None
        said = self._filter.take(Text("" if is_end else message.content or "", entries or []))
        calls = list(self._take_calls(message.tool_calls, is_end))
        self.reason = self._ending(given.finish_reason)
        if self.reason is not None and not self._filter.found:
            said = joined((said, self._filter.rest()))
        if not (said.text or said.logprobs or calls or self.reason):
            return None
        before, self._before = self._before, ""
        return Piece(self._index, Text(before + said.text, said.logprobs), calls, self.reason)

    def close(self) -> Piece | None:
        """Takes `[DONE]`: a tool call ends with no other sign, and counts when its arguments are whole."""
        if self.reason is not None or not self._called:
            return None
        self.reason = "tool_calls"
        return Piece(self._index, reason=self.reason)

    def _ending(self, given: str | None) -> str | None:
        reason = _REASONS.get(given, given)
        if self._filter.found:
            self.cut, reason = reason is None, "stop"
        elif reason is None and self._streamed and self._events == self._limit:
            self.cut, reason = True, "length"
        return "tool_calls" if reason == "stop" and self._called else reason

    def _take_calls(self, given: list[GivenCall] | GivenCall | None, is_end: bool) -> Iterator[ToolCall]:
        for at, call in enumerate([given] if isinstance(given, GivenCall) else given or []):
            index = at if call.index is None else call.index
            arguments = call.function.arguments
            text = arguments if isinstance(arguments, str) else "" if arguments is None else arguments_text(arguments)
            before = self._arguments.get(index)
            if is_end and before is not None and _is_object(before):
                text = ""
            self._arguments[index] = (before or "") + text
            function = FunctionCall(name=call.function.name, arguments=text)
            if before is None:
                yield ToolCall(index=index, id=new_id("call_"), type="function", function=function)
            else:
                yield ToolCall(index=index, function=function)

    @property
    def _called(self) -> bool:
        return bool(self._arguments) and all(map(_is_object, self._arguments.values()))


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
