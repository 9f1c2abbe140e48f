"""A place for one request, for as long as it has it."""

import asyncio
from types import TracebackType
from typing import Generic, Self

from gateway.admission.ask import Ask, P, QueueTimeout
from gateway.admission.queue import Admission


class Lease(Generic[P]):
    """A place for one request, asked for on entering, and given back at the end of the block, whatever happens.

    async with Lease(admission, ask, timeout=60.0) as lease:
        while not await lease.granted(10.0):
            ...  # tell the client that it waits
        lease.place

    A place that `ask.preempt` was called for is lost, and `granted` waits for the next one.

    Args:
        timeout: the longest wait for a place, in seconds.
        placeless: the request takes no place, so that it goes to any engine that is ready, full or not.
    """

    def __init__(self, admission: Admission[P], ask: Ask[P], timeout: float, *, placeless: bool = False) -> None:
        self.ask = ask
        self._admission = admission
        self._timeout = timeout
        self._placeless = placeless
        self._woken = asyncio.Event()

    @property
    def waited(self) -> bool:
        """Whether it had to wait for its place, or must wait again."""
        return self.ask.waited

    @property
    def place(self) -> P:
        """That which was granted."""
        assert self.ask.granted is not None  # noqa: S101 - asked for only after `granted`
        return self.ask.granted

    async def __aenter__(self) -> Self:
        """
        Raises:
            QueueFull: it would have to wait, and may not.
        """
        if self._placeless:
            self.ask.granted = self._admission.any_ready(self.ask)
        else:
            self.ask.wake = self._woken.set
            self._admission.submit(self.ask)
        return self

    async def granted(self, within: float) -> bool:
        """Waits for the place, at most `within` seconds, and says whether it is there.

        Raises:
            QueueTimeout: it waited for as long as it may.
            GatewayError: it waits no longer, for the reason that `ask.refused` is.
        """
        ask, loop = self.ask, asyncio.get_running_loop()
        until = loop.time() + within
        while ask.granted is None:
            if ask.refused is not None:
                raise ask.refused
            self._woken.clear()
            rest, left = until - loop.time(), self._timeout - self._admission.waited(ask)
            try:
                async with asyncio.timeout(min(rest, left)):
                    await self._woken.wait()
            except TimeoutError:
                if self._woken.is_set():  # in the same moment
                    continue
                if rest < left:
                    return False
                raise QueueTimeout(
                    f"No engine had a place within {self._timeout:g} s.", retry_after=self._admission.retry_after(ask)
                ) from None
        return True

    def keep(self) -> None:
        """It is not to be lost any more."""
        self.ask.preempt = None

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._placeless:
            self._admission.leave(self.ask)
