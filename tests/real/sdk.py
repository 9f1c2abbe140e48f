"""The `openai` library as its users have it: both of its clients behind one face, so that a test speaks for both."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
from anyio import to_thread

Ask = Callable[[Any], Any]
"""Takes a client, of either sort, and makes one call with it."""

NO_PROXY: dict[str, Any] = {"trust_env": False}


class Sdk:
    """One client. The synchronous one works in a thread, as it would block the event loop."""

    def __init__(self, client: openai.OpenAI | openai.AsyncOpenAI) -> None:
        self._client = client

    async def __call__(self, ask: Ask) -> Any:
        """What the call returns."""
        if isinstance(self._client, openai.AsyncOpenAI):
            return await ask(self._client)
        return await to_thread.run_sync(ask, self._client)

    async def all(self, ask: Ask) -> list[Any]:
        """All that the call returns piece by piece: a stream's chunks, or a list's entries."""
        if isinstance(self._client, openai.AsyncOpenAI):
            pieces = ask(self._client)
            return [piece async for piece in (pieces if hasattr(pieces, "__aiter__") else await pieces)]
        return await to_thread.run_sync(lambda client: list(ask(client)), self._client)


@asynccontextmanager
async def sdk_client(kind: str, base_url: str, key: str) -> AsyncIterator[Sdk]:
    """A client of the `kind` `sync` or `async` that tries each call once."""
    settings: dict[str, Any] = {"base_url": f"{base_url}/v1", "api_key": key, "max_retries": 0, "timeout": 60.0}
    if kind == "async":
        async with openai.AsyncOpenAI(**settings, http_client=openai.DefaultAsyncHttpxClient(**NO_PROXY)) as client:
            yield Sdk(client)
    else:
        with openai.OpenAI(**settings, http_client=openai.DefaultHttpxClient(**NO_PROXY)) as blocking:
            yield Sdk(blocking)
