"""vLLM's OpenAI server (vllm/entrypoints/openai)."""

from typing import ClassVar

import msgspec

from gateway.config import schema
from gateway.engines.base import SPOKEN, Ability, Health, Load, State
from gateway.engines.call import Call
from gateway.engines.openai import OpenAIEngine
from gateway.engines.openmetrics import read_count, read_labels, read_values
from gateway.request import Endpoint, InferenceRequest
from gateway.upstream.http import httpx

_RUNNING, _WAITING, _KV = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
_QUERIES, _HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
_CACHE = "vllm:cache_config_info"


class _Version(msgspec.Struct):
    version: str | None = None


class _Paths(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


class VllmEngine(OpenAIEngine):
    """Probed by `/health`, which answers 503 once the engine process has died. While it loads nothing listens.

    Which of the dialects beside OpenAI's it speaks is read from `/openapi.json`, once for each time it starts.
    """

    kind: ClassVar[str] = "vllm"
    serves = frozenset(Endpoint) - {Endpoint.MESSAGES, Endpoint.RESPONSES}
    abilities: ClassVar[frozenset[Ability]] = frozenset(
        {Ability.CONTINUE, Ability.PRIORITY, Ability.CACHE_SALT, Ability.CACHED_TOKENS}
    )

    def __init__(self, url: str, config: schema.Engine) -> None:
        super().__init__(url, config)
        self._asked_for_paths = config.speaks is not None

    def call(self, request: InferenceRequest, model: str) -> Call:
        """As for any engine, but for the one field that vLLM has another name for."""
        if b'"repeat_penalty"' not in request.body:
            return super().call(request, model)
        members = msgspec.json.decode(request.body_for(model), type=dict[str, msgspec.Raw])
        if "repeat_penalty" in members:
            members.setdefault("repetition_penalty", members.pop("repeat_penalty"))
        return Call(self.request(request.endpoint.value, msgspec.json.encode(members)))

    async def probe(self, client: httpx.AsyncClient) -> Health:
        try:
            health = await self._probe(client)
        except httpx.HTTPError:
            self._gone()
            raise
        if health.state is not State.READY:
            self._gone()
        return health

    async def _probe(self, client: httpx.AsyncClient) -> Health:
        reply = await self.get(client, "/health")
        if reply.status_code != 200:
            return Health(State.DOWN, f"its health endpoint answers HTTP {reply.status_code}")
        health = await self.probe_models(client)
        if not self._asked_for_paths:
            await self._read_paths(client)
        version = await self._version(client)
        models = tuple(msgspec.structs.replace(model, version=version) for model in health.models)
        return msgspec.structs.replace(health, models=models)

    def _gone(self) -> None:
        """What listens here next may be another version."""
        self._asked_for_paths = self.config.speaks is not None

    async def _read_paths(self, client: httpx.AsyncClient) -> None:
        reply = await self.get(client, "/openapi.json")
        try:
            paths = msgspec.json.decode(reply.content, type=_Paths).paths if reply.status_code == 200 else {}
        except (msgspec.DecodeError, RecursionError):
            paths = {}
        spoken = {endpoint for endpoints in SPOKEN.values() for endpoint in endpoints if endpoint.value in paths}
        self.serves = type(self).serves | spoken
        self._asked_for_paths = True

    async def _version(self, client: httpx.AsyncClient) -> str | None:
        reply = await self.get(client, "/version")
        try:
            return msgspec.json.decode(reply.content, type=_Version).version if reply.status_code == 200 else None
        except (msgspec.DecodeError, RecursionError):
            return None

    async def read_load(self, client: httpx.AsyncClient) -> Load | None:
        reply = await self.get(client, "/metrics")
        if reply.status_code != 200:
            return None
        text = reply.text
        return Load(
            running=read_count(text, _RUNNING),
            waiting=read_count(text, _WAITING),
            kv_usage=max(read_values(text, _KV), default=None),
            kv_tokens=_kv_tokens(read_labels(text, _CACHE)),
            prefix_queries=read_count(text, _QUERIES),
            prefix_hits=read_count(text, _HITS),
        )


def _kv_tokens(cache: dict[str, str]) -> int | None:
    """How many tokens the KV cache holds, from `cache_config_info`."""
    block, blocks = cache.get("block_size", ""), cache.get("num_gpu_blocks", "")
    return int(block) * int(blocks) if block.isdecimal() and blocks.isdecimal() else None
