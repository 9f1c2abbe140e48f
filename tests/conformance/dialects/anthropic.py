"""`/v1/messages`, by the `anthropic` library."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, ClassVar

import anthropic

from tests.conformance.ask import (
    ABOUT,
    PARAMETERS,
    PNG,
    TOOL,
    Answer,
    Ask,
    Assistant,
    Call,
    End,
    Refusal,
    Result,
    Turn,
    User,
)
from tests.conformance.dialects.base import Dialect, begin

ENDS = {"end_turn": End.STOP, "stop_sequence": End.SEQUENCE, "max_tokens": End.LIMIT, "tool_use": End.CALLS}


PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""The parts of what a prompt counts."""


class AnthropicMessages(Dialect):
    title = "Anthropic messages"
    endpoint = "/v1/messages"
    library = "anthropic"
    tells_stop_sequences = True
    lacks = frozenset({"log probabilities", "two answers"})
    fields: ClassVar[Mapping[str, str]] = {
        "forced tool call": "tool_choice",
        "parallel tool calls": "tools",
        "structured output": "output_config",
        "image": "messages",
        "reasoning": "thinking",
        "stop sequence": "stop_sequences",
    }

    async def answer(self, ask: Ask) -> Answer:
        try:
            return await self._answer(ask)
        except anthropic.APIStatusError as error:
            raise _refusal(error) from None

    async def _answer(self, ask: Ask) -> Answer:
        if not ask.stream:
            return _read(await self._clients.anthropic.messages.create(**_request(ask)))
        async with self._clients.anthropic.messages.stream(**_request(ask)) as stream:
            pieces = [piece async for piece in stream.text_stream]
            answer = _read(await stream.get_final_message())
        assert "".join(pieces) == answer.text
        answer.pieces = len(pieces)
        return answer

    async def leave(self, ask: Ask) -> None:
        async with self._clients.anthropic.messages.stream(**_request(ask)) as stream:
            await begin(stream.text_stream)


def _request(ask: Ask) -> Any:
    fields: dict[str, Any] = {"model": ask.model, "max_tokens": ask.limit, "extra_body": {"temperature": 0}}
    if ask.tools:
        fields["tools"] = [{"name": TOOL, "description": ABOUT, "input_schema": PARAMETERS}]
    if ask.forced:
        fields["tool_choice"] = {"type": "any"}
    if ask.schema:
        fields["output_config"] = {"format": {"type": "json_schema", "schema": ask.schema}}
    if ask.stop:
        fields["stop_sequences"] = [ask.stop]
    if ask.think:
        fields |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024 + ask.limit}
    return {**fields, "messages": _messages(ask.turns)}


def _messages(turns: tuple[Turn, ...]) -> list[Any]:
    """Neighbours of one role are one message, as results are the user's."""
    roles = groupby(turns, key=lambda turn: "assistant" if isinstance(turn, Assistant) else "user")
    return [{"role": role, "content": [block for turn in group for block in _blocks(turn)]} for role, group in roles]


def _blocks(turn: Turn) -> Iterator[Any]:
    match turn:
        case User(text, image):
            yield {"type": "text", "text": text}
            if image:
                yield {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        case Assistant(text, thoughts, calls):
            if thoughts:
                yield {"type": "thinking", "thinking": thoughts, "signature": ""}
            if text:
                yield {"type": "text", "text": text}
            for call in calls:
                yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        case Result(call, text):
            yield {"type": "tool_result", "tool_use_id": call, "content": text}


def _read(message: Any) -> Answer:
    blocks, usage = message.content, message.usage
    return Answer(
        texts=["".join(block.text for block in blocks if block.type == "text")],
        end=ENDS[message.stop_reason],
        prompt_tokens=sum(getattr(usage, part) or 0 for part in PROMPT),
        output_tokens=usage.output_tokens,
        calls=[Call(block.id, block.input, block.name) for block in blocks if block.type == "tool_use"],
        thoughts="".join(block.thinking for block in blocks if block.type == "thinking"),
    )


def _refusal(error: anthropic.APIStatusError) -> Refusal:
    """
    Raises:
        AssertionError: the error has another form than Anthropic's.
    """
    body = error.body
    assert isinstance(body, dict), f"no error object: {body!r}"
    assert body.get("type") == "error", f"no error of Anthropic's: {body!r}"
    kind, message = body["error"]["type"], body["error"]["message"]
    assert isinstance(kind, str), f"an error without a type: {body!r}"
    assert isinstance(message, str), f"an error without a message: {body!r}"
    return Refusal(error.status_code, kind, message)
