"""Builds the application from a config; it owns the start and the stop of everything."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request, Response, asgi
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive as LitestarReceive
from litestar.types import Scope as LitestarScope
from litestar.types import Send as LitestarSend

from gateway.api import anthropic, ollama
from gateway.api.admin import list_engines
from gateway.api.doors import DOORS, all_doors
from gateway.api.errors import error_body, error_headers
from gateway.api.health import live, ready
from gateway.api.inference import InferenceHandler
from gateway.api.models import get_model, list_models
from gateway.auth import Keys
from gateway.errors import GatewayError, InvalidRequest
from gateway.fleet import Fleet
from gateway.policy.load import Setup
from gateway.router import Router
from gateway.telemetry.logs import RequestLog

_PATHS = frozenset({"/v1/models", *(door.path for door in DOORS)})

_log = logging.getLogger("sluice.api")


def create_app(setup: Setup, *, log: RequestLog | None = None) -> Litestar:
    """The ASGI application; engines start and stop with its lifespan."""
    config = setup.config
    keys = Keys(config.server.keys)
    fleet = Fleet(config)
    router = Router(config, fleet, setup.policies)
    log = log or RequestLog()

    @asynccontextmanager
    async def engines_running(_: Litestar) -> AsyncIterator[None]:
        try:
            async with fleet.running(), router.running():
                yield
        finally:
            log.flush()

    endpoints = [_mount(InferenceHandler(door, config.server, keys, router, log)) for door in all_doors(router)]
    return Litestar(
        [*endpoints, list_models, get_model, list_engines, *ollama.ROUTES, live, ready],
        lifespan=[engines_running],
        dependencies={
            "keys": _always(keys),
            "fleet": _always(fleet),
            "names": _always(router),
            "started_at": _always(int(time.time())),
        },
        exception_handlers={GatewayError: _gateway_error, HTTPException: _http_error, Exception: _unforeseen},
        openapi_config=None,
        logging_config=None,
    )


def _mount(handler: InferenceHandler) -> ASGIRouteHandler:
    @asgi(handler.door.path, copy_scope=False)
    async def inference(scope: LitestarScope, receive: LitestarReceive, send: LitestarSend) -> None:
        await handler(scope, receive, send)  # type: ignore[arg-type]

    return inference


def _always(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


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
