"""A simulated engine: how long its jobs take, alone and beside others. All times are exact."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.simulate import virtual
from gateway.simulate.engine import Build, Job, SimulatedEngine
from gateway.simulate.engine import Pace as PaceOf

PACE = PaceOf(prefill=100, decode=10, decode_full=5, load=4)


def build(slots: int = 2, models: str = "m", **fields: object) -> Build:
    return Build(slots=slots, paces=dict.fromkeys(models, PACE))._replace(**fields)


def during(build: Build, main: Callable[[SimulatedEngine], Awaitable[None]]) -> SimulatedEngine:
    """An engine that was there while `main` ran."""

    async def run() -> SimulatedEngine:
        engine = SimulatedEngine(build)
        await main(engine)
        return engine

    return virtual.run(run)


async def serve(engine: SimulatedEngine, at: float, *job: str | int) -> Job:
    """A job of a model, tokens of a prompt and an answer, perhaps a prefix and its tokens, that comes at `at`."""
    await asyncio.sleep(at)
    made = Job(*job)  # type: ignore[arg-type]
    await engine.serve(made)
    return made


def times(build: Build, *coming: tuple[float, str, int, int]) -> list[tuple[float, float]]:
    """When each job had its first token and when it was done."""
    jobs: list[Job] = []

    async def main(engine: SimulatedEngine) -> None:
        jobs.extend(await asyncio.gather(*(serve(engine, *one) for one in coming)))

    during(build, main)
    assert all(job.first_token is not None and job.ended is not None for job in jobs)
    return [(pytest.approx(job.first_token), pytest.approx(job.ended)) for job in jobs]


class TestSpeed:
    def test_a_job_alone_has_its_prefill_and_then_a_token_at_a_time(self) -> None:
        assert times(build(), (1, "m", 200, 11)) == [(3, 4)]

    def test_an_answer_of_one_token_ends_with_it(self) -> None:
        assert times(build(), (0, "m", 100, 1)) == [(1, 1)]

    def test_prompts_at_the_same_time_share_the_prefill(self) -> None:
        assert times(build(), (0, "m", 100, 1), (0, "m", 100, 1)) == [(2, 2), (2, 2)]

    def test_answers_at_the_same_time_are_slower(self) -> None:
        # The first is alone for 1 s, then both are half as fast; when the first is done, the second is alone again.
        assert times(build(), (0, "m", 0, 21), (1, "m", 0, 21)) == [(0, 3), (1, 4)]

    @pytest.mark.parametrize(("beside", "seconds"), [(0, 1.0), (1, 1.5), (2, 2.0)])
    def test_in_between_the_time_of_a_token_grows_evenly(self, beside: int, seconds: float) -> None:
        others = [(0.0, "m", 0, 1000)] * beside
        assert times(build(slots=3), (0, "m", 0, 11), *others)[0] == (0, seconds)

    def test_a_job_for_which_there_is_no_slot_waits_inside_and_they_start_in_order(self) -> None:
        coming = [(at / 10, "m", 100, 1) for at in range(4)]
        assert [first for first, _ in times(build(slots=1), *coming)] == [1, 2, 3, 4]

    def test_a_job_that_is_cancelled_leaves_its_slot_and_its_speed_to_others(self) -> None:
        async def main(engine: SimulatedEngine) -> None:
            leaving = [asyncio.create_task(serve(engine, 0, "m", 400, 9)) for _ in range(2)]
            staying = asyncio.create_task(serve(engine, 0, "m", 200, 11))
            await asyncio.sleep(2)  # each has computed 100 tokens, and the third one waits
            for task in leaving:
                task.cancel()
            job = await staying
            assert (job.first_token, job.ended) == (pytest.approx(4), pytest.approx(5))

        engine = during(build(), main)
        assert engine.busy == pytest.approx(2 * 2 + 3)
        assert engine.output == 11

    def test_one_that_is_cancelled_while_it_waits_inside_is_forgotten(self) -> None:
        async def main(engine: SimulatedEngine) -> None:
            first = asyncio.create_task(serve(engine, 0, "m", 100, 1))
            second = asyncio.create_task(serve(engine, 0, "m", 100, 1))
            await asyncio.sleep(0.5)
            second.cancel()
            await first
            assert await serve(engine, 0, "m", 100, 1)
            assert asyncio.get_running_loop().time() == pytest.approx(2)

        during(build(slots=1), main)


class TestModels:
    def test_a_cold_one_is_loaded_first_and_once(self) -> None:
        cold = build(cold=True)
        assert times(cold, (0, "m", 100, 1), (2, "m", 100, 1), (9, "m", 100, 1)) == [(6, 6), (6, 6), (10, 10)]

    def test_another_one_takes_the_memory_of_that_used_longest_ago(self) -> None:
        async def main(engine: SimulatedEngine) -> None:
            assert engine.in_memory() == {"a", "b"}
            await serve(engine, 0, "a", 100, 1)
            await serve(engine, 0, "c", 100, 1)
            assert engine.in_memory() == {"a", "c"}

        assert during(build(models="abc", memory=2), main).loads == 1

    def test_it_is_not_there_while_it_is_on_its_way(self) -> None:
        async def main(engine: SimulatedEngine) -> None:
            loading = asyncio.create_task(serve(engine, 0, "m", 100, 1))
            await asyncio.sleep(3.9)
            assert engine.in_memory() == frozenset()
            await loading
            assert engine.in_memory() == {"m"}

        during(build(cold=True), main)

    def test_one_that_works_is_not_thrown_out(self) -> None:
        # The job for b waits until that for a is done, and so does the one behind it, which could have gone on.
        mixed = build(slots=3, models="ab", memory=1)
        waits = times(mixed, (0, "a", 100, 21), (0.5, "b", 100, 1), (0.6, "a", 100, 1))
        assert [first for first, _ in waits] == [1, 8, 13]

    def test_one_that_was_idle_for_long_is_gone(self) -> None:
        kept = build(keep_alive=10)
        assert times(kept, (0, "m", 100, 1), (10, "m", 100, 1), (21.5, "m", 100, 1)) == [(1, 1), (11, 11), (26.5, 26.5)]

    def test_each_may_have_a_speed_of_its_own(self) -> None:
        quick = PaceOf(prefill=1000, decode=100, decode_full=100, load=0)
        both = build(slots=1)._replace(paces={"m": PACE, "quick": quick})
        assert times(both, (0, "quick", 100, 11), (1, "m", 100, 11)) == [(0.1, 0.2), (2, 3)]


class TestPrefixes:
    def cached(self, build: Build, *jobs: tuple[str, str, int]) -> list[int]:
        """How much of each prompt was there, for jobs one after the other: a model, a prefix and its tokens."""
        found: list[int] = []

        async def main(engine: SimulatedEngine) -> None:
            for model, prefix, tokens in jobs:
                job = await serve(engine, 0, model, tokens + 10, 1, prefix, tokens)
                found.append(job.cached)

        during(build, main)
        return found

    def test_what_is_cached_is_not_computed(self) -> None:
        async def main(engine: SimulatedEngine) -> None:
            first = await serve(engine, 0, "m", 300, 1, "p", 200)
            second = await serve(engine, 0, "m", 300, 1, "p", 200)
            assert (first.ended, second.ended) == (pytest.approx(3), pytest.approx(4))

        engine = during(build(cache=1000), main)
        assert (engine.computed, engine.cached) == (400, 200)

    def test_that_used_longest_ago_makes_room(self) -> None:
        asked = [("m", prefix, 100) for prefix in "abacb"]
        assert self.cached(build(cache=200), *asked) == [0, 0, 100, 0, 0]
        assert self.cached(build(cache=300), *asked) == [0, 0, 100, 0, 100]

    def test_one_that_is_too_long_is_not_kept_and_throws_nothing_out(self) -> None:
        assert self.cached(build(cache=100), ("m", "a", 100), ("m", "b", 101), ("m", "b", 101), ("m", "a", 100)) == [
            0,
            0,
            0,
            100,
        ]

    def test_models_do_not_share_them(self) -> None:
        assert self.cached(build(models="ab", cache=1000), ("a", "p", 100), ("b", "p", 100)) == [0, 0]

    def test_they_go_with_their_model(self) -> None:
        asked = [(model, "p", 100) for model in "aba"]
        assert self.cached(build(models="ab", memory=1, cache=1000), *asked) == [0, 0, 0]


def test_time_that_nobody_waits_for_is_an_error_and_no_endless_loop() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(virtual.NothingHappens):
        virtual.run(main)
