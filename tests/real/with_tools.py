"""A gateway in front of a real llama.cpp that can call tools."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from gateway.engines.managed import find_model, free_port
from tests.real.conftest import KEY
from tests.real.llamacpp import ALIAS, MODEL
from tests.support.client import get
from tests.support.gateway import RunningGateway, gateway

PROGRAM = Path(__file__).with_name("llamacpp_with_tools.py")


@asynccontextmanager
async def sluice_with_tools() -> AsyncIterator[RunningGateway]:
    """It asks for `KEY` and has the engine's model under its own name and as `chat`."""
    port = free_port()
    engine = {"kind": "llamacpp", "url": f"http://127.0.0.1:{port}", "models": [ALIAS]}
    models = {"chat": [{"engine": "tools", "model": ALIAS}]}
    server = {"keys": [{"name": "tests", "key": KEY}]}
    command = [sys.executable, str(PROGRAM), str(find_model(MODEL)), ALIAS, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            async with gateway(engines={"tools": engine}, models=models, server=server) as running:
                with anyio.fail_after(60):
                    while (await get(running.port, "/health/ready")).status != 200:
                        await anyio.sleep(0.1)
                yield running
        finally:
            process.kill()
