"""llama.cpp's server (tools/server in ggml-org/llama.cpp)."""

from typing import ClassVar

import msgspec

from gateway.engines.base import Health, State
from gateway.engines.openai import OpenAIEngine
from gateway.upstream.http import httpx


class _Props(msgspec.Struct):
    total_slots: int | None = None


class LlamaCppEngine(OpenAIEngine):
    """Probed by `/health`, which answers 503 while the model loads; its slots are read from `/props`.

    `/slots` is not asked: with sleep on idle it would wake the model.
    """

    kind: ClassVar[str] = "llamacpp"

    async def probe(self, client: httpx.AsyncClient) -> Health:
        unwell = _unwell(await self.get(client, "/health"))
        if unwell is not None:
            return unwell
        health = await self.probe_models(client)
        if health.state is not State.READY:
            return health
        return msgspec.structs.replace(health, slots=await self._slots(client))

    async def _slots(self, client: httpx.AsyncClient) -> int | None:
        reply = await self.get(client, "/props")
        try:
            return msgspec.json.decode(reply.content, type=_Props).total_slots if reply.status_code == 200 else None
        except (msgspec.DecodeError, RecursionError):
            return None


def _unwell(reply: httpx.Response) -> Health | None:
    if reply.status_code == 200:
        return None
    if reply.status_code == 503:
        return Health(State.LOADING, "loading its model")
    return Health(State.DOWN, f"its health endpoint answers HTTP {reply.status_code}")
