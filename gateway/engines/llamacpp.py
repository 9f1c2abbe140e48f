"""llama.cpp's server (tools/server in ggml-org/llama.cpp)."""

from typing import ClassVar

import msgspec

from gateway.engines.base import Ability, Health, Load, State
from gateway.engines.call import Call
from gateway.engines.openai import OpenAIEngine
from gateway.engines.openmetrics import read_count
from gateway.request import Endpoint, InferenceRequest
from gateway.upstream.http import httpx

_STREAMS = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
_RUNNING, _WAITING = "llamacpp:requests_processing", "llamacpp:requests_deferred"
_COMPUTED, _CACHED = "llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"


class _Modalities(msgspec.Struct):
    vision: bool = False
    audio: bool = False


class _TemplateCaps(msgspec.Struct):
    supports_tools: bool = False
    supports_tool_calls: bool = False


class _Props(msgspec.Struct):
    total_slots: int | None = None
    build_info: str | None = None
    model_ftype: str | None = None
    modalities: _Modalities | None = None
    chat_template_caps: _TemplateCaps | None = None


class LlamaCppEngine(OpenAIEngine):
    """Probed by `/health`, which answers 503 while the model loads; its slots, build, quantization and what its model
    can do are read from `/props`, and its load from `/metrics`, if it was started with `--metrics`.

    `/slots` is not asked: with sleep on idle it would wake the model.

    Its own `/v1/messages` and `/v1/responses` are used only where the config says so. They take documents and server
    tools without a word, give `end_turn` for a stop sequence, call an answer that was cut `completed`, leave out
    `output_index`, and tell nothing of the time that prefill and decode took.
    """

    kind: ClassVar[str] = "llamacpp"
    serves = frozenset(Endpoint) - {Endpoint.MESSAGES, Endpoint.RESPONSES}
    abilities: ClassVar[frozenset[Ability]] = frozenset(
        {Ability.CONTINUE, Ability.CACHED_TOKENS, Ability.PREFILL_PROGRESS, Ability.SLOT_FILES}
    )

    def call(self, request: InferenceRequest, model: str) -> Call:
        """As for any engine, but that a stream is asked for the progress of its prefill: by its first word of that a
        wait for a slot can be told from the prefill itself."""
        if request.stream and request.endpoint in _STREAMS and b'"return_progress"' not in request.body:
            body = b'{"return_progress":true,' + request.body_for(model).lstrip()[1:]
            return Call(self.request(request.endpoint.value, body), hides_progress=True)
        return super().call(request, model)

    async def probe(self, client: httpx.AsyncClient) -> Health:
        unwell = _unwell(await self.get(client, "/health"))
        if unwell is not None:
            return unwell
        health = await self.probe_models(client)
        if health.state is not State.READY:
            return health
        props = await self._props(client)
        models = tuple(
            msgspec.structs.replace(
                model, version=props.build_info, quantization=props.model_ftype, capabilities=_capabilities(props)
            )
            for model in health.models
        )
        return msgspec.structs.replace(health, models=models, slots=props.total_slots)

    async def read_load(self, client: httpx.AsyncClient) -> Load | None:
        reply = await self.get(client, "/metrics")
        if reply.status_code != 200:
            return None
        text = reply.text
        computed, cached = read_count(text, _COMPUTED), read_count(text, _CACHED)
        return Load(
            running=read_count(text, _RUNNING),
            waiting=read_count(text, _WAITING),
            prefix_queries=None if computed is None or cached is None else computed + cached,
            prefix_hits=cached,
        )

    async def _props(self, client: httpx.AsyncClient) -> _Props:
        """What `/props` says; nothing where it is switched off."""
        reply = await self.get(client, "/props")
        try:
            return msgspec.json.decode(reply.content, type=_Props) if reply.status_code == 200 else _Props()
        except (msgspec.DecodeError, RecursionError):
            return _Props()


def _capabilities(props: _Props) -> frozenset[str] | None:
    if props.modalities is None or props.chat_template_caps is None:
        return None
    caps = props.chat_template_caps
    told = {
        "completion": True,
        "tools": caps.supports_tools or caps.supports_tool_calls,
        "vision": props.modalities.vision,
        "audio": props.modalities.audio,
    }
    return frozenset(name for name, can in told.items() if can)


def _unwell(reply: httpx.Response) -> Health | None:
    if reply.status_code == 200:
        return None
    if reply.status_code == 503:
        return Health(State.LOADING, "loading its model")
    return Health(State.DOWN, f"its health endpoint answers HTTP {reply.status_code}")
