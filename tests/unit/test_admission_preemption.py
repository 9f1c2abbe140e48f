"""A request takes the place of one of a lower class that has sent nothing yet."""

import pytest

from gateway.admission import TICK
from tests.support.places import Engine, Queue, engine_of


class TestPreemption:
    def test_a_higher_class_takes_the_place_of_a_lower_one_that_has_sent_nothing(self) -> None:
        queue, engine = Queue(), Engine("a")
        low = queue.runs(engine, priority="low")
        high = queue.ask(engine, priority="high")
        assert (engine_of(high), high.waited) == (engine, False)
        assert (low.granted, low.waited, queue.lost) == (None, True, [low])
        assert (queue.admission.waiting, engine.in_flight) == ([low], 1)
        queue.admission.leave(high)
        assert engine_of(low) is engine

    @pytest.mark.parametrize(
        ("holder", "comer", "taken"),
        [
            ("low", "high", True),
            ("low", "normal", True),
            ("normal", "high", True),
            ("low", "low", False),
            ("normal", "normal", False),
            ("high", "normal", False),
            ("normal", "low", False),
        ],
    )
    def test_only_a_lower_class_loses_its_place(self, holder: str, comer: str, taken: bool) -> None:
        queue, engine = Queue(), Engine("a")
        running, waiting = queue.runs(engine, priority=holder), queue.ask(engine, priority=comer)
        assert (running.granted is None, waiting.granted is not None) == (taken, taken)

    def test_one_that_has_sent_something_keeps_its_place(self) -> None:
        queue, engine = Queue(), Engine("a")
        low = queue.runs(engine, priority="low")
        low.preempt = None
        assert queue.ask(engine, priority="high").granted is None

    def test_no_place_is_taken_while_one_is_free(self) -> None:
        queue, first, second = Queue(), Engine("a"), Engine("b")
        queue.runs(first, priority="low")
        assert engine_of(queue.ask([first, second], priority="high")) is second
        assert engine_of(queue.ask(first, priority="high")) is first
        assert len(queue.lost) == 1

    def test_the_lowest_class_loses_it_and_of_these_the_one_that_had_it_last(self) -> None:
        queue, engine = Queue(), Engine("a", 4)
        asks = [queue.runs(engine, priority=priority) for priority in ("low", "low", "normal", "high")]
        for _ in range(4):
            queue.ask(engine, priority="high")
        assert queue.lost == [asks[1], asks[0], asks[2]]

    def test_only_places_that_the_higher_one_may_use_are_taken(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        elsewhere = queue.runs(large, priority="low")
        queue.ask(small)
        waiting = queue.ask(small, large, priority="high", spill=5.0)
        assert (waiting.granted, elsewhere.granted is not None) == (None, True)
        small.rates.service = 20.0
        queue.wait(TICK)
        assert (engine_of(waiting), elsewhere.granted) == (large, None)

    def test_one_that_may_lose_its_place_later_loses_it_then(self) -> None:
        queue, engine = Queue(), Engine("a")
        low = queue.ask(engine, priority="low")
        high = queue.ask(engine, priority="high")
        low.preempt = lambda: queue.lost.append(low)
        queue.wait(TICK)
        assert (engine_of(high), queue.lost) == (engine, [low])

    def test_the_older_of_those_that_wait_has_it(self) -> None:
        queue, engine = Queue(), Engine("a")
        low = queue.ask(engine, priority="low")
        older = queue.ask(engine, priority="high")
        low.preempt = lambda: queue.lost.append(low)
        newcomer = queue.ask(engine, priority="high")
        assert (engine_of(older), newcomer.granted) == (engine, None)

    def test_its_arrival_is_kept_so_that_it_goes_before_those_that_came_later(self) -> None:
        queue, engine = Queue(), Engine("a")
        first = queue.runs(engine, priority="low")
        second = queue.ask(engine, priority="low")
        high = queue.ask(engine, priority="high")
        assert queue.admission.waiting == [first, second]
        assert queue.drain([high], [first, second]) == [first, second]

    def test_it_waits_however_full_the_queue_is(self) -> None:
        queue, engine = Queue(limit=1), Engine("a")
        low = queue.runs(engine, priority="low")
        queue.ask(engine, priority="low")
        assert queue.ask(engine, priority="high").granted
        assert len(queue.admission.waiting) == 2
        assert low in queue.admission.waiting

    def test_it_is_sure_to_keep_its_second_place(self) -> None:
        queue, engine = Queue(), Engine("a")
        low = queue.runs(engine, priority="low")
        queue.admission.leave(queue.ask(engine, priority="high"))
        assert low.granted
        low.preempt = lambda: queue.lost.append(low)
        assert queue.ask(engine, priority="high").granted is None
        assert queue.lost == [low]

    def test_it_goes_elsewhere_at_once_if_it_may(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        low = queue.runs(small, large, priority="low", spill=1.0)
        queue.ask(small, priority="high")
        assert (engine_of(low), low.preempted) == (large, 1)

    def test_its_key_is_not_charged_for_the_place_that_it_lost(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine, priority="high")
        came = [queue.ask(engine, priority="low", key=key) for key in ("a", "b", "a", "b")]
        queue.admission.leave(running)
        came[0].preempt = lambda: queue.lost.append(came[0])
        high = queue.ask(engine, priority="high")
        assert queue.lost == came[:1]
        assert queue.drain([high], came) == came

    @pytest.mark.parametrize("trouble", ["down", "over its capacity"])
    def test_nobody_loses_a_place_of_which_nobody_has_any_use(self, trouble: str) -> None:
        queue, engine = Queue(), Engine("a", 2)
        queue.runs(engine, priority="low")
        queue.runs(engine, priority="low")
        if trouble == "down":
            engine.ready = False
        else:
            engine.capacity = 1
        queue.ask(engine, priority="high")
        queue.wait(TICK)
        assert (queue.lost, engine.in_flight) == ([], 2)

    def test_one_that_lost_its_place_and_leaves_leaves_no_trace(self) -> None:
        queue, engine = Queue(), Engine("a")
        low = queue.runs(engine, priority="low")
        high = queue.ask(engine, priority="high")
        queue.admission.leave(low)
        queue.admission.leave(high)
        assert (queue.admission.waiting, engine.in_flight) == ([], 0)

    def test_the_time_until_it_gives_up_begins_anew(self) -> None:
        queue, engine = Queue(), Engine("a")
        low = queue.runs(engine, priority="low")
        queue.now = 100.0
        queue.ask(engine, priority="high")
        queue.now = 103.0
        assert (queue.admission.waited(low), low.arrived) == (3.0, 0.0)
