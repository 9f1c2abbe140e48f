"""`GET /v1/models`: the names that clients may ask for."""

from typing import TypeAlias

import msgspec
from litestar import Request, get
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.auth import Keys
from gateway.fleet import Fleet, ModelCard

AnyRequest: TypeAlias = Request[None, None, State]
Keys_: TypeAlias = NamedDependency[Keys]
Fleet_: TypeAlias = NamedDependency[Fleet]
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


@get("/v1/models")
async def list_models(request: AnyRequest, keys: Keys_, fleet: Fleet_, started_at: StartedAt) -> ModelList:
    """Every model, those of engines that are down included."""
    keys.check(request.scope["headers"])
    return ModelList([_model(card, started_at) for card in fleet.models()])


@get("/v1/models/{name:path}")
async def get_model(
    request: AnyRequest, keys: Keys_, fleet: Fleet_, started_at: StartedAt, name: FromPath[str]
) -> Model:
    """One model; its name may hold slashes."""
    keys.check(request.scope["headers"])
    return _model(fleet.model(name.removeprefix("/")), started_at)
