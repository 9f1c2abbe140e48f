"""`GET /v1/models`: the names that clients may ask for, in OpenAI's form, or in Anthropic's for its own clients."""

from datetime import UTC, datetime
from typing import Annotated, Protocol, TypeAlias

import msgspec
from litestar import Request, get
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, Parameter

from gateway.api import anthropic
from gateway.auth import Keys
from gateway.fleet import Fleet, ModelCard
from gateway.router import Router

AnyRequest: TypeAlias = Request[None, None, State]
Keys_: TypeAlias = NamedDependency[Keys]
Fleet_: TypeAlias = NamedDependency[Fleet]


class Names(Protocol):
    """Knows the models that clients may ask for."""

    def models(self) -> list[ModelCard]: ...
    def model(self, name: str) -> ModelCard: ...


Names_: TypeAlias = NamedDependency[Router]
StartedAt: TypeAlias = NamedDependency[int]


class _Sluice(msgspec.Struct):
    engines: list[str]
    ready: bool


class Model(msgspec.Struct, omit_defaults=True):
    """OpenAI's model object, with the context length as vLLM names it, and which engines have it."""

    id: str
    sluice: _Sluice
    created: int
    object: str = ""
    owned_by: str = ""
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    data: list[Model]
    object: str = "list"


def _model(card: ModelCard, created: int) -> Model:
    return Model(
        id=card.name,
        sluice=_Sluice(card.engines, card.ready),
        created=created,
        object="model",
        owned_by="sluice",
        max_model_len=card.context,
    )


class AnthropicModel(msgspec.Struct, tag_field="type", tag="model", kw_only=True):
    """Source: https://docs.anthropic.com/en/api/models-list."""

    id: str
    display_name: str
    created_at: datetime
    max_input_tokens: int | msgspec.UnsetType = msgspec.UNSET


class AnthropicModelList(msgspec.Struct):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def _anthropic_model(card: ModelCard, created: int) -> AnthropicModel:
    return AnthropicModel(
        id=card.name,
        display_name=card.name,
        created_at=datetime.fromtimestamp(created, UTC),
        max_input_tokens=msgspec.UNSET if card.context is None else card.context,
    )


def _anthropic_page(
    models: list[AnthropicModel], limit: int, after_id: str | None, before_id: str | None
) -> AnthropicModelList:
    """At most `limit` models: those after one that is named, or the last before one."""
    at = {model.id: number for number, model in enumerate(models)}
    rest = models[at.get(after_id or "", -1) + 1 : at.get(before_id or "", len(models))]
    page = rest[-limit:] if before_id in at else rest[:limit]
    return AnthropicModelList(page, len(rest) > limit, page[0].id if page else None, page[-1].id if page else None)


@get("/v1/models")
async def list_models(
    request: AnyRequest,
    keys: Keys_,
    names: Names_,
    started_at: StartedAt,
    limit: FromQuery[Annotated[int, Parameter(ge=1, le=1000)]] = 1000,
    after_id: FromQuery[str | None] = None,
    before_id: FromQuery[str | None] = None,
) -> ModelList | AnthropicModelList:
    """Every model, those of engines that are down included. `limit` and both ids are Anthropic's."""
    keys.check(request.scope["headers"])
    cards = names.models()
    if anthropic.VERSION in request.headers:
        return _anthropic_page([_anthropic_model(card, started_at) for card in cards], limit, after_id, before_id)
    return ModelList([_model(card, started_at) for card in cards])


@get("/v1/models/{name:path}")
async def get_model(
    request: AnyRequest, keys: Keys_, names: Names_, started_at: StartedAt, name: FromPath[str]
) -> Model | AnthropicModel:
    """One model; its name may hold slashes."""
    keys.check(request.scope["headers"])
    card = names.model(name.removeprefix("/"))
    return _anthropic_model(card, started_at) if anthropic.VERSION in request.headers else _model(card, started_at)
