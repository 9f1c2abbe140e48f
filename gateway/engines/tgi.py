"""Hugging Face's text-generation-inference (https://github.com/huggingface/text-generation-inference)."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from gateway.config import schema
from gateway.engines.base import Ability, Engine, EngineModel, Health, Load, State
from gateway.engines.call import Call
from gateway.engines.openmetrics import read_count
from gateway.errors import EngineReported, GatewayError
from gateway.request import Endpoint, InferenceRequest
from gateway.translate.openai_tgi import MAX_STOPS, to_tgi
from gateway.translate.openai_tgi_answer import TgiReader, code_of
from gateway.translate.openai_tgi_generate import GENERATE, GENERATE_STREAM
from gateway.translate.openai_tgi_generate_answer import GenerateReader
from gateway.upstream.http import httpx

_GENERATION_FAILED = 424
_RUNNING, _WAITING = "tgi_batch_current_size", "tgi_queue_size"


class _Info(msgspec.Struct):
    model_id: str
    max_total_tokens: int | None = None
    max_concurrent_requests: int | None = None
    max_stop_sequences: int = MAX_STOPS
    version: str | None = None
    model_sha: str | None = None


class TgiEngine(Engine):
    """Spoken to by `/v1/chat/completions`, by its own `/generate` for a text completion of one prompt, and by
    `/v1/completions` for one of several; probed by `/health` and `/info`. Its load is read from `/metrics`.

    `/health` answers 503 once the process that runs the model (the shard) is dead, while everything else of the router
    still answers. Where that process hangs, `/health` does too. Nothing listens until the model is loaded.
    """

    kind: ClassVar[str] = "tgi"
    serves = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
    abilities: ClassVar[frozenset[Ability]] = frozenset({Ability.CONTINUE})

    def __init__(self, url: str, config: schema.Engine) -> None:
        super().__init__(url, config)
        self._max_stops = MAX_STOPS

    def call(self, request: InferenceRequest, model: str) -> Call:
        if request.endpoint not in self.serves:
            raise self.lacks(request.endpoint)
        path, body, asked = to_tgi(request, model, self._max_stops)
        reader = GenerateReader(asked) if path in (GENERATE, GENERATE_STREAM) else TgiReader(asked)
        return Call(self.request(path, body), reader)

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

    async def read_load(self, client: httpx.AsyncClient) -> Load | None:
        """Neither number is there before the first request."""
        reply = await self.get(client, "/metrics")
        if reply.status_code != 200:
            return None
        return Load(running=read_count(reply.text, _RUNNING), waiting=read_count(reply.text, _WAITING))
