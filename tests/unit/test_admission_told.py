"""What those are told that wait or may not: their position, their wait, and when to come back."""

import itertools
from collections.abc import Callable

import pytest

from gateway.admission import CLASSES, Ask, QueueFull
from gateway.policy.facts import ENDLESS
from tests.support.places import Engine, Queue, least_loaded, tiers_of


class TestWhatIsTold:
    def test_the_position_is_the_turn_and_not_the_arrival(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine)
        came = [queue.ask(engine, key=key, priority=priority) for key, priority in _MIXED]
        told = sorted(came, key=queue.admission.position)
        assert [queue.admission.position(ask) for ask in told] == list(range(1, len(came) + 1))
        assert queue.drain([running], came) == told
        assert queue.admission.position(running) == 0

    def test_those_that_wait_for_other_engines_are_not_counted(self) -> None:
        queue, first, second = Queue(), Engine("a"), Engine("b")
        for engine in (first, second):
            queue.ask(engine)
            queue.ask(engine)
        last, both = queue.ask(first), queue.ask([first, second])
        assert [queue.admission.position(ask) for ask in (last, both)] == [2, 4]
        assert [queue.admission.queued_for(tier) for tier in tiers_of(first, second, [first, second])] == [3, 2, 4]

    @pytest.mark.parametrize(
        ("capacities", "services", "ahead", "seconds"),
        [
            ([1], [2.0], 0, 2.0),
            ([1], [2.0], 3, 8.0),
            ([4], [2.0], 3, 2.0),
            ([1, 1], [2.0, 2.0], 3, 4.0),  # two that are as fast serve twice as many
            ([1, 1], [1.0, 100.0], 9, 10.0 / 1.01),  # a slow one is of little help
            ([2, 2], [4.0, 4.0], 0, 1.0),
        ],
    )
    def test_the_wait_is_that_until_those_before_it_are_served(
        self, capacities: list[int], services: list[float], ahead: int, seconds: float
    ) -> None:
        queue = Queue()
        engines = [Engine(f"{at}", *terms) for at, terms in enumerate(zip(capacities, services, strict=True))]
        for _ in range(sum(capacities) + ahead):
            queue.ask(engines)
        assert queue.admission.expected_wait(queue.ask(engines)) == pytest.approx(seconds)

    def test_those_before_it_that_may_go_elsewhere_count_by_the_part_that_will_not(self) -> None:
        queue, slow, fast = Queue(), Engine("slow", service=9.0), Engine("fast", service=1.0)
        queue.ask(slow)
        queue.ask(fast)
        for _ in range(10):
            queue.ask([slow, fast])
        assert queue.admission.expected_wait(queue.ask(slow)) == pytest.approx(9.0 * (1 + 10 * 0.1))

    def test_the_keys_of_others_go_in_between(self) -> None:
        queue, engine = Queue(), Engine("a")
        queue.ask(engine)
        for _ in range(10):
            queue.ask(engine, key="many")
        one, two = queue.ask(engine, key="few"), queue.ask(engine, key="few")
        assert [queue.admission.position(ask) for ask in (one, two)] == [2, 4]
        assert queue.admission.expected_wait(two) == 8.0

    def test_one_that_has_not_come_yet_can_be_told_too(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine)
        queue.ask(engine)
        newcomer = Ask(tiers_of(engine), least_loaded)
        assert (queue.admission.expected_wait(newcomer), queue.admission.position(newcomer)) == (4.0, 0)
        assert queue.admission.expected_wait(running) == 0.0
        assert len(queue.admission.waiting) == 1

    def test_no_wait_is_told_where_no_engine_is_ready(self) -> None:
        queue, engine = Queue(), Engine("a")
        queue.ask(engine)
        waiting = queue.ask(engine)
        engine.ready = False
        assert queue.admission.expected_wait(waiting) == ENDLESS

    @pytest.mark.parametrize(
        ("limit", "capacity", "service", "seconds"),
        [(0, 1, 7.0, 7.0), (3, 1, 7.0, 28.0), (3, 2, 7.0, 14.0), (1, 4, 0.1, 1.0), (100, 1, 60.0, 600.0)],
    )
    def test_one_that_is_refused_is_told_when_those_that_wait_now_are_served(
        self, limit: int, capacity: int, service: float, seconds: float
    ) -> None:
        queue, engine = Queue(limit), Engine("a", capacity, service)
        for _ in range(capacity + limit):
            queue.ask(engine)
        with pytest.raises(QueueFull) as refused:
            queue.ask(engine, priority="high")
        assert refused.value.retry_after == pytest.approx(seconds)

    def test_one_that_comes_back_when_it_was_told_to_finds_room(self) -> None:
        queue, engine = Queue(limit=5), Engine("a", service=3.0)
        asks = [queue.ask(engine) for _ in range(6)]
        with pytest.raises(QueueFull) as refused:
            queue.ask(engine)
        for ask, end in zip(asks, itertools.count(3, 3), strict=False):
            queue.now = end
            queue.admission.leave(ask)
        assert refused.value.retry_after == queue.now
        assert queue.ask(engine).granted


_MIXED = [
    *[("a", "normal")] * 4,
    *[("b", "low")] * 2,
    *[("c", "normal")] * 3,
    ("a", "high"),
    ("d", "normal"),
    *[("b", "normal")] * 2,
]


class TestCost:
    """That many wait for many engines is no reason to look at each engine for each of them."""

    def test_engines_are_looked_at_a_bounded_number_of_times(self) -> None:
        queue, engines = Queue(), [Engine(f"{at}") for at in range(60)]
        tiers = engines[:30], engines[30:]
        running = [queue.ask(*tiers, spill=1.0) for _ in engines]
        for at in range(300):
            queue.ask(*tiers, key=f"{at % 50}", priority=list(CLASSES)[at % 3], spill=5.0)
        assert len(queue.admission.waiting) == 300

        def looks(action: Callable[[], object]) -> float:
            for engine in engines:
                engine.looks = 0
            action()
            return sum(engine.looks for engine in engines) / len(engines)

        assert looks(queue.admission.tick) <= 15
        assert looks(lambda: queue.admission.leave(running[0])) <= 5
        assert looks(lambda: queue.ask(*tiers, spill=5.0)) <= 15
        assert looks(lambda: queue.admission.expected_wait(queue.admission.waiting[150])) <= 10
