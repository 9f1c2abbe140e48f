"""The real gateway on a real socket, in the test's own event loop.

async with ScriptedEngine([sse_reply(ROLE, T("hi"), FIN("stop"), DONE)]) as engine, gateway(engine.url) as sluice:
    reply = await post_json(sluice.port, "/v1/chat/completions", {"model": "m", "messages": [...]})
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from gateway.config.schema import Config
from gateway.policy.load import Setup, parse_policy
from gateway.server import Server, create_server, listen
from gateway.telemetry.logs import RequestLog

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
REQ = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
"""The smallest chat request."""


@dataclass
class RunningGateway:
    """A gateway that serves on `port`; `log` holds what it has logged of requests."""

    port: int
    server: Server
    log: io.StringIO
    request_log: RequestLog

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def records(self) -> list[dict[str, Any]]:
        """The request log so far."""
        self.request_log.flush()
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    async def record(self, number: int = 0, timeout: float = 5.0) -> dict[str, Any]:
        """A record of the request log, waited for: it is written after the client has its answer."""
        async with asyncio.timeout(timeout):
            while len(records := self.records()) <= number:
                await asyncio.sleep(0.01)
        return records[number]


def engine_config(url: str, **fields: Any) -> dict[str, Any]:
    """An engine as `sluice.yaml` has it: probed seldom, and serving the model `m`, unless `fields` say otherwise."""
    return {"kind": "openai", "url": url, "models": ["m"], "probe": {"interval": 60}, **fields}


def make_config(
    *urls: str,
    engines: Mapping[str, Mapping[str, Any]] | None = None,
    models: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    queue: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Config:
    """A config with an engine for each of `urls`, named `a`, `b`, ...; or with `engines` as they are.

    `fields` go to every engine made from `urls`.
    """
    named = engines or {chr(ord("a") + at): engine_config(url, **fields) for at, url in enumerate(urls)}
    return msgspec.convert(
        {"engines": named, "models": models or {}, "server": server or {}, "queue": queue or {}}, Config
    )


@asynccontextmanager
async def gateway(
    *urls: str,
    config: Config | None = None,
    policy: str = "",
    engines: Mapping[str, Mapping[str, Any]] | None = None,
    models: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    queue: Mapping[str, Any] | None = None,
    **fields: Any,
) -> AsyncIterator[RunningGateway]:
    """Runs a gateway with `config`, or with the one that `make_config` makes of the other arguments.

    `policy` is the text of a policy file.
    """
    log = io.StringIO()
    request_log = RequestLog(log)
    config = config or make_config(*urls, engines=engines, models=models, server=server, queue=queue, **fields)
    policies = parse_policy(policy, "policy.yaml", config) if policy else {}
    running = create_server(Setup(config, policies), request_log)
    with listen("127.0.0.1", 0) as listener:
        ended = anyio.Event()

        async def serve() -> None:
            try:
                await running.serve([listener])
                await running.lifespan.shutdown()  # which `force_exit` leaves out: the engines end here
            finally:
                ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                while not running.started:
                    await asyncio.sleep(0.005)
                yield RunningGateway(listener.getsockname()[1], running, log, request_log)
            finally:
                running.should_exit = True
                running.force_exit = True
                with anyio.CancelScope(shield=True):  # a failing test would cancel it before its sockets are closed
                    await ended.wait()
