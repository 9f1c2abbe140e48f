"""`/v1/completions`, by the `openai` library."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tests.conformance.ask import Answer, Ask, Token
from tests.conformance.dialects.openai import ENDS, OpenAIDialect


class OpenAICompletions(OpenAIDialect):
    title = "OpenAI completions"
    endpoint = "/v1/completions"
    lacks = frozenset(
        {
            "tool call",
            "forced tool call",
            "parallel tool calls",
            "tool result",
            "structured output",
            "image",
            "reasoning",
            "reasoning in vain",
        }
    )
    fields: ClassVar[Mapping[str, str]] = {"log probabilities": "logprobs", "stop sequence": "stop", "two answers": "n"}

    async def _create(self, ask: Ask) -> Any:
        fields: dict[str, Any] = {"model": ask.model, "max_tokens": ask.limit, "temperature": ask.temperature}
        if ask.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.stop:
            fields["stop"] = [ask.stop]
        if ask.logprobs:
            fields["logprobs"] = ask.logprobs
        if ask.n > 1:
            fields["n"] = ask.n
        return await self._clients.openai.completions.create(prompt=ask.prompt, **fields)

    def _read(self, reply: Any) -> Answer:
        return Answer(
            texts=[choice.text for choice in reply.choices],
            end=ENDS[reply.choices[0].finish_reason],
            prompt_tokens=reply.usage and reply.usage.prompt_tokens,
            output_tokens=reply.usage and reply.usage.completion_tokens,
            tokens=_tokens(reply.choices[0].logprobs),
        )

    def _gathered(self, chunks: list[Any]) -> Answer:
        usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
        choices = [choice for chunk in chunks for choice in chunk.choices]
        (reason,) = {choice.finish_reason for choice in choices if choice.finish_reason}
        indexes = sorted({choice.index for choice in choices})
        return Answer(
            texts=["".join(choice.text for choice in choices if choice.index == index) for index in indexes],
            end=ENDS[reason],
            prompt_tokens=usage and usage.prompt_tokens,
            output_tokens=usage and usage.completion_tokens,
            tokens=[token for choice in choices for token in _tokens(choice.logprobs)],
            pieces=sum(bool(choice.text) for choice in choices),
        )


def _tokens(logprobs: Any) -> list[Token]:
    """llama.cpp gives those of a chat here."""
    if logprobs is None:
        return []
    if logprobs.token_logprobs is None:
        return [Token(token["logprob"], len(token["top_logprobs"])) for token in getattr(logprobs, "content", [])]
    return [
        Token(logprob, len(others))
        for logprob, others in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    ]
