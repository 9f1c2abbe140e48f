"""Waiting for what happens on its own, without guessing how long it takes."""

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], object], timeout: float = 2.0) -> None:
    """Waits until `condition` holds.

    Raises:
        TimeoutError: it did not within `timeout` seconds.
    """
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


async def becomes(look: Callable[[], Awaitable[object]], timeout: float = 5.0) -> None:
    """Waits until what `look` finds out is true, as a client that asks over and over does.

    Raises:
        TimeoutError: it did not within `timeout` seconds.
    """
    async with asyncio.timeout(timeout):
        while not await look():
            await asyncio.sleep(0.02)
