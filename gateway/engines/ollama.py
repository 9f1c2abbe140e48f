"""Ollama, spoken to in its native dialect: its OpenAI endpoints cut prompts and hide failures without a word."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeVar

import msgspec

from gateway.config import schema
from gateway.engines.base import Engine, EngineModel, Health, State
from gateway.engines.call import Call
from gateway.errors import EngineFailed, EngineRefused, GatewayError, InvalidRequest
from gateway.request import Endpoint, InferenceRequest
from gateway.translate import openai_ollama
from gateway.translate.chat import StreamOptions
from gateway.translate.ollama import Fault, read_error_body
from gateway.translate.openai_ollama_reply import ChatReader, CompletionReader, EmbeddingReader
from gateway.upstream.http import httpx

_LATEST = ":latest"
_SECONDS = re.compile(r"[+-]?\d+")

_WRONG_OPTION = re.compile(r'option "(\w+)" must be')
_TOO_LONG = re.compile(r"exceeds? the (?:available )?context|longer than the context")
_OUR_NAMES = {"num_predict": "max_tokens"}
"""The fields of a client's request that are called otherwise in Ollama's `options`."""


class _Details(msgspec.Struct):
    quantization_level: str | None = None
    context_length: int | None = None


class _Listed(msgspec.Struct):
    name: str
    digest: str | None = None
    details: _Details = msgspec.field(default_factory=_Details)
    capabilities: list[str] | None = None


class _Tags(msgspec.Struct):
    models: list[_Listed]


class _Loaded(msgspec.Struct):
    name: str
    context_length: int | None = None


class _Ps(msgspec.Struct):
    models: list[_Loaded]


class _Version(msgspec.Struct):
    version: str | None = None


T = TypeVar("T")


def _read(reply: httpx.Response, form: type[T]) -> T | None:
    """What a probe was answered, or `None` where it is an error or has another form."""
    try:
        return msgspec.json.decode(reply.content, type=form) if reply.status_code == 200 else None
    except (msgspec.DecodeError, RecursionError):
        return None


class OllamaEngine(Engine):
    """Probed by its lists of models and of loaded models, and its version. These load nothing, and always answer."""

    kind: ClassVar[str] = "ollama"
    serves = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS})

    def __init__(self, url: str, config: schema.Engine) -> None:
        super().__init__(url, config)
        self._settings = openai_ollama.Settings(config.context, _keep_alive(config.keep_alive))

    def call(self, request: InferenceRequest, model: str) -> Call:
        try:
            if request.endpoint is Endpoint.CHAT:
                return self._chat(request.body, model)
            if request.endpoint is Endpoint.COMPLETIONS:
                return self._completion(request.body, model)
            if request.endpoint is Endpoint.EMBEDDINGS:
                return self._embedding(request.body, model)
        except RecursionError:
            raise InvalidRequest("The request body is nested too deeply.", code="invalid_json") from None
        raise self.lacks(request.endpoint)

    def _chat(self, body: bytes, model: str) -> Call:
        asked = openai_ollama.read_chat(body)
        sent = openai_ollama.chat_body(asked, model, self._settings)
        usage = _wants_usage(asked.stream_options)
        reader = ChatReader(model, usage=usage, one_call=asked.parallel_tool_calls is False)
        return Call(self.request("/api/chat", sent), reader)

    def _completion(self, body: bytes, model: str) -> Call:
        asked = openai_ollama.read_completion(body)
        sent = openai_ollama.completion_body(asked, model, self._settings)
        reader = CompletionReader(model, usage=_wants_usage(asked.stream_options))
        return Call(self.request("/api/generate", sent), reader)

    def _embedding(self, body: bytes, model: str) -> Call:
        asked, texts = openai_ollama.read_embedding(body)
        sent = openai_ollama.embedding_body(asked, texts, model, self._settings)
        reader = EmbeddingReader(model, len(texts), as_base64=asked.encoding_format == "base64")
        return Call(self.request("/api/embed", sent), reader)

    def refusal(self, name: str, status: int, headers: Mapping[bytes, bytes], body: bytes) -> GatewayError:
        fault = read_error_body(body)
        if fault is None:
            if status == 403 and not body:  # Ollama's own, which means no credentials
                return EngineFailed(
                    f"Engine `{name}` does not answer to the host in its `url`: use its IP address, or set its "
                    "OLLAMA_HOST to the address it listens on.",
                    code="engine_forbidden",
                )
            return super().refusal(name, status, headers, body)
        if status == 400 and fault.message.startswith("time: "):
            return EngineFailed(f"Engine `{name}` cannot read the `keep_alive` that its config has.")
        return _client_error(fault, status) or super().refusal(name, status, headers, _plain(fault))

    async def probe(self, client: httpx.AsyncClient) -> Health:
        reply = await self.get(client, "/api/tags")
        if reply.status_code in (401, 403):
            return Health(
                State.DOWN, f"the engine refuses Sluice's credentials or host name (HTTP {reply.status_code})"
            )
        if reply.status_code != 200:
            return Health(State.DOWN, f"its list of models answers HTTP {reply.status_code}")
        listed = _read(reply, _Tags)
        if listed is None:
            return Health(State.DOWN, "its list of models is not in Ollama's form")
        version = _read(await self.get(client, "/api/version"), _Version) or _Version()
        ps = _read(await self.get(client, "/api/ps"), _Ps)
        loaded = None if ps is None else {model.name: model.context_length for model in ps.models}
        return Health(
            State.READY,
            models=tuple(known for model in listed.models for known in self._known(model, version.version, loaded)),
        )

    def _known(
        self, model: _Listed, version: str | None, loaded: Mapping[str, int | None] | None
    ) -> Iterator[EngineModel]:
        """A model under the name it is listed with, and under that without `:latest`, which means the same.

        `loaded` holds the context lengths of models in memory by name, if the engine tells.
        """
        known = EngineModel(
            model.name,
            self._context(model, loaded or {}),
            digest=model.digest,
            quantization=model.details.quantization_level,
            version=version,
            loaded=None if loaded is None else model.name in loaded,
            capabilities=None if model.capabilities is None else frozenset(model.capabilities),
        )
        yield known
        if model.name.endswith(_LATEST):
            yield msgspec.structs.replace(known, name=model.name.removesuffix(_LATEST))

    def _context(self, model: _Listed, loaded: Mapping[str, int | None]) -> int | None:
        """As configured, which Ollama bounds by what the model was trained with; else as loaded; else as trained."""
        trained = model.details.context_length
        if self.config.context is not None:
            return self.config.context if trained is None else min(self.config.context, trained)
        return loaded.get(model.name) or trained


def _wants_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


def _keep_alive(text: str | None) -> int | str | None:
    """Ollama takes a number as seconds, and a text only with a unit."""
    return int(text) if text is not None and _SECONDS.fullmatch(text) else text


def _client_error(fault: Fault, status: int) -> EngineRefused | None:
    """The error where what Ollama says is the client's to know by a code, or has the wrong status."""
    if fault.kind == "exceed_context_size_error" or (status == 400 and _TOO_LONG.search(fault.message)):
        message = fault.message
        if fault.prompt_tokens is not None and fault.context is not None:
            message = f"The prompt has {fault.prompt_tokens} tokens, and the context holds {fault.context}."
        return _refused(message, 400, "context_length_exceeded")
    if status == 404 and fault.message:
        return _refused(fault.message, 404, "model_not_found", "model")
    if wrong := _WRONG_OPTION.match(fault.message):
        return _refused(fault.message, 400, "invalid_type", _OUR_NAMES.get(wrong[1], wrong[1]))
    return None


def _refused(message: str, status: int, code: str, param: str | None = None) -> EngineRefused:
    error = EngineRefused(message, status=status)
    error.code, error.kind, error.param = code, "invalid_request_error", param
    return error


class _Plain(msgspec.Struct):
    error: str


def _plain(fault: Fault) -> bytes:
    """An error body in its simplest form, without the wrapping it came in."""
    return msgspec.json.encode(_Plain(fault.message))
