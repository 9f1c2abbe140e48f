"""Builds the application from a config; it owns the start and the stop of everything."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from litestar import Litestar, Request, Response, asgi
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive as LitestarReceive
from litestar.types import Scope as LitestarScope
from litestar.types import Send as LitestarSend
from msgspec import structs

from gateway.api import anthropic, ollama
from gateway.api.admin import explain, list_engines
from gateway.api.doors import DOORS, all_doors
from gateway.api.errors import error_body, error_headers
from gateway.api.front import Front
from gateway.api.health import live, ready
from gateway.api.inference import InferenceHandler
from gateway.api.models import get_model, list_models
from gateway.config.changes import changes, keep_address
from gateway.config.policy import ModelPolicy
from gateway.config.reload import Reloader
from gateway.errors import GatewayError, InvalidRequest
from gateway.fleet import Fleet
from gateway.policy.load import Setup
from gateway.router import Router
from gateway.telemetry.logs import RequestLog

_PATHS = frozenset({"/v1/models", *(door.path for door in DOORS)})

_log = logging.getLogger("sluice.api")


class Gateway:
    """All that serves requests, by the setup in force."""

    def __init__(self, setup: Setup, front: Front) -> None:
        self.setup = setup
        self.front = front
        self.fleet = Fleet(setup.config)
        self.router = Router(setup.config, self.fleet, setup.policies)

    @asynccontextmanager
    async def running(self, reloader: Reloader[Setup] | None) -> AsyncIterator[None]:
        """Runs the engines, the queue, and what keeps the setup as its files are."""
        async with self.fleet.running(), self.router.running(), anyio.create_task_group() as tasks:
            if reloader is not None:
                tasks.start_soon(reloader.run, self.update)
            yield
            tasks.cancel_scope.cancel()

    async def update(self, setup: Setup) -> list[str]:
        """Puts `setup` in force, and says what is different. Requests that are with an engine end as they began.

        Raises:
            ConfigError: this needs a restart; nothing has changed.
        """
        server, remarks = keep_address(self.setup.config.server, setup.config.server)
        config = structs.replace(setup.config, server=server)
        said = changes(self.setup.config, config, _written(self.setup), _written(setup))
        await self.fleet.update(config)
        # From here on nothing is waited for, so that no request sees a half of the change.
        self.router.update(config, setup.policies)
        self.front.update(config.server)
        self.setup = setup._replace(config=config)
        return said + remarks


def create_app(
    setup: Setup, *, front: Front | None = None, log: RequestLog | None = None, reloader: Reloader[Setup] | None = None
) -> Litestar:
    """The ASGI application; engines start and stop with its lifespan, in which `reloader` keeps it up to date."""
    front = front or Front(setup.config.server)
    gateway = Gateway(setup, front)
    router = gateway.router
    log = log or RequestLog()

    @asynccontextmanager
    async def engines_running(_: Litestar) -> AsyncIterator[None]:
        try:
            async with gateway.running(reloader):
                yield
        finally:
            log.flush()

    endpoints = [_mount(InferenceHandler(door, front, router, log)) for door in all_doors(router)]
    return Litestar(
        [*endpoints, list_models, get_model, list_engines, explain, *ollama.ROUTES, live, ready],
        lifespan=[engines_running],
        dependencies={
            "keys": _now(lambda: front.keys),
            "fleet": _always(gateway.fleet),
            "names": _always(router),
            "started_at": _always(int(time.time())),
            "config_status": _now(lambda: reloader.status if reloader is not None else None),
        },
        exception_handlers={GatewayError: _gateway_error, HTTPException: _http_error, Exception: _unforeseen},
        openapi_config=None,
        logging_config=None,
    )


def _written(setup: Setup) -> dict[str, ModelPolicy]:
    return {name: rules.policy for name, rules in setup.policies.items()}


def _mount(handler: InferenceHandler) -> ASGIRouteHandler:
    @asgi(handler.door.path, copy_scope=False)
    async def inference(scope: LitestarScope, receive: LitestarReceive, send: LitestarSend) -> None:
        await handler(scope, receive, send)  # type: ignore[arg-type]

    return inference


def _always(value: object) -> Provide:
    return _now(lambda: value)


def _now(value: Callable[[], object]) -> Provide:
    return Provide(value, sync_to_thread=False)


def _gateway_error(request: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(
        _error_body(request, error), status_code=error.status, headers=headers, media_type="application/json"
    )


def _error_body(request: Request[Any, Any, Any], error: GatewayError) -> bytes:
    if request.url.path.startswith("/api/"):
        return ollama.error_body(error)
    return anthropic.error_body(error) if anthropic.VERSION in request.headers else error_body(error)


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: mostly paths and methods that do not exist."""
    if error.status_code == 404:
        meant = f"/v1{request.url.path}"
        hint = f" Did you mean {meant}? A base URL ends in /v1." if meant in _PATHS else ""
        message, code = f"There is no {request.url.path} here.{hint}", "not_found"
    elif error.status_code == 405:
        message, code = f"{request.url.path} does not take {request.method}.", "method_not_allowed"
    else:
        message, code = error.detail, "invalid_request"
    kind = None if error.status_code < 500 else "server_error"
    response = _gateway_error(request, InvalidRequest(message, status=error.status_code, code=code, kind=kind))
    for name, value in (error.headers or {}).items():
        response.set_header(name, value)
    return response


def _unforeseen(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    _log.error("%s %s failed inside the gateway", request.method, request.url.path, exc_info=error)
    return _gateway_error(request, GatewayError("The gateway failed on this request; its log knows why."))
