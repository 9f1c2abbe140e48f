"""Waiting for what happens on its own, without guessing how long it takes."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], timeout: float = 2.0) -> None:
    """Waits until `condition` holds.

    Raises:
        TimeoutError: it did not within `timeout` seconds.
    """
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)
