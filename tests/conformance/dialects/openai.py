"""What OpenAI's dialects share: one library, and the form of errors."""

from abc import abstractmethod
from typing import Any

import openai

from tests.conformance.ask import Answer, Ask, End, Refusal, Token
from tests.conformance.dialects.base import Dialect, begin

ENDS = {"stop": End.STOP, "length": End.LIMIT, "tool_calls": End.CALLS}


class OpenAIDialect(Dialect):
    library = "openai"

    async def answer(self, ask: Ask) -> Answer:
        try:
            reply = await self._create(ask)
            return self._gathered([part async for part in reply]) if ask.stream else self._read(reply)
        except openai.APIStatusError as error:
            raise _refusal(error) from None

    async def leave(self, ask: Ask) -> None:
        stream = await self._create(ask)
        await begin(stream)
        await stream.close()

    @abstractmethod
    async def _create(self, ask: Ask) -> Any:
        """The library's answer, or its stream."""

    @abstractmethod
    def _read(self, reply: Any) -> Answer: ...

    @abstractmethod
    def _gathered(self, parts: list[Any]) -> Answer:
        """What the parts of a stream say together."""


def _refusal(error: openai.APIStatusError) -> Refusal:
    """
    Raises:
        AssertionError: the error has another form than OpenAI's.
    """
    told = error.body
    assert isinstance(told, dict), f"no error object: {told!r}"
    message, kind, code = told.get("message"), told.get("type"), told.get("code")
    assert isinstance(message, str), f"an error without a message: {told!r}"
    assert isinstance(kind, str), f"an error without a type: {told!r}"
    return Refusal(error.status_code, code if isinstance(code, str) else kind, message, told.get("param"))


def tokens(content: Any) -> list[Token]:
    """Log probabilities as a chat has them."""
    return [Token(token.logprob, len(token.top_logprobs)) for token in content or []]
