"""vLLM's OpenAI server (vllm/entrypoints/openai)."""

from typing import ClassVar

from gateway.engines.base import Health, State
from gateway.engines.openai import OpenAIEngine
from gateway.request import Endpoint
from gateway.upstream.http import httpx


class VllmEngine(OpenAIEngine):
    """Probed by `/health`, which answers 503 once the engine process has died. While it loads nothing listens."""

    kind: ClassVar[str] = "vllm"
    serves: ClassVar[frozenset[Endpoint]] = frozenset(Endpoint)

    async def probe(self, client: httpx.AsyncClient) -> Health:
        reply = await self.get(client, "/health")
        if reply.status_code != 200:
            return Health(State.DOWN, f"its health endpoint answers HTTP {reply.status_code}")
        return await self.probe_models(client)
