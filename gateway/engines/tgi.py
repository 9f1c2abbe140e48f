"""Hugging Face's text-generation-inference (https://github.com/huggingface/text-generation-inference)."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from gateway.config import schema
from gateway.engines.base import Engine, EngineModel, Health, State
from gateway.engines.call import Call
from gateway.errors import EngineReported, GatewayError
from gateway.request import Endpoint, InferenceRequest
from gateway.translate.openai_tgi import MAX_STOPS, to_tgi
from gateway.translate.openai_tgi_answer import TgiReader, code_of
from gateway.upstream.http import httpx

_GENERATION_FAILED = 424


class _Info(msgspec.Struct):
    model_id: str
    max_total_tokens: int | None = None
    max_concurrent_requests: int | None = None
    max_stop_sequences: int = MAX_STOPS
    version: str | None = None
    model_sha: str | None = None


class TgiEngine(Engine):
    """Spoken to by its OpenAI endpoints, and probed by `/health` and `/info`.

    `/health` answers 503 once the process that runs the model (the shard) is dead, while everything else of the router
    still answers. Where that process hangs, `/health` does too. Nothing listens until the model is loaded.
    """

    kind: ClassVar[str] = "tgi"
    serves: ClassVar[frozenset[Endpoint]] = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})

    def __init__(self, url: str, config: schema.Engine) -> None:
        super().__init__(url, config)
        self._max_stops = MAX_STOPS

    def call(self, request: InferenceRequest, model: str) -> Call:
        if request.endpoint not in self.serves:
            raise self.lacks(request.endpoint)
        body, asked = to_tgi(request, model, self._max_stops)
        return Call(self.request(request.endpoint.value, body), TgiReader(asked))

    def refusal(self, name: str, status: int, headers: Mapping[bytes, bytes], body: bytes) -> GatewayError:
        error = super().refusal(name, status, headers, body)
        if status == _GENERATION_FAILED:  # a client error by its number, but the model's process is what failed
            return EngineReported(error.message)
        error.code = code_of(error.message) or error.code
        return error

    async def probe(self, client: httpx.AsyncClient) -> Health:
        health = await self.get(client, "/health")
        if health.status_code == 503:
            return Health(State.DOWN, "its shard is dead")
        if health.status_code != 200:
            return Health(State.DOWN, f"its health endpoint answers HTTP {health.status_code}")
        reply = await self.get(client, "/info")
        if reply.status_code != 200:
            return Health(State.DOWN, f"its /info answers HTTP {reply.status_code}")
        try:
            info = msgspec.json.decode(reply.content, type=_Info)
        except (msgspec.DecodeError, RecursionError):
            return Health(State.DOWN, "its /info is not in TGI's form")
        self._max_stops = info.max_stop_sequences
        model = EngineModel(info.model_id, info.max_total_tokens, digest=info.model_sha, version=info.version)
        return Health(State.READY, models=(model,), slots=info.max_concurrent_requests)
