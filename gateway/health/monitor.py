"""Keeps an engine's health up to date by probing it, for as long as the gateway runs."""

import logging
import random
import time

import anyio
import msgspec

from gateway.backend import Backend
from gateway.engines.base import Health, Load, State
from gateway.engines.identity import broken_pin
from gateway.upstream.http import httpx

_log = logging.getLogger("sluice.health")

_IMPATIENT = 1.0
"""Seconds between two probes of an engine that is not ready, so that it gets traffic soon after it is."""
_MISSES = 2
"""Probes in a row that may go unanswered before an engine that also sends no answers counts as down."""


async def watch(backend: Backend) -> None:
    """Probes `backend` until cancelled. The pauses vary by a tenth, so that several gateways do not keep step."""
    misses = 0
    while True:
        health, misses = await check(backend, misses)
        if (health.state, health.reason) != (backend.health.state, backend.health.reason):
            level = logging.INFO if health.state is State.READY else logging.WARNING
            reason = f": {health.reason}" if health.reason else ""
            _log.log(level, "engine %s is %s%s", backend.name, health.state.value, reason)
        backend.set_health(health)
        backend.engine_load = await read_load(backend) if backend.ready else None
        backend.looked_at.set()
        interval = backend.config.probe.interval
        pause = interval if backend.ready else min(interval, _IMPATIENT)
        await backend.poked(pause * random.uniform(0.9, 1.1))  # noqa: S311 - nothing here is secret


async def read_load(backend: Backend) -> Load | None:
    """How busy the engine says it is. That it does not say, or says it too late, is no fault of its health."""
    try:
        with anyio.move_on_after(backend.config.probe.timeout):
            return await backend.engine.read_load(backend.client)
    except httpx.HTTPError:
        pass
    except Exception:  # noqa: BLE001 - whatever one engine sends, it is watched on
        _log.exception("engine %s tells of its load what cannot be read", backend.name)
    return None


async def check(backend: Backend, misses: int = 0) -> tuple[Health, int]:
    """Probes once; `misses` is how many probes before this one went unanswered."""
    if backend.process is not None and backend.process.pid is None:  # whoever answers there is not ours
        return backend.absent(), 0
    asked_at = time.perf_counter()
    limit = backend.config.probe.timeout
    try:
        with anyio.fail_after(limit):
            health = await backend.engine.probe(backend.client)
        if health.state is State.READY and (reason := broken_pin(backend.config.pins, health.models)):
            health = msgspec.structs.replace(health, state=State.DOWN, reason=reason)
        return health, 0
    except httpx.ConnectError:
        return backend.absent(), 0
    except (httpx.TimeoutException, TimeoutError):
        busy = backend.progressed_at > asked_at
        misses = 0 if busy else misses + 1
        if busy or (misses < _MISSES and backend.ready):
            return backend.health, misses
        return Health(State.DOWN, f"it does not answer within {limit:g} s"), misses
    except Exception as exc:  # noqa: BLE001 - whatever one engine sends, the others are watched on
        if not isinstance(exc, httpx.HTTPError):
            _log.exception("engine %s sent a probe what cannot be read", backend.name)
        return Health(State.DOWN, f"its answer to a probe is broken ({type(exc).__name__})"), 0
