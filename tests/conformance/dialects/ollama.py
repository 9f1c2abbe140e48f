"""`/api/chat` and `/api/generate`, by the `ollama` library."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import ollama

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
    Token,
    Turn,
    User,
)
from tests.conformance.dialects.base import Dialect, begin

ENDS = {"stop": End.STOP, "length": End.LIMIT}
FUNCTION = {"type": "function", "function": {"name": TOOL, "description": ABOUT, "parameters": PARAMETERS}}


class OllamaDialect(Dialect):
    library = "ollama"
    fields: ClassVar[Mapping[str, str]] = {
        "parallel tool calls": "tools",
        "structured output": "format",
        "image": "images",
        "reasoning": "think",
        "log probabilities": "logprobs",
        "stop sequence": "stop",
    }

    async def answer(self, ask: Ask) -> Answer:
        try:
            reply = await self._create(ask)
            return _read([part async for part in reply] if ask.stream else [reply])
        except ollama.ResponseError as error:
            raise _refusal(error) from None

    async def leave(self, ask: Ask) -> None:
        stream = await self._create(ask)
        await begin(stream)
        await stream.aclose()

    @abstractmethod
    async def _create(self, ask: Ask) -> Any:
        """The library's answer, or its stream."""


class OllamaChat(OllamaDialect):
    title = "Ollama chat"
    endpoint = "/api/chat"
    lacks = frozenset({"forced tool call", "two answers"})

    async def _create(self, ask: Ask) -> Any:
        tools: Any = {"tools": [FUNCTION]} if ask.tools else {}
        messages = [_message(turn) for turn in ask.turns]
        return await self._clients.ollama.chat(ask.model, messages, **tools, **_fields(ask))


class OllamaGenerate(OllamaDialect):
    title = "Ollama generate"
    endpoint = "/api/generate"
    lacks = frozenset({"tool call", "forced tool call", "parallel tool calls", "tool result", "two answers"})

    async def _create(self, ask: Ask) -> Any:
        images: Any = {"images": [PNG]} if any(isinstance(turn, User) and turn.image for turn in ask.turns) else {}
        return await self._clients.ollama.generate(ask.model, ask.prompt, **images, **_fields(ask))


def _fields(ask: Ask) -> Any:
    options: dict[str, Any] = {"num_predict": ask.limit, "temperature": 0}
    if ask.stop:
        options["stop"] = [ask.stop]
    fields: dict[str, Any] = {"stream": ask.stream, "options": options}
    if ask.schema:
        fields["format"] = ask.schema
    if ask.logprobs:
        fields |= {"logprobs": True, "top_logprobs": ask.logprobs}
    if ask.think:
        fields["think"] = "low"
    return fields


def _message(turn: Turn) -> Any:
    match turn:
        case User(text, image):
            return {"role": "user", "content": text, **({"images": [PNG]} if image else {})}
        case Assistant(text, thoughts, calls):
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if thoughts:
                message["thinking"] = thoughts
            if calls:
                message["tool_calls"] = [
                    {"function": {"name": call.name, "arguments": call.arguments}} for call in calls
                ]
            return message
        case Result(_, text):
            return {"role": "tool", "tool_name": TOOL, "content": text}


def _read(parts: list[Any]) -> Answer:
    """The parts of a stream, or the only one."""
    last = parts[-1]
    assert last.done
    assert not any(part.done for part in parts[:-1])
    texts = [_text(part) for part in parts]
    messages = [part.message for part in parts if getattr(part, "message", None)]
    functions = [call.function for message in messages for call in message.tool_calls or []]
    tokens = [token for part in parts for token in part.logprobs or []]
    return Answer(
        texts=["".join(texts)],
        end=End.CALLS if functions and last.done_reason == "stop" else ENDS[last.done_reason],
        prompt_tokens=last.prompt_eval_count,
        output_tokens=last.eval_count,
        calls=[Call(str(number), function.arguments, function.name) for number, function in enumerate(functions)],
        thoughts="".join(_thoughts(part) for part in parts),
        tokens=[Token(token.logprob, len(token.top_logprobs or [])) for token in tokens],
        pieces=sum(map(bool, texts)),
    )


def _text(part: Any) -> str:
    return (part.message.content if hasattr(part, "message") else part.response) or ""


def _thoughts(part: Any) -> str:
    return (part.message.thinking if hasattr(part, "message") else part.thinking) or ""


def _refusal(error: ollama.ResponseError) -> Refusal:
    """
    Raises:
        AssertionError: the error has another form than Ollama's, which is a text.
    """
    assert isinstance(error.error, str), f"no text: {error.error!r}"
    assert not error.error.startswith("{"), f"an object as a text: {error.error!r}"
    return Refusal(error.status_code, "", error.error)
