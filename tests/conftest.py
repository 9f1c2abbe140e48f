from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, settings

from gateway.upstream.http import httpx
from tests.support.transports import TRANSPORTS, make_transport

settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("tests"), derandomize=False)
settings.load_profile("tests")  # the same examples each time; --hypothesis-profile=explore looks for new ones


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop that the gateway runs on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=TRANSPORTS)
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """Each of the transports in turn."""
    async with make_transport(request.param) as transport:
        yield transport
