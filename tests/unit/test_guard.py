"""The guard ends its block when a limit passes or it is told to, says why, and leaves nothing of it behind."""

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest

from gateway.guard import Guard

pytestmark = pytest.mark.anyio

SOON = 0.03
LATE = 30.0
"""A limit that is not to pass, and a sleep that is not to end by itself."""


def after(seconds: float) -> float:
    return time.perf_counter() + seconds


async def assert_nothing_left() -> None:
    """No cancellation is pending or counted in this task."""
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    for _ in range(3):
        await asyncio.sleep(0)
    with anyio.move_on_after(LATE) as scope:
        await asyncio.sleep(0)
    assert not scope.cancelled_caught


class TestLimits:
    async def test_without_one_the_block_just_runs(self) -> None:
        guard = Guard()
        with guard:
            await asyncio.sleep(0)
        assert guard.cause is None
        await assert_nothing_left()

    async def test_the_block_ends_when_one_passes(self) -> None:
        guard = Guard()
        started = time.perf_counter()
        with guard:
            guard.until("idle", after(SOON))
            await asyncio.sleep(LATE)
        assert guard.cause == "idle"
        assert SOON <= time.perf_counter() - started < LATE / 2
        await assert_nothing_left()

    async def test_one_already_passed_ends_it_at_the_next_wait(self) -> None:
        guard = Guard()
        with guard:
            guard.until("idle", after(-1.0))
            await asyncio.sleep(LATE)
        assert guard.cause == "idle"

    async def test_only_the_latest_is_in_force(self) -> None:
        guard = Guard()
        with guard:
            guard.until("first_byte", after(SOON))
            guard.until("ttft", after(LATE))
            await asyncio.sleep(4 * SOON)
            guard.until("idle", after(SOON))
            await asyncio.sleep(LATE)
        assert guard.cause == "idle"

    async def test_one_that_is_moved_on_in_time_does_not_pass(self) -> None:
        guard = Guard()
        with guard:
            for _ in range(10):
                guard.until("idle", after(5 * SOON))
                await asyncio.sleep(SOON)
        assert guard.cause is None

    @pytest.mark.parametrize("idle", [LATE, 2 * SOON])
    async def test_the_total_bounds_all_others(self, idle: float) -> None:
        guard = Guard()
        with guard:
            guard.total(after(4 * SOON))
            while True:
                guard.until("idle", after(idle))
                await asyncio.sleep(SOON / 3)
        assert guard.cause == "total"

    async def test_the_total_is_not_lifted_by_other_limits(self) -> None:
        guard = Guard()
        with guard:
            guard.until("idle", after(SOON))
            guard.total(after(2 * SOON))
            guard.until("idle", after(LATE))
            await asyncio.sleep(LATE)
        assert guard.cause == "total"

    async def test_none_of_them_reaches_beyond_the_block(self) -> None:
        guard = Guard()
        with guard:
            guard.until("idle", after(SOON))
            guard.total(after(SOON))
        await asyncio.sleep(3 * SOON)
        guard.cancel(Guard.GONE)
        assert guard.cause is None
        await assert_nothing_left()


class TestBeingTold:
    async def test_the_block_ends(self) -> None:
        guard = Guard()
        with guard:
            asyncio.get_running_loop().call_soon(guard.cancel, Guard.GONE)
            await asyncio.sleep(LATE)
        assert guard.cause == Guard.GONE
        await assert_nothing_left()

    async def test_the_first_cause_counts(self) -> None:
        guard = Guard()
        with guard:
            loop = asyncio.get_running_loop()
            loop.call_soon(guard.cancel, "first")
            loop.call_soon(guard.cancel, "second")
            guard.until("idle", after(0.0))
            await asyncio.sleep(LATE)
        assert guard.cause == "first"
        await assert_nothing_left()

    async def test_by_the_block_itself_it_ends_at_the_next_wait(self) -> None:
        guard = Guard()
        reached = False
        with guard:
            guard.cancel(Guard.GONE)
            await asyncio.sleep(LATE)
            reached = True
        assert (guard.cause, reached) == (Guard.GONE, False)
        await assert_nothing_left()

    async def test_in_the_moment_in_which_the_block_ends_by_itself(self) -> None:
        """What the block waits for is there, and the cause comes before the block has gone on."""
        guard = Guard()
        ready = asyncio.get_running_loop().create_future()

        def both() -> None:
            ready.set_result(None)
            guard.cancel(Guard.GONE)

        asyncio.get_running_loop().call_soon(both)
        with guard:
            await ready
        assert guard.cause == Guard.GONE
        await assert_nothing_left()


class TestErrors:
    async def test_of_the_block_pass_through(self) -> None:
        guard = Guard()

        async def run() -> None:
            with guard:
                guard.until("idle", after(SOON))
                raise LookupError

        with pytest.raises(LookupError):
            await run()
        assert guard.cause is None
        await asyncio.sleep(2 * SOON)
        await assert_nothing_left()

    async def test_made_of_the_cancellation_pass_through_beside_the_cause(self) -> None:
        guard = Guard()

        async def run() -> None:
            with guard:
                guard.until("idle", after(SOON))
                try:
                    await asyncio.sleep(LATE)
                except asyncio.CancelledError:
                    raise LookupError from None

        with pytest.raises(LookupError):
            await run()
        assert guard.cause == "idle"
        await assert_nothing_left()

    async def test_clean_up_in_the_block_runs_and_may_wait(self) -> None:
        guard = Guard()
        cleaned = []
        with guard:
            guard.until("idle", after(SOON))
            try:
                await asyncio.sleep(LATE)
            finally:
                await asyncio.sleep(0)
                cleaned.append(True)
        assert cleaned == [True]
        await assert_nothing_left()


class TestScopesInside:
    async def test_one_that_ends_first_is_its_own_affair(self) -> None:
        guard = Guard()
        with guard:
            guard.until("idle", after(LATE))
            with anyio.move_on_after(SOON) as scope:
                await asyncio.sleep(LATE)
            assert scope.cancelled_caught
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SOON):
                    await asyncio.sleep(LATE)
            await asyncio.sleep(0)
        assert guard.cause is None
        await assert_nothing_left()

    @pytest.mark.parametrize("scope", [anyio.move_on_after, anyio.fail_after, asyncio.timeout])
    async def test_the_guard_reaches_through_them(self, scope: Callable[[float], object]) -> None:
        guard = Guard()
        with guard:
            guard.until("idle", after(SOON))
            if scope is asyncio.timeout:
                async with asyncio.timeout(LATE):
                    await asyncio.sleep(LATE)
            else:
                with scope(LATE):  # type: ignore[attr-defined]
                    await asyncio.sleep(LATE)
        assert guard.cause == "idle"
        await assert_nothing_left()

    async def test_tasks_started_inside_end_too(self) -> None:
        guard = Guard()
        ended = []

        async def child() -> None:
            try:
                await asyncio.sleep(LATE)
            finally:
                ended.append(True)

        with guard:
            guard.until("idle", after(SOON))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child)
        assert (guard.cause, ended) == ("idle", [True])
        await assert_nothing_left()

    async def test_a_shield_does_not_keep_it_out(self) -> None:
        """It cancels the task itself, as `asyncio.timeout` does."""
        guard = Guard()
        with guard:
            guard.until("idle", after(SOON))
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(LATE)
        assert guard.cause == "idle"
        await assert_nothing_left()

    async def test_guards_in_each_other_end_one_by_one(self) -> None:
        outer, inner = Guard(), Guard()
        reached = []
        with outer:
            outer.until("outer", after(4 * SOON))
            with inner:
                inner.until("inner", after(SOON))
                await asyncio.sleep(LATE)
            reached.append("between")
            await asyncio.sleep(LATE)
            reached.append("the end")
        assert (outer.cause, inner.cause, reached) == ("outer", "inner", ["between"])
        await assert_nothing_left()


class TestCancellationFromOutside:
    async def test_by_a_task_s_owner_passes_through(self) -> None:
        guard = Guard()

        async def run() -> None:
            with guard:
                guard.until("idle", after(LATE))
                await asyncio.sleep(LATE)

        task = asyncio.create_task(run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert guard.cause is None

    @pytest.mark.parametrize("first", ["guard", "owner"])
    async def test_at_the_same_moment_as_a_cause_it_still_passes_through(self, first: str) -> None:
        guard = Guard()

        async def run() -> None:
            with guard:
                await asyncio.sleep(LATE)

        task = asyncio.create_task(run())
        await asyncio.sleep(0)
        if first == "guard":
            guard.cancel(Guard.GONE)
            task.cancel()
        else:
            task.cancel()
            guard.cancel(Guard.GONE)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert guard.cause == Guard.GONE

    async def test_by_a_scope_around_it_passes_through(self) -> None:
        guard = Guard()
        with anyio.move_on_after(SOON) as scope:
            with guard:
                guard.until("idle", after(LATE))
                await asyncio.sleep(LATE)
            pytest.fail("the scope is cancelled")
        assert scope.cancelled_caught
        assert guard.cause is None
        await assert_nothing_left()

    async def test_a_scope_around_it_is_not_cancelled_by_it(self) -> None:
        guard = Guard()
        with anyio.move_on_after(LATE) as scope:
            with guard:
                guard.until("idle", after(SOON))
                await asyncio.sleep(LATE)
            await asyncio.sleep(0)
        assert guard.cause == "idle"
        assert not scope.cancelled_caught
        await assert_nothing_left()
