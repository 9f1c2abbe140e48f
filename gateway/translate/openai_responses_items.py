"""Makes the items of an answer in OpenAI's Responses dialect, and the events that tell of them."""

from collections.abc import Iterator, Sequence

import msgspec

from gateway.translate.calls import Call, Calls
from gateway.translate.chat import ToolCall
from gateway.translate.chunks import new_id
from gateway.translate.responses import (
    ArgumentsDelta,
    ArgumentsDone,
    CallItem,
    Event,
    Item,
    ItemEvent,
    Json,
    MessageItem,
    OutputText,
    PartEvent,
    ReasoningItem,
    ReasoningText,
    Said,
    TextDelta,
    TextDone,
)


class Items:
    """The items of one answer.

    A text or a thought is done when something else begins. So is a call if its arguments are whole; if not it stays
    open, since the parts of parallel calls may come in any order. Each event names its item.

    Args:
        output: gets the items, each when it begins.
    """

    def __init__(self, output: list[Item]) -> None:
        self._output = output
        self._open: list[_Open] = []
        self._calls = Calls("call_")
        self._called: list[_Called] = []

    def take(self, thought: str, text: str, calls: Sequence[ToolCall]) -> Iterator[Event]:
        """What came of the answer at once: a thought goes before the text that is its fruit."""
        if thought:
            yield from self._say(thought, thought=True)
        if text:
            yield from self._say(text, thought=False)
        for part in calls:
            yield from self._call(part)

    def end(self, *, cut_short: bool) -> Iterator[Event]:
        """Ends all that is open. Where the answer was cut short it is incomplete, but for calls that are whole."""
        for one in self._open:
            yield from one.end(incomplete=cut_short and not (isinstance(one, _Called) and one.settled))
        self._open = []

    def _say(self, text: str, *, thought: bool) -> Iterator[Event]:
        one = next((one for one in self._open if isinstance(one, _Said) and one.thought is thought), None)
        if one is None:
            one = _Said(len(self._output), thought=thought)
            yield from self._begin(one)
        yield one.more(text)

    def _call(self, part: ToolCall) -> Iterator[Event]:
        call, piece = self._calls.take(part)
        one = next((one for one in self._called if one.call is call), None)
        if one is None:
            one = _Called(len(self._output), call)
            self._called.append(one)
            yield from self._begin(one)
        if piece and one in self._open:  # what follows whole arguments is nothing but blanks
            yield one.more(piece)

    def _begin(self, one: "_Open") -> Iterator[Event]:
        for before in [before for before in self._open if before.settled]:
            yield from before.end()
            self._open.remove(before)
        self._open.append(one)
        self._output.append(one.item)
        yield from one.begin()


class _Open:
    """An item that is not done; `index` is its place among the items."""

    item: Item

    def __init__(self, index: int) -> None:
        self.index = index
        self.pieces: list[str] = []

    @property
    def settled(self) -> bool:
        """Whether it is done if something else begins."""
        return True

    def begin(self) -> Iterator[Event]:
        yield ItemEvent(type="response.output_item.added", output_index=self.index, item=self.item)

    def more(self, piece: str) -> Event:
        raise NotImplementedError

    def end(self, *, incomplete: bool = False) -> Iterator[Event]:
        self.item.status = "incomplete" if incomplete else "completed"
        yield ItemEvent(type="response.output_item.done", output_index=self.index, item=self.item)


class _Said(_Open):
    """A message or a thought, with one part that holds its text."""

    def __init__(self, index: int, *, thought: bool) -> None:
        super().__init__(index)
        self.item: MessageItem | ReasoningItem
        self.item = ReasoningItem(id=new_id("rs_")) if thought else MessageItem(id=new_id("msg_"))
        self.thought = thought
        self._name = "reasoning_text" if thought else "output_text"
        self._logprobs: list[Json] | msgspec.UnsetType = msgspec.UNSET if thought else []

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._part("added", self._said(""))

    def more(self, piece: str) -> Event:
        self.pieces.append(piece)
        return TextDelta(
            type=f"response.{self._name}.delta",
            item_id=self.item.id,
            output_index=self.index,
            delta=piece,
            logprobs=self._logprobs,
        )

    def end(self, *, incomplete: bool = False) -> Iterator[Event]:
        text = "".join(self.pieces)
        self.item.content = [self._said(text)]
        yield TextDone(
            type=f"response.{self._name}.done",
            item_id=self.item.id,
            output_index=self.index,
            text=text,
            logprobs=self._logprobs,
        )
        yield self._part("done", self.item.content[0])
        yield from super().end(incomplete=incomplete)

    def _said(self, text: str) -> Said:
        return ReasoningText(text=text) if self.thought else OutputText(text=text)

    def _part(self, what: str, part: Said) -> Event:
        return PartEvent(type=f"response.content_part.{what}", item_id=self.item.id, output_index=self.index, part=part)


class _Called(_Open):
    """A call of a function."""

    def __init__(self, index: int, call: Call) -> None:
        super().__init__(index)
        self.call = call
        self.item: CallItem = CallItem(id=new_id("fc_"), call_id=call.id, name=call.name)

    @property
    def settled(self) -> bool:
        return self.call.whole

    def more(self, piece: str) -> Event:
        self.pieces.append(piece)
        return ArgumentsDelta(
            type="response.function_call_arguments.delta",
            item_id=self.item.id,
            output_index=self.index,
            delta=piece,
        )

    def end(self, *, incomplete: bool = False) -> Iterator[Event]:
        if not self.pieces and not incomplete:
            yield self.more("{}")  # a call without arguments, which must be JSON all the same
        self.item.arguments = "".join(self.pieces)
        yield ArgumentsDone(
            type="response.function_call_arguments.done",
            item_id=self.item.id,
            output_index=self.index,
            name=self.item.name,
            arguments=self.item.arguments,
        )
        yield from super().end(incomplete=incomplete)
