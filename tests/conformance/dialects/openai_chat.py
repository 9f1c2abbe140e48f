"""`/v1/chat/completions`, by the `openai` library."""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from tests.conformance.ask import ABOUT, PARAMETERS, PNG, TOOL, Answer, Ask, Assistant, Call, Result, Turn, User
from tests.conformance.dialects.openai import ENDS, OpenAIDialect, tokens

FUNCTION = {"type": "function", "function": {"name": TOOL, "description": ABOUT, "parameters": PARAMETERS}}


class OpenAIChat(OpenAIDialect):
    title = "OpenAI chat"
    endpoint = "/v1/chat/completions"
    fields: ClassVar[Mapping[str, str]] = {
        "forced tool call": "tool_choice",
        "parallel tool calls": "tools",
        "structured output": "response_format",
        "image": "messages",
        "reasoning": "reasoning_effort",
        "log probabilities": "logprobs",
        "stop sequence": "stop",
        "two answers": "n",
    }

    async def _create(self, ask: Ask) -> Any:
        fields: dict[str, Any] = {"model": ask.model, "max_tokens": ask.limit, "temperature": ask.temperature}
        if ask.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.tools:
            fields["tools"] = [FUNCTION]
        if ask.forced:
            fields["tool_choice"] = "required"
        if ask.schema:
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": ask.schema}}
        if ask.stop:
            fields["stop"] = [ask.stop]
        if ask.logprobs:
            fields |= {"logprobs": True, "top_logprobs": ask.logprobs}
        if ask.n > 1:
            fields["n"] = ask.n
        if ask.think:
            fields["reasoning_effort"] = "low"
        return await self._clients.openai.chat.completions.create(
            messages=[_message(turn) for turn in ask.turns], **fields
        )

    def _read(self, reply: Any) -> Answer:
        choice = reply.choices[0]
        calls = [
            Call(call.id, json.loads(call.function.arguments), call.function.name)
            for call in choice.message.tool_calls or []
        ]
        return Answer(
            texts=[choice.message.content or "" for choice in reply.choices],
            end=ENDS[choice.finish_reason],
            prompt_tokens=reply.usage and reply.usage.prompt_tokens,
            output_tokens=reply.usage and reply.usage.completion_tokens,
            calls=calls,
            thoughts=_thoughts(choice.message),
            tokens=tokens(choice.logprobs.content) if choice.logprobs else [],
        )

    def _gathered(self, chunks: list[Any]) -> Answer:
        usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
        choices = [choice for chunk in chunks for choice in chunk.choices]
        deltas = [choice.delta for choice in choices if choice.index == 0]
        texts: defaultdict[int, str] = defaultdict(str)
        calls: defaultdict[int, list[str]] = defaultdict(lambda: ["", "", ""])
        for choice in choices:
            texts[choice.index] += choice.delta.content or ""
        for part in (part for delta in deltas for part in delta.tool_calls or []):
            function = part.function
            told = (part.id, function and function.arguments, function and function.name)
            calls[part.index] = [known + (new or "") for known, new in zip(calls[part.index], told, strict=True)]
        (reason,) = {choice.finish_reason for choice in choices if choice.finish_reason}
        return Answer(
            texts=[text for _, text in sorted(texts.items())],
            end=ENDS[reason],
            prompt_tokens=usage and usage.prompt_tokens,
            output_tokens=usage and usage.completion_tokens,
            calls=[Call(call_id, json.loads(arguments), name) for call_id, arguments, name in calls.values()],
            thoughts="".join(map(_thoughts, deltas)),
            tokens=[token for choice in choices if choice.logprobs for token in tokens(choice.logprobs.content)],
            pieces=sum(bool(delta.content) for delta in deltas),
        )


def _message(turn: Turn) -> Any:
    match turn:
        case User(text, image=False):
            return {"role": "user", "content": text}
        case User(text):
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
            return {"role": "user", "content": [{"type": "text", "text": text}, image]}
        case Assistant(text, thoughts, calls):
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if thoughts:
                message["reasoning_content"] = thoughts
            if calls:
                message["tool_calls"] = [_tool_call(call) for call in calls]
            return message
        case Result(call, text):
            return {"role": "tool", "tool_call_id": call, "content": text}


def _tool_call(call: Call) -> Any:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}


def _thoughts(message: Any) -> str:
    """Engines have two names for it; the gateway passes on what they say."""
    return getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
