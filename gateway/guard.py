"""What ends a request early: its client leaves, or a limit passes. One timer for all limits."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Guard:
    """Cancels its block when the client has gone or the limit in force has passed; `cause` then says which.

    Limits follow one another (`body`, `first_byte`, `ttft`, `idle`, `stall`), so only one is in force besides
    `total`. Moving on is two assignments: the timer looks at the limit only when it fires.

    It cancels the task as `asyncio.timeout` does, which costs a third of an `anyio.CancelScope`; scopes inside the
    block and cancellation from outside it work as usual.
    """

    GONE = "gone"
    PREEMPTED = "preempted"
    """The request has lost its place, and may go on with another: see `goes_on`."""

    def __init__(self) -> None:
        self.cause: str | None = None
        self._limit = ""
        self._deadline = float("inf")
        self._total = float("inf")
        self._last = float("inf")
        self._remind_at = float("inf")
        self._interval = 0.0
        self._reminder: Callable[[], bool] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")

    def until(self, limit: str, deadline: float) -> None:
        """Puts `limit` in force, in place of the one before; `deadline` is a `time.perf_counter` time."""
        self._limit = limit
        self._deadline = deadline
        if deadline < self._timer_due:
            self._set_timer()

    def total(self, deadline: float) -> None:
        """Bounds everything that follows, whatever other limit is in force."""
        self._total = deadline
        if deadline < self._timer_due:
            self._set_timer()

    def deadline(self, deadline: float) -> None:
        """Bounds everything that follows, as the request's policy says."""
        self._last = deadline
        if deadline < self._timer_due:
            self._set_timer()

    def remind(self, interval: float, reminder: Callable[[], bool]) -> None:
        """Calls `reminder` every `interval` seconds until it returns `False`, or the block ends."""
        self._interval = interval
        self._reminder = reminder
        self._remind_at = time.perf_counter() + interval
        if self._remind_at < self._timer_due:
            self._set_timer()

    def cancel(self, cause: str) -> None:
        """Ends the block now; the first cause counts, but any before `PREEMPTED`, after which it might go on."""
        if self._task is None:
            return
        if self.cause is None:
            self.cause = cause
            self._task.cancel()
        elif self.cause == self.PREEMPTED:
            self.cause = cause

    def goes_on(self) -> bool:
        """Called on a cancellation inside the block: whether that was `PREEMPTED` alone, which is over with this."""
        if self.cause != self.PREEMPTED or self._task is None or self._task.cancelling() > self._cancelling + 1:
            return False
        self._task.uncancel()
        self.cause = None
        self._deadline = self._total = float("inf")
        self._set_timer()
        return True

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = min(self._deadline, self._total, self._last, self._remind_at)
        if self._timer_due == float("inf"):
            return
        delay = self._timer_due - time.perf_counter()
        self._timer = asyncio.get_running_loop().call_later(max(delay, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.perf_counter()
        if now >= self._remind_at and self._reminder is not None:
            self._remind_at = now + self._interval if self._reminder() else float("inf")
        if now >= self._deadline:
            self.cancel(self._limit)
        elif now >= self._total:
            self.cancel("total")
        elif now >= self._last:
            self.cancel("deadline")
        else:
            self._set_timer()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._task = self._task, None
        if self.cause is None or task is None or task.uncancel() > self._cancelling:
            return False
        return exc_type is asyncio.CancelledError
