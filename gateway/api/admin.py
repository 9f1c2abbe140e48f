"""What Sluice knows of its engines, and why a request would go where it would. No address and no credential is told."""

import msgspec
from litestar import get, post

from gateway.api.models import AnyRequest, Fleet_, Keys_, Names_
from gateway.api.question import Question, answer
from gateway.backend import Backend
from gateway.engines.base import EngineModel, Load
from gateway.policy.explain import Explanation
from gateway.translate.ollama_openai import parse


class _Model(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A model under the engine's own name. What the engine does not tell is absent."""

    name: str
    context: int | None = None
    digest: str | None = None
    quantization: str | None = None
    version: str | None = None
    capabilities: list[str] | None = None
    loaded: bool | None = None
    load_time: float | None = None
    """Seconds that it took when it was last loaded for a request."""


class EngineCard(msgspec.Struct, kw_only=True):
    """`in_flight` counts Sluice's own requests, `load` all that the engine has, from whomever they came."""

    name: str
    kind: str
    state: str
    reason: str
    in_flight: int
    capacity: int | None
    load: Load | None
    endpoints: list[str]
    abilities: list[str]
    models: list[_Model]


class EngineList(msgspec.Struct):
    engines: list[EngineCard]


@get("/admin/engines")
async def list_engines(request: AnyRequest, keys: Keys_, fleet: Fleet_) -> EngineList:
    keys.check(request.scope["headers"])
    return EngineList([_card(backend) for backend in fleet.backends.values()])


@post("/admin/explain", status_code=200)
async def explain(request: AnyRequest, keys: Keys_, names: Names_) -> Explanation:
    """Why a request would go where it would go now. It is not sent, and takes no place in the queue."""
    keys.check(request.scope["headers"])
    return answer(parse(Question, await request.body()), names)


def _card(backend: Backend) -> EngineCard:
    engine, health = backend.engine, backend.health
    return EngineCard(
        name=backend.name,
        kind=engine.kind,
        state=health.state.value,
        reason=health.reason,
        in_flight=backend.in_flight,
        capacity=backend.capacity,
        load=backend.engine_load,
        endpoints=sorted(endpoint.value for endpoint in engine.serves),
        abilities=sorted(ability.value for ability in engine.abilities),
        models=[_model(backend.model(name), backend.load_time(name)) for name in backend.models],
    )


def _model(model: EngineModel, load_time: float | None) -> _Model:
    return _Model(
        name=model.name,
        context=model.context,
        digest=model.digest,
        quantization=model.quantization,
        version=model.version,
        capabilities=None if model.capabilities is None else sorted(model.capabilities),
        loaded=model.loaded,
        load_time=load_time,
    )
