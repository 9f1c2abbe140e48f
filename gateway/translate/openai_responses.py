"""Turns answers in OpenAI's chat dialect into those of its Responses dialect."""

import time
from collections.abc import Iterator

import msgspec

from gateway.errors import EngineFailed
from gateway.translate import chat
from gateway.translate.chunks import DialectWriter, ReadChunk, new_id
from gateway.translate.openai_responses_items import Items
from gateway.translate.responses import (
    Event,
    Format,
    Incomplete,
    InputDetails,
    OutputDetails,
    Reasoning,
    Response,
    ResponseEvent,
    ResponsesRequest,
    TextConfig,
    Usage,
    encode_event,
)

_CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""What ended an answer before its end, by `finish_reason`."""

_decode = msgspec.json.Decoder(chat.Completion).decode


def start_response(request: ResponsesRequest) -> Response:
    """The answer to `request`, still empty. What was not asked for is the model's own, and therefore not told."""
    text = request.text or TextConfig()
    return Response(
        id=new_id("resp_"),
        created_at=int(time.time()),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning=request.reasoning or Reasoning(),
        temperature=request.temperature,
        text=TextConfig(format=text.format or Format(type="text"), verbosity=text.verbosity),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_p=request.top_p,
        user=request.user,
    )


class ResponsesWriter(DialectWriter):
    """Writes one answer; it is a `gateway.api.door.Writer`.

    Args:
        response: the answer as `start_response` made it.
    """

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, response: Response) -> None:
        self._response = response
        self._events = 0
        self._items = Items(response.output)
        self._began = False
        self._finish_reason: str | None = None

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            EngineFailed: `body` is no answer to a chat.
        """
        try:
            completion = _decode(body)
            choice = completion.choices[0]
        except (msgspec.DecodeError, RecursionError, IndexError):
            raise EngineFailed("The engine's answer cannot be put into the Responses dialect.") from None
        message = choice.message
        thought = message.reasoning_content or message.reasoning or ""
        text = message.content or message.refusal or ""
        if not isinstance(text, str):
            text = "".join(part.text or part.refusal or "" for part in text)
        events = [
            *self._items.take(thought, text, message.tool_calls or []),
            *self._items.end(cut_short=choice.finish_reason in _CUT_SHORT),
        ]
        del events  # nobody is told of them, but the items are made by the way
        self._conclude(choice.finish_reason, completion.usage)
        return msgspec.json.encode(self._response)

    def _chunk(self, chunk: ReadChunk) -> Iterator[bytes]:
        return map(self._write, self._events_of(chunk))

    def _end(self) -> Iterator[bytes]:
        return map(self._write, self._last_events())

    def next_number(self) -> int:
        """The `sequence_number` of one more event."""
        self._events += 1
        return self._events - 1

    def _write(self, event: Event) -> bytes:
        event.sequence_number = self.next_number()
        return encode_event(event)

    def _begin(self) -> Iterator[Event]:
        if not self._began:
            self._began = True
            yield ResponseEvent(type="response.created", response=self._response)
            yield ResponseEvent(type="response.in_progress", response=self._response)

    def _events_of(self, chunk: ReadChunk) -> Iterator[Event]:
        yield from self._begin()
        self._response.usage = _usage(chunk.usage) or self._response.usage
        for choice in chunk.choices:
            said = choice.said
            text = (said.content or "") + (said.refusal or "")
            yield from self._items.take(said.thought or "", text, said.tool_calls or [])
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _last_events(self) -> Iterator[Event]:
        yield from self._begin()
        yield from self._items.end(cut_short=self._finish_reason in _CUT_SHORT)
        self._conclude(self._finish_reason, None)
        yield ResponseEvent(type=f"response.{self._response.status}", response=self._response)

    def _conclude(self, finish_reason: str | None, usage: chat.Usage | None) -> None:
        response = self._response
        response.usage = _usage(usage) or response.usage
        cause = _CUT_SHORT.get(finish_reason or "")
        if cause is not None:
            response.status, response.incomplete_details = "incomplete", Incomplete(cause)
        else:
            response.status, response.completed_at = "completed", int(time.time())


def _usage(usage: chat.Usage | None) -> Usage | None:
    if usage is None:
        return None
    return Usage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(usage.cached_tokens or 0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(usage.reasoning_tokens or 0),
        total_tokens=usage.total_tokens or usage.prompt_tokens + usage.completion_tokens,
    )
