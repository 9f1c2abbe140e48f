"""A real vLLM for all tests here, and a gateway in front of it for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.gateway import RunningGateway, gateway
from tests.support.vllm import vllm

KEY = "sk-sluice-tests"


@pytest.fixture(scope="package")
def vllm_url() -> Iterator[str]:
    """A vLLM that orders its queue by `priority`."""
    with vllm("--scheduling-policy=priority") as url:
        yield url


@pytest.fixture
async def sluice(vllm_url: str) -> AsyncIterator[RunningGateway]:
    """It asks for `KEY`, and has the engine's model under its own name and as `chat`."""
    async with gateway(
        engines={"big": {"kind": "vllm", "url": vllm_url}},
        models={"chat": [{"engine": "big"}]},
        server={"keys": [{"name": "tests", "key": KEY}]},
    ) as running:
        yield running
