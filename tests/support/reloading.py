"""A gateway that follows the files of its config, in the test's own event loop.

async with reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
    await sluice.change(engines={"b": engine_config(other.url)})
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
from litestar import Litestar

from gateway.backend import Backend
from gateway.cli_config import load
from gateway.config.history import Copy, History
from gateway.config.reload import Reloader
from gateway.fleet import Fleet
from gateway.policy.load import Setup
from gateway.router import Router
from gateway.server import Server, create_server, listen
from gateway.telemetry.logs import RequestLog
from tests.support.client import get
from tests.support.gateway import RunningGateway
from tests.support.waiting import eventually

POLL = 0.02
NEVER = 3600.0


class ReloadingGateway(RunningGateway):
    """A gateway whose config is `path`, in JSON, which is YAML too; and `policy` beside it, if the config names it."""

    def __init__(
        self, port: int, server: Server, log: io.StringIO, request_log: RequestLog, reloader: Reloader[Setup]
    ) -> None:
        super().__init__(port, server, log, request_log)
        self.reloader = reloader
        self.path = reloader.path
        self.policy = self.path.parent / "policy.yaml"

    @property
    def fleet(self) -> Fleet:
        return cast("Fleet", self._part("fleet"))

    @property
    def router(self) -> Router:
        return cast("Router", self._part("names"))

    def backend(self, name: str) -> Backend:
        return self.fleet.backends[name]

    def _part(self, name: str) -> object:
        return cast("Litestar", self.server.config.app).dependencies[name].dependency()  # type: ignore[union-attr]

    def write(self, **sections: Any) -> None:
        """Replaces sections of the config file, as an editor does; one that is `None` is left out."""
        content = json.loads(self.path.read_text()) | sections
        replace(self.path, json.dumps({name: section for name, section in content.items() if section is not None}))

    async def change(self, **sections: Any) -> None:
        """Writes sections, and waits until they are in force."""
        self.write(**sections)
        await self.loaded()

    async def loaded(self) -> None:
        """Waits until what is written is in force."""
        policy = self.policy.read_text() if "policy" in json.loads(self.path.read_text()) else None
        version = Copy(self.path.read_text(), policy).version
        await eventually(lambda: self.reloader.status.version == version and not self.reloader.status.error, timeout=10)

    async def refused(self, text: str = "") -> str:
        """Waits until an error with `text` in it is reported, and returns it whole."""
        await eventually(lambda: self.reloader.status.error and text in self.reloader.status.error, timeout=10)
        return str((await self.status())["error"])

    async def status(self) -> dict[str, Any]:
        """What /health/ready says of the config."""
        return dict((await get(self.port, "/health/ready")).json()["config"])


def replace(path: Path, text: str) -> None:
    """Writes a file as most editors do: a new one, renamed."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@asynccontextmanager
async def reloading(
    folder: Path,
    engines: Mapping[str, Any],
    *,
    policy: str = "",
    poll: float | None = POLL,
    history: bool = False,
    **sections: Any,
) -> AsyncIterator[ReloadingGateway]:
    """Runs a gateway on `sluice.yaml` in `folder`, and on `policy` beside it."""
    path = folder / "sluice.yaml"
    if policy:
        (folder / "policy.yaml").write_text(policy)
        sections["policy"] = "policy.yaml"
    path.write_text(json.dumps({"engines": engines, **sections}))
    reloader = Reloader(path, load, history=History(path) if history else None, poll=poll)
    log = io.StringIO()
    request_log = RequestLog(log)
    server = create_server(reloader.first(), request_log, reloader)
    with listen("127.0.0.1", 0) as listener:
        ended = anyio.Event()

        async def serve() -> None:
            try:
                await server.serve([listener])
                await server.lifespan.shutdown()  # which `force_exit` leaves out: the engines end here
            finally:
                ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                while not server.started:
                    await asyncio.sleep(0.005)
                yield ReloadingGateway(listener.getsockname()[1], server, log, request_log, reloader)
            finally:
                server.should_exit = True
                server.force_exit = True
                with anyio.CancelScope(shield=True):  # a failing test would cancel it before its sockets are closed
                    await ended.wait()
