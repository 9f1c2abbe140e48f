"""A lease waits for its place, keeps it for its block, and gives it back whatever happens."""

import asyncio

import pytest

from gateway.admission import Admission, Ask, Lease, QueueFull, QueueTimeout
from gateway.errors import GatewayError
from tests.support.places import Engine, Place, least_loaded, tiers_of

pytestmark = pytest.mark.anyio


class TestLease:
    async def test_it_is_there_at_once_and_given_back_at_the_end(self) -> None:
        admission, engine = _admission(), Engine("a")
        async with Lease(admission, _ask(engine), 1.0) as lease:
            assert await lease.granted(0)
            assert (lease.waited, lease.place.engine, engine.in_flight) == (False, engine, 1)
        assert engine.in_flight == 0

    async def test_it_is_given_back_whatever_happens(self) -> None:
        admission, engine = _admission(), Engine("a")
        with pytest.raises(ZeroDivisionError):
            async with Lease(admission, _ask(engine), 1.0):
                raise ZeroDivisionError
        assert engine.in_flight == 0

    async def test_it_is_waited_for(self) -> None:
        admission, engine = _admission(), Engine("a")
        async with Lease(admission, _ask(engine), 60.0) as first, Lease(admission, _ask(engine), 60.0) as second:
            assert not await second.granted(0.01)
            waiting = asyncio.create_task(second.granted(60.0))
            await asyncio.sleep(0)
            admission.leave(first.ask)
            assert await waiting
            assert (second.waited, engine.in_flight) == (True, 1)
        assert engine.in_flight == 0

    async def test_the_wait_has_an_end(self) -> None:
        admission, engine = _admission(), Engine("a", service=7.0)
        async with Lease(admission, _ask(engine), 60.0):
            with pytest.raises(QueueTimeout) as late:
                await _wait(Lease(admission, _ask(engine), 0.02), 0.005)
        assert (late.value.status, late.value.code, late.value.retry_after) == (503, "queue_timeout", 7.0)
        assert (admission.waiting, engine.in_flight) == ([], 0)

    async def test_one_that_may_not_wait_is_not_there(self) -> None:
        admission, engine = _admission(limit=0), Engine("a")
        async with Lease(admission, _ask(engine), 60.0):
            with pytest.raises(QueueFull):
                await _wait(Lease(admission, _ask(engine), 60.0), 60.0)
        assert engine.in_flight == 0

    @pytest.mark.parametrize("when", ["while it waits", "before it waits", "with a limit passed at the same time"])
    async def test_a_refusal_ends_the_wait(self, when: str) -> None:
        admission, engine = _admission(), Engine("a")
        error = GatewayError("The config has changed.")
        async with Lease(admission, _ask(engine), 60.0):
            ask = _ask(engine)
            if when != "before it waits":
                asyncio.get_running_loop().call_soon(admission.refuse, ask, error)
            async with Lease(admission, ask, 60.0) as lease:
                if when == "before it waits":
                    admission.refuse(ask, error)
                with pytest.raises(GatewayError) as refused:
                    await lease.granted(0.0 if "limit" in when else 60.0)
        assert refused.value is error
        assert (admission.waiting, engine.in_flight) == ([], 0)

    @pytest.mark.parametrize(("timeout", "within"), [(60.0, 0.0), (0.0, 60.0)])
    async def test_a_place_that_comes_in_the_moment_in_which_the_wait_ends_is_taken(
        self, timeout: float, within: float
    ) -> None:
        admission, engine = _admission(), Engine("a")
        async with Lease(admission, _ask(engine), 60.0) as first, Lease(admission, _ask(engine), timeout) as second:
            asyncio.get_running_loop().call_soon(admission.leave, first.ask)
            assert await second.granted(within)

    async def test_it_takes_no_place_if_it_needs_none(self) -> None:
        admission, engine = _admission(), Engine("a")
        engine.in_flight = 1
        async with Lease(admission, _ask(engine), 60.0, placeless=True) as lease:
            assert await lease.granted(0)
            assert (lease.place.engine, engine.in_flight) == (engine, 1)
        assert engine.in_flight == 1

    async def test_a_place_that_is_lost_is_waited_for_again(self) -> None:
        admission, engine = _admission(), Engine("a")
        lost: list[str] = []
        async with Lease(admission, _ask(engine, "low"), 60.0) as low:
            low.ask.preempt = lambda: lost.append("low")
            assert (await low.granted(0), low.waited) == (True, False)
            async with Lease(admission, _ask(engine, "high"), 60.0) as high:
                assert await high.granted(0)
                assert (lost, low.waited, await low.granted(0.001)) == (["low"], True, False)
            assert await low.granted(60.0)
            assert engine.in_flight == 1
        assert engine.in_flight == 0


def _admission(limit: int = 1000) -> Admission[Place]:
    return Admission(limit, asyncio.get_running_loop().time, 1)


def _ask(engine: Engine, priority: str = "normal") -> Ask[Place]:
    return Ask(tiers_of(engine), least_loaded, priority=priority)


async def _wait(lease: Lease[Place], step: float) -> None:
    async with lease:
        while not await lease.granted(step):
            pass
