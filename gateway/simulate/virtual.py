"""An event loop whose time passes at once: where all tasks wait, it is the moment at which the next one goes on."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class NothingHappens(Exception):
    """All tasks wait, and none of them for a time."""


class _Clock(selectors.SelectSelector):
    """Where a loop would wait for sockets, this one moves the time on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingHappens
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at 0 s. It has no sockets, processes or threads to wait for."""

    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Runs `main` to its end in virtual time."""

    async def entered() -> T:
        return await main()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(entered())
