"""Which engines a running gateway believes to be at work."""

from typing import cast

from litestar import Litestar

from gateway.fleet import Fleet
from tests.support.gateway import RunningGateway


def in_flight(sluice: RunningGateway) -> dict[str, int]:
    """How many requests each engine has, for the engines that have any."""
    fleet = cast("Fleet", cast("Litestar", sluice.server.config.app).dependencies["fleet"].dependency())  # type: ignore[union-attr]
    return {name: backend.in_flight for name, backend in fleet.backends.items() if backend.in_flight}
