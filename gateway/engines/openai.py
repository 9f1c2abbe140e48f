"""Any server that speaks the OpenAI dialect: SGLang, LM Studio, llama-swap, and others."""

from typing import ClassVar

import msgspec

from gateway.engines.base import Engine, EngineModel, Health, State
from gateway.upstream.http import httpx


class _Meta(msgspec.Struct):
    n_ctx: int | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    meta: _Meta | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


class OpenAIEngine(Engine):
    """Probed by its list of models."""

    kind: ClassVar[str] = "openai"

    async def probe(self, client: httpx.AsyncClient) -> Health:
        return await self.probe_models(client)

    async def probe_models(self, client: httpx.AsyncClient) -> Health:
        """Ready, with the models of `GET /v1/models`, or the reason why not."""
        reply = await self.get(client, "/v1/models")
        if reply.status_code in (401, 403):
            return Health(State.DOWN, f"the engine refuses Sluice's credentials (HTTP {reply.status_code})")
        if reply.status_code != 200:
            return Health(State.DOWN, f"its list of models answers HTTP {reply.status_code}")
        try:
            listed = msgspec.json.decode(reply.content, type=_ModelList)
        except (msgspec.DecodeError, RecursionError):
            return Health(State.DOWN, "its list of models is not in OpenAI's form")
        models = tuple(EngineModel(m.id, m.max_model_len or (m.meta.n_ctx if m.meta else None)) for m in listed.data)
        return Health(State.READY, models=models)
