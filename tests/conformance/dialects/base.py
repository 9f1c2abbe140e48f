"""What a dialect is to the tests: a client library that asks, and says what it understood."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import anthropic
import ollama
import openai

from tests.conformance.ask import Answer, Ask

SOME = 3
"""Parts of a stream that a client has when it leaves."""


@dataclass(frozen=True)
class Clients:
    """Each library as its users have it, but that it tries once and knows of no proxy."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    ollama: ollama.AsyncClient


@asynccontextmanager
async def clients(url: str) -> AsyncIterator[Clients]:
    """Clients of the gateway at `url`."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(openai.DefaultAsyncHttpxClient(trust_env=False))
        other = await stack.enter_async_context(anthropic.DefaultAsyncHttpxClient(trust_env=False))
        yield Clients(
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60.0, http_client=http),
            anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0, timeout=60.0, http_client=other),
            await stack.enter_async_context(ollama.AsyncClient(url, trust_env=False, timeout=60)),
        )


class Dialect(ABC):
    """A dialect, asked with by its library."""

    title: ClassVar[str]
    endpoint: ClassVar[str]
    library: ClassVar[str]
    """Its name in the package index."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Features that the dialect has no field for."""
    tells_stop_sequences: ClassVar[bool] = False
    """Whether it has a word of its own for an answer that a stop sequence ended."""
    fields: ClassVar[Mapping[str, str]]
    """The field by which a feature is asked for, which a refusal has to name."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    @abstractmethod
    async def answer(self, ask: Ask) -> Answer:
        """
        Raises:
            Refusal: the answer is an error.
            AssertionError: the answer, or the error, is not in the form that the dialect has for it.
        """

    @abstractmethod
    async def leave(self, ask: Ask) -> None:
        """Asks for a stream, and leaves in the middle of it."""


async def begin(stream: AsyncIterable[Any]) -> None:
    """Reads a little of it."""
    left = SOME
    async for _ in stream:
        left -= 1
        if not left:
            return
