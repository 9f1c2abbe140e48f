"""Health of the gateway itself: whether it lives, and whether it can serve."""

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from gateway.config.reload import Status
from gateway.engines.base import State
from gateway.fleet import Fleet


class Live(msgspec.Struct):
    status: str = "live"


class EngineStatus(msgspec.Struct):
    state: str
    reason: str


class Ready(msgspec.Struct, omit_defaults=True):
    """`status` is `ready`, `starting` (an engine is on its way) or `down`.

    `config` says what came of the files of the config; it is absent where there are none.
    """

    status: str
    engines: dict[str, EngineStatus]
    config: Status | None = None


@get("/health/live")
async def live() -> Live:
    """200 while the process serves requests at all."""
    return Live()


@get("/health/ready")
async def ready(fleet: NamedDependency[Fleet], config_status: NamedDependency[Status | None]) -> Response[Ready]:
    """200 while at least one engine can take requests, else 503; always with the state of each."""
    engines = {name: EngineStatus(b.health.state.value, b.health.reason) for name, b in fleet.backends.items()}
    can_serve = any(backend.ready for backend in fleet.backends.values())
    coming = any(backend.health.state in (State.STARTING, State.LOADING) for backend in fleet.backends.values())
    status = "ready" if can_serve else "starting" if coming else "down"
    return Response(Ready(status, engines, config_status), status_code=200 if can_serve else 503)
