"""vLLM's OpenAI server (vllm/entrypoints/openai)."""

from typing import ClassVar

import msgspec

from gateway.engines.base import Health, State
from gateway.engines.call import Call
from gateway.engines.openai import OpenAIEngine
from gateway.request import Endpoint, InferenceRequest
from gateway.upstream.http import httpx


class _Version(msgspec.Struct):
    version: str | None = None


class VllmEngine(OpenAIEngine):
    """Probed by `/health`, which answers 503 once the engine process has died. While it loads nothing listens."""

    kind: ClassVar[str] = "vllm"
    serves: ClassVar[frozenset[Endpoint]] = frozenset(Endpoint)

    def call(self, request: InferenceRequest, model: str) -> Call:
        """As for any engine, but for the one field that vLLM has another name for."""
        if b'"repeat_penalty"' not in request.body:
            return super().call(request, model)
        members = msgspec.json.decode(request.body_for(model), type=dict[str, msgspec.Raw])
        if "repeat_penalty" in members:
            members.setdefault("repetition_penalty", members.pop("repeat_penalty"))
        return Call(self.request(request.endpoint.value, msgspec.json.encode(members)))

    async def probe(self, client: httpx.AsyncClient) -> Health:
        reply = await self.get(client, "/health")
        if reply.status_code != 200:
            return Health(State.DOWN, f"its health endpoint answers HTTP {reply.status_code}")
        health = await self.probe_models(client)
        version = await self._version(client)
        models = tuple(msgspec.structs.replace(model, version=version) for model in health.models)
        return msgspec.structs.replace(health, models=models)

    async def _version(self, client: httpx.AsyncClient) -> str | None:
        reply = await self.get(client, "/version")
        try:
            return msgspec.json.decode(reply.content, type=_Version).version if reply.status_code == 200 else None
        except (msgspec.DecodeError, RecursionError):
            return None
