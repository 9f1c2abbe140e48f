"""llama.cpp's server (tools/server in ggml-org/llama.cpp)."""

from typing import ClassVar

import msgspec

from gateway.engines.base import Health, State
from gateway.engines.openai import OpenAIEngine
from gateway.request import Endpoint
from gateway.upstream.http import httpx


class _Props(msgspec.Struct):
    total_slots: int | None = None
    build_info: str | None = None
    model_ftype: str | None = None


class LlamaCppEngine(OpenAIEngine):
    """Probed by `/health`, which answers 503 while the model loads; its slots, build and quantization
    are read from `/props`.

    `/slots` is not asked: with sleep on idle it would wake the model.
    """

    kind: ClassVar[str] = "llamacpp"
    serves: ClassVar[frozenset[Endpoint]] = frozenset(Endpoint)

    async def probe(self, client: httpx.AsyncClient) -> Health:
        unwell = _unwell(await self.get(client, "/health"))
        if unwell is not None:
            return unwell
        health = await self.probe_models(client)
        if health.state is not State.READY:
            return health
        props = await self._props(client)
        models = tuple(
            msgspec.structs.replace(model, version=props.build_info, quantization=props.model_ftype)
            for model in health.models
        )
        return msgspec.structs.replace(health, models=models, slots=props.total_slots)

    async def _props(self, client: httpx.AsyncClient) -> _Props:
        """What `/props` says; nothing where it is switched off."""
        reply = await self.get(client, "/props")
        try:
            return msgspec.json.decode(reply.content, type=_Props) if reply.status_code == 200 else _Props()
        except (msgspec.DecodeError, RecursionError):
            return _Props()


def _unwell(reply: httpx.Response) -> Health | None:
    if reply.status_code == 200:
        return None
    if reply.status_code == 503:
        return Health(State.LOADING, "loading its model")
    return Health(State.DOWN, f"its health endpoint answers HTTP {reply.status_code}")
