"""The Ollama dialect: chats, generations and embeddings as doors, and what its programs ask about models as routes.

Source: `server/routes.go` and `docs/api.md` in https://github.com/ollama/ollama, and recordings of a real server.
"""

import contextlib
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from litestar import MediaType, post, route
from litestar.types import Method

from gateway.api.door import Asked, Door, Writer
from gateway.api.models import AnyRequest, Keys_, Names, Names_, StartedAt
from gateway.errors import GatewayError, InvalidRequest, NoEngine
from gateway.fleet import ModelCard
from gateway.translate.ollama_openai import Chat, Embed, Embeddings, Generate, OllamaRequest, parse
from gateway.translate.ollama_openai_answers import ChatWriter, EmbeddingsWriter, EmbedWriter, GenerateWriter

API_VERSION = "0.33.0"
"""The version of Ollama whose API this is: programs compare it with the one that they need."""
CAPABILITIES = ["completion", "tools"]
"""Claimed of a model whose engine does not tell: programs hide models without them. An engine says no for itself."""
_READ: list[Method] = ["GET", "HEAD"]
_NEVER = datetime(9999, 12, 31, tzinfo=UTC)


class _Error(msgspec.Struct):
    error: str


def error_body(error: GatewayError) -> bytes:
    """`{"error": message}`, whatever form the engine's own error had."""
    return error.body if isinstance(error, _NothingAsked) else msgspec.json.encode(_Error(error.message))


def find(names: Names, name: str) -> ModelCard:
    """The model that is meant by `name`: to Ollama's programs `name` and `name:latest` are one, unless both are there.

    Raises:
        ModelNotFound: no engine is known to have it.
        NoEngine: the same, and an engine that may have it has never answered.
    """
    try:
        return names.model(name)
    except GatewayError:
        with contextlib.suppress(GatewayError):
            short = name.removesuffix(":latest")
            return names.model(short if short != name else f"{name}:latest")
        raise


class _NothingAsked(GatewayError):
    """A request that only has a model loaded or unloaded. Engines do that by themselves, so that it ends here.

    It is raised, as every reason not to ask an engine is, though its answer is one of success.
    """

    status = 200

    def __init__(self, reason: str, body: bytes) -> None:
        super().__init__(f"Nothing was asked; to {reason} a model is the engine's own business.", code=reason)
        self.body = body


class OllamaWriter(Writer, Protocol):
    """A writer that also answers where nothing was asked."""

    def idle(self, reason: str) -> bytes: ...


class OllamaDoor:
    """An endpoint of Ollama's own.

    Args:
        path: of the endpoint.
        kind: what its requests are.
        writer: makes the writer of one answer, from the model's name as the client has it.
        names: knows the models.
    """

    dialect = "ollama"
    breaks_off = True

    def __init__(
        self, path: str, kind: type[OllamaRequest], writer: Callable[[str], OllamaWriter], names: Names
    ) -> None:
        self.path = path
        self._kind = kind
        self._writer = writer
        self._names = names

    def read(self, body: bytes) -> Asked:
        try:
            return self._read(parse(self._kind, body))
        except RecursionError:
            raise InvalidRequest("The request body is nested too deeply.", code="invalid_json") from None

    def _read(self, asked: OllamaRequest) -> Asked:
        card = find(self._names, asked.model)
        writer = self._writer(asked.model)
        if asked.empty:
            if asked.done_reason == "load" and not card.ready:
                raise NoEngine(f"No engine can serve the model `{card.name}` now.", retry_after=2)
            raise _NothingAsked(asked.done_reason, writer.idle(asked.done_reason))
        if asked.num_ctx is not None and card.context is not None and asked.num_ctx > card.context:
            raise InvalidRequest(
                f"`options.num_ctx`: {asked.num_ctx} tokens are more than the {card.context} "
                f"that the model `{card.name}` has here.",
                param="options.num_ctx",
                code="unsupported_value",
            )
        return Asked(asked.to_openai(card.name), writer)

    def error_body(self, error: GatewayError) -> bytes:
        return error_body(error)

    def error_event(self, error: GatewayError) -> bytes:
        return error_body(error) + b"\n"


def doors(names: Names) -> list[Door]:
    return [
        OllamaDoor("/api/chat", Chat, ChatWriter, names),
        OllamaDoor("/api/generate", Generate, GenerateWriter, names),
        OllamaDoor("/api/embed", Embed, EmbedWriter, names),
        OllamaDoor("/api/embeddings", Embeddings, EmbeddingsWriter, names),
    ]


# What programs ask about models


class _Details(msgspec.Struct, kw_only=True):
    """Of the file that Ollama would have: not known here."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: int | msgspec.UnsetType = msgspec.UNSET


class _Listed(msgspec.Struct, kw_only=True):
    """A model that there is. `digest` is one of its name, as Ollama's command shows its first twelve digits."""

    name: str
    model: str
    modified_at: datetime
    size: int = 0
    digest: str
    details: _Details
    capabilities: list[str]


class _Tags(msgspec.Struct):
    models: list[_Listed]


class _Running(msgspec.Struct, kw_only=True):
    """A model that can be used now."""

    name: str
    model: str
    size: int = 0
    digest: str
    details: _Details
    expires_at: datetime
    size_vram: int = 0
    context_length: int | msgspec.UnsetType = msgspec.UNSET


class _Processes(msgspec.Struct):
    models: list[_Running]


class _ShowRequest(msgspec.Struct):
    model: str = ""
    name: str = ""
    """The older name of `model`."""


class _Shown(msgspec.Struct, kw_only=True):
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    details: _Details
    model_info: dict[str, Any]
    """Keys are those of a GGUF file: the architecture's name, and with it before the dot the rest."""
    capabilities: list[str]
    modified_at: datetime


class _Version(msgspec.Struct):
    version: str


def _details(card: ModelCard) -> _Details:
    return _Details(context_length=_known(card.context), quantization_level=card.quantization or "")


def _capabilities(card: ModelCard) -> list[str]:
    return CAPABILITIES if card.capabilities is None else sorted(card.capabilities)


def _known(number: int | None) -> int | msgspec.UnsetType:
    return msgspec.UNSET if number is None else number


def _digest(card: ModelCard) -> str:
    return hashlib.sha256(card.name.encode()).hexdigest()


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@route("/", http_method=_READ, media_type=MediaType.TEXT)
async def root(request: AnyRequest, keys: Keys_) -> str:
    """By this text programs know that what they talk to has Ollama's API."""
    keys.check(request.scope["headers"])
    return "Ollama is running"


@route("/api/version", http_method=_READ)
async def version(request: AnyRequest, keys: Keys_) -> _Version:
    keys.check(request.scope["headers"])
    return _Version(API_VERSION)


@route("/api/tags", http_method=_READ)
async def tags(request: AnyRequest, keys: Keys_, names: Names_, started_at: StartedAt) -> _Tags:
    """Every model, those of engines that are down included."""
    keys.check(request.scope["headers"])
    return _Tags(
        [
            _Listed(
                name=card.name,
                model=card.name,
                modified_at=_time(started_at),
                digest=_digest(card),
                details=_details(card),
                capabilities=_capabilities(card),
            )
            for card in names.models()
        ]
    )


@route("/api/ps", http_method=_READ)
async def processes(request: AnyRequest, keys: Keys_, names: Names_) -> _Processes:
    """The models of engines that can take requests; they stay."""
    keys.check(request.scope["headers"])
    return _Processes(
        [
            _Running(
                name=card.name,
                model=card.name,
                digest=_digest(card),
                details=_details(card),
                expires_at=_NEVER,
                context_length=_known(card.context),
            )
            for card in names.models()
            if card.ready
        ]
    )


@post("/api/show", status_code=200)
async def show(request: AnyRequest, keys: Keys_, names: Names_, started_at: StartedAt) -> _Shown:
    """One model. Its body is JSON whatever its content type says: that is how Ollama reads it."""
    keys.check(request.scope["headers"])
    asked = parse(_ShowRequest, await request.body())
    card = find(names, asked.model or asked.name)
    info: dict[str, Any] = {"general.architecture": "sluice"}
    if card.context is not None:
        info["sluice.context_length"] = card.context
    can = _capabilities(card)
    return _Shown(details=_details(card), model_info=info, capabilities=can, modified_at=_time(started_at))


@route(
    ["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{digest:str}"],
    http_method=["POST", "DELETE", "HEAD"],
)
async def administer(request: AnyRequest, keys: Keys_) -> None:
    """What changes the models that there are. No engine hears of it."""
    keys.check(request.scope["headers"])
    raise InvalidRequest(
        f"Sluice changes no models, so that there is no {request.url.path}: use the engine itself.",
        status=403,
        code="not_allowed",
    )


ROUTES = [root, version, tags, processes, show, administer]
