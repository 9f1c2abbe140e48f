"""A real llama.cpp for all tests here, and a gateway in front of it for each test."""

import time
from collections.abc import AsyncIterator, Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from gateway.config.schema import Managed
from gateway.engines.managed import ManagedEngine
from gateway.upstream.http import httpx
from tests.real.llamacpp import ALIAS, MODEL, THREADS, Watcher
from tests.support.gateway import RunningGateway, gateway

KEY = "sk-sluice-tests"


@pytest.fixture(scope="package")
def llamacpp_url() -> Iterator[str]:
    """A llama.cpp with two slots of 2048 tokens; it runs beside the tests, whatever their event loop does."""
    engine = ManagedEngine("real", Managed(model=MODEL, context=2048, slots=2, threads=THREADS), ALIAS)
    with start_blocking_portal() as portal:
        running = portal.start_task_soon(engine.run)
        try:
            wait_until_healthy(engine)
            yield engine.url
        finally:
            running.cancel()


def wait_until_healthy(engine: ManagedEngine, timeout: float = 90.0) -> None:
    give_up_at = time.monotonic() + timeout
    while time.monotonic() < give_up_at:
        try:
            if httpx.get(f"{engine.url}/health", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"llama.cpp is not healthy after {timeout:g} s: {engine.state}")


@pytest.fixture
def llamacpp(llamacpp_url: str) -> Watcher:
    return Watcher(llamacpp_url)


@pytest.fixture
async def sluice(llamacpp_url: str) -> AsyncIterator[RunningGateway]:
    """It asks for `KEY` and has the engine's model under its own name and as `chat`."""
    async with gateway(
        engines={"local": {"kind": "llamacpp", "url": llamacpp_url}},
        models={"chat": [{"engine": "local"}]},
        server={"keys": [{"name": "tests", "key": KEY}]},
    ) as running:
        yield running
