"""The `sluice` command as a process of its own."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.client import get

COMMAND = (sys.executable, "-m", "gateway.cli")
AT_DEBUG_LEVEL = (
    sys.executable,
    "-c",
    "import logging\n"
    "from gateway import cli\n"
    "from gateway.telemetry.logs import configure_logging\n"
    "cli.configure_logging = lambda *_: configure_logging(logging.DEBUG)\n"
    "cli.main()",
)
"""The command with everything logged that the gateway and its libraries have to say."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def write_config(folder: Path, engines: Mapping[str, Any], **server: Any) -> Path:
    """A `sluice.yaml` in JSON, which is YAML too."""
    path = folder / "sluice.yaml"
    path.write_text(json.dumps({"engines": engines, "server": server}))
    return path


def run(*args: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, args)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        text=True,
        capture_output=True,
        timeout=30,
    )


@dataclass
class Serving:
    """A `sluice serve` that listens on `port`; `log` is what it has written to standard error."""

    process: asyncio.subprocess.Process
    port: int
    log: Path

    async def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 20.0) -> int:
        """Sends a signal and waits for the end; the exit status."""
        self.process.send_signal(number)
        async with asyncio.timeout(timeout):
            return await self.process.wait()


@asynccontextmanager
async def serving(
    folder: Path,
    engines: Mapping[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
    **server: Any,
) -> AsyncIterator[Serving]:
    """Runs `sluice serve` with files in `folder`, killed at the end of the block if it still runs."""
    port = free_port()
    config = write_config(folder, engines, **{"port": port, **server})
    log = folder / "stderr"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command, "serve", "--config", config, cwd=folder, env={**os.environ, **(env or {})}, stderr=stderr
        )
    try:
        async with asyncio.timeout(30):
            while not await _answers(port):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield Serving(process, port, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _answers(port: int) -> bool:
    try:
        return (await get(port, "/health/live")).status == 200
    except OSError:
        return False
