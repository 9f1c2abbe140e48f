"""The queue in front of engines: whose turn it is, who waits for what, and what those are told that wait."""

import itertools
from collections.abc import Sequence

import pytest

from gateway.admission import CLASSES, PATIENCE, TICK, Ask, QueueFull
from gateway.admission.shares import PASSES, Group
from gateway.errors import GatewayError, NoEngine
from tests.support.places import Engine, Queue, engine_of, least_loaded, tiers_of


class TestPlaces:
    def test_a_request_that_finds_a_free_place_has_it_at_once(self) -> None:
        queue, engine = Queue(), Engine("a", 2)
        first, second, third = (queue.ask(engine) for _ in range(3))
        assert (engine_of(first), engine_of(second), third.granted) == (engine, engine, None)
        assert [ask.waited for ask in (first, second, third)] == [False, False, True]

    def test_the_score_chooses_among_the_free_ones_of_the_first_tier_that_has_any(self) -> None:
        queue, busy, idle, other = Queue(), Engine("a", 4), Engine("b", 4), Engine("c", 4)
        busy.in_flight = 2
        assert engine_of(queue.ask([busy, idle], other)) is idle

    def test_an_engine_without_a_bound_takes_all(self) -> None:
        queue, engine = Queue(), Engine("a", None)
        assert all(queue.ask(engine).granted for _ in range(100))

    def test_a_place_that_is_given_back_goes_to_the_one_that_waits(self) -> None:
        queue, engine = Queue(), Engine("a")
        woken: list[str] = []
        first, second = queue.ask(engine), queue.ask(engine)
        second.wake = lambda: woken.append("second")
        queue.admission.leave(first)
        assert (engine_of(second), engine.in_flight, woken) == (engine, 1, ["second"])
        assert queue.admission.waiting == []

    def test_to_leave_twice_gives_one_place_back(self) -> None:
        queue, engine = Queue(), Engine("a", 2)
        first, _ = queue.ask(engine), queue.ask(engine)
        queue.admission.leave(first)
        queue.admission.leave(first)
        assert engine.in_flight == 1

    def test_one_that_waits_and_leaves_is_passed_over(self) -> None:
        queue, engine = Queue(), Engine("a")
        first, second, third = (queue.ask(engine) for _ in range(3))
        queue.admission.leave(second)
        queue.admission.leave(first)
        assert (second.granted, engine_of(third)) == (None, engine)

    @pytest.mark.parametrize("change", ["is ready again", "runs more at once", "has no bound any more"])
    def test_a_place_that_appears_is_handed_out_at_the_next_tick(self, change: str) -> None:
        queue, engine = Queue(), Engine("a")
        running, waiting = queue.ask(engine), queue.ask(engine)
        if change == "is ready again":
            engine.ready = False
            queue.admission.leave(running)
            assert waiting.granted is None
            engine.ready = True
        else:
            engine.capacity = 2 if change == "runs more at once" else None
        queue.wait(TICK)
        assert engine_of(waiting) is engine

    def test_a_newcomer_does_not_take_a_place_that_has_appeared_from_one_that_waits(self) -> None:
        queue, engine = Queue(), Engine("a")
        queue.ask(engine)
        older = queue.ask(engine)
        engine.capacity = 2
        newcomer = queue.ask(engine)
        assert (engine_of(older), newcomer.granted) == (engine, None)

    def test_an_engine_that_runs_less_at_once_gets_none_until_it_has_less(self) -> None:
        queue, engine = Queue(), Engine("a", 3)
        running = [queue.ask(engine) for _ in range(3)]
        waiting = queue.ask(engine)
        engine.capacity = 1
        for ask in running[:2]:
            queue.admission.leave(ask)
            assert waiting.granted is None
        queue.admission.leave(running[2])
        assert engine_of(waiting) is engine

    def test_a_dead_engine_does_not_hold_what_another_could_serve(self) -> None:
        queue, dead, alive = Queue(), Engine("a"), Engine("b")
        dead.ready = False
        running = queue.ask(alive)
        for_dead = queue.ask(dead)
        for_both = queue.ask([dead, alive])
        queue.admission.leave(running)
        assert (for_dead.granted, engine_of(for_both)) == (None, alive)

    def test_a_request_that_takes_no_place_goes_to_any_that_is_ready(self) -> None:
        queue, down, full = Queue(), Engine("a"), Engine("b")
        down.ready, full.in_flight = False, 1
        assert queue.admission.any_ready(Ask(tiers_of(down, full), least_loaded)).engine is full


class TestOrder:
    def test_the_higher_class_goes_first_and_inside_a_class_the_older(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine)
        came = [queue.ask(engine, priority=priority) for priority in ("low", "normal", "high", "low", "high", "normal")]
        order = queue.drain([running], came)
        assert [came.index(ask) for ask in order] == [2, 4, 1, 5, 0, 3]

    def test_keys_take_turns_however_many_requests_each_has(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine, key="many")
        came = [queue.ask(engine, key=key) for key in ["many"] * 6 + ["few"] * 2 + ["one"]]
        order = [ask.key for ask in queue.drain([running], came)]
        assert order == ["many", "few", "one", "many", "few", "many", "many", "many", "many"]

    def test_a_key_with_long_requests_has_fewer_of_them(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine)
        came = [queue.ask(engine, key="long", cost=3000) for _ in range(4)]
        came += [queue.ask(engine, key="short", cost=1000) for _ in range(12)]
        order = [ask.key for ask in queue.drain([running], came)]
        for turns in (4, 8, 12, 16):
            assert order[:turns].count("long") == turns // 4

    def test_one_that_comes_later_has_no_claim_on_the_time_before(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine)
        early = [queue.ask(engine, key="early") for _ in range(20)]
        order = queue.drain([running], early[:10])
        late = [queue.ask(engine, key="late") for _ in range(10)]
        order = queue.drain(order[-1:], early[10:] + late)
        assert [ask.key for ask in order[:6]].count("late") == 3

    def test_one_that_had_much_while_nobody_else_waited_does_not_pay_for_it(self) -> None:
        queue, engine = Queue(), Engine("a")
        for _ in range(20):
            queue.admission.leave(queue.ask(engine, key="before"))
        running = queue.ask(engine)
        came = [queue.ask(engine, key=key) for key in ("before", "new")]
        assert queue.drain([running], came) == came

    def test_what_a_key_has_of_one_engine_does_not_count_at_another(self) -> None:
        queue, fast, slow = Queue(), Engine("fast"), Engine("slow")
        at_fast, at_slow = queue.ask(fast), queue.ask(slow)
        queue.drain([at_fast], [queue.ask(fast, key="a") for _ in range(10)])
        came = [queue.ask(slow, key=key) for key in ("b", "b", "a")]
        assert [ask.key for ask in queue.drain([at_slow], came)] == ["b", "a", "b"]

    def test_what_a_key_has_of_an_engine_counts_whichever_tiers_its_requests_have(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        at_small, _ = queue.ask(small), queue.ask(large)
        came = [queue.ask(small, key="a"), queue.ask([small, large], key="a"), queue.ask(small, key="a")]
        came += [queue.ask([small, large], key="b"), queue.ask(small, key="b")]
        order = [ask.key for ask in queue.drain([at_small], came)]
        assert [order[:2], order[2:4]] == [["a", "b"], ["a", "b"]]

    def test_what_was_asked_for_and_not_had_does_not_count(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine)
        for _ in range(10):
            queue.admission.leave(queue.ask(engine, key="gives up"))
        came = [queue.ask(engine, key=key) for key in ("gives up", "stays", "gives up", "stays")]
        assert queue.drain([running], came) == came

    @pytest.mark.parametrize(
        ("patient", "others"), [("low", ["normal"]), ("normal", ["high"]), ("low", ["high", "normal"])]
    )
    def test_a_lower_class_is_not_passed_over_for_ever(self, patient: str, others: Sequence[str]) -> None:
        queue, engine = Queue(), Engine("a")
        running, low = queue.ask(engine), queue.ask(engine, priority=patient)
        places = 0
        for priority in itertools.cycle(others):
            following = queue.ask(engine, priority=priority)
            queue.admission.leave(running)
            places += 1
            if low.granted:
                break
            running = following
        assert places == PASSES + 1

    def test_that_does_not_let_many_of_a_low_class_hold_up_a_high_one(self) -> None:
        queue, engine = Queue(), Engine("a")
        running = queue.ask(engine)
        came = [queue.ask(engine, priority=priority) for priority in ["low"] * 100 + ["normal"] * 100]
        order = [ask.priority for ask in queue.drain([running], came)]
        assert order[: PASSES * 5 + 5].count(CLASSES["low"]) == 5

    def test_groups_remember_a_bounded_number_of_keys(self) -> None:
        group = Group(frozenset({"a"}))
        group.charge(1, "hog", 1e9)
        for number in range(10_000):
            group.charge(1, f"key {number}", 1.0)
        assert group.lag(1, "hog") > 1e8
        assert sum(group.lag(1, f"key {number}") > 0 for number in range(10_000)) < 2000

    def test_nothing_is_remembered_of_engines_that_nobody_waits_for(self) -> None:
        queue = Queue()
        for number in range(50):
            engine = Engine(f"engine {number}")
            running = queue.ask(engine)
            waiting = queue.ask(engine)
            queue.admission.leave(running)
            queue.admission.leave(waiting)
        assert not queue.admission._groups


class TestLimit:
    def test_one_more_than_may_wait_is_refused_and_leaves_no_trace(self) -> None:
        queue, engine = Queue(limit=2), Engine("a")
        asks = [queue.ask(engine) for _ in range(3)]
        with pytest.raises(QueueFull) as refused:
            queue.ask(engine)
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        assert queue.admission.waiting == asks[1:]
        assert engine.in_flight == 1

    def test_none_may_wait_where_the_limit_is_zero(self) -> None:
        queue, engine = Queue(limit=0), Engine("a")
        assert queue.ask(engine).granted
        with pytest.raises(QueueFull):
            queue.ask(engine)

    def test_those_that_wait_for_other_engines_do_not_count(self) -> None:
        queue, slow, other = Queue(limit=1), Engine("slow"), Engine("other")
        for _ in range(2):
            queue.ask(slow)
        queue.ask(other)
        queue.ask(other)
        assert len(queue.admission.waiting) == 2
        with pytest.raises(QueueFull):
            queue.ask([slow, other])

    def test_a_full_queue_does_not_refuse_what_need_not_wait(self) -> None:
        queue, small, large = Queue(limit=1), Engine("small"), Engine("large")
        queue.ask(small)
        queue.ask(small)
        assert engine_of(queue.ask(small, large, spill=0.5)) is large


class TestSpill:
    @pytest.mark.parametrize(
        ("spill", "service", "opens"), [(3.0, 2.0, False), (2.0, 2.0, False), (1.9, 2.0, True), (0.0, 0.1, True)]
    )
    def test_the_next_tier_is_used_if_the_wait_would_be_longer(self, spill: float, service: float, opens: bool) -> None:
        queue, small, large = Queue(), Engine("small", service=service), Engine("large")
        queue.ask(small)
        assert engine_of(queue.ask(small, large, spill=spill)) is (large if opens else None)

    def test_no_place_of_the_next_tier_is_taken_while_the_first_has_one(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        assert engine_of(queue.ask(small, large, spill=0.0)) is small

    def test_those_that_are_served_before_count_and_those_served_after_do_not(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        queue.ask(small, priority="low")
        for _ in range(3):
            queue.ask(small, priority="normal")
        assert queue.ask(small, large, spill=5.0, priority="high").granted is None
        assert engine_of(queue.ask(small, large, spill=5.0, priority="low")) is large

    def test_it_opens_while_a_request_waits_and_the_prediction_grows(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        queue.ask(small)
        waiting = queue.ask(small, large, spill=3.0)
        assert (waiting.granted, waiting.open) == (None, 1)
        small.rates.service = 10.0
        queue.wait(TICK)
        assert engine_of(waiting) is large

    def test_it_closes_when_the_wait_is_short_again(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        running = [queue.ask(small), queue.ask(large)]
        waiting = queue.ask(small, large, spill=1.0)
        assert waiting.open == 2
        small.rates.service = 0.5
        queue.wait(TICK)
        assert waiting.open == 1
        queue.admission.leave(running[1])
        assert waiting.granted is None
        queue.admission.leave(running[0])
        assert engine_of(waiting) is small

    def test_only_as_many_overflow_as_would_wait_too_long(self) -> None:
        queue, small, large = Queue(), Engine("small", service=2.0), Engine("large", 10)
        queue.ask(small)
        asks = [queue.ask(small, large, spill=6.0) for _ in range(5)]
        assert [engine_of(ask) for ask in asks] == [None, None, None, large, large]

    def test_a_tier_that_is_down_is_not_waited_for_while_another_is_up(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        small.ready = False
        assert engine_of(queue.ask(small, large)) is large

    def test_all_tiers_open_one_after_the_other(self) -> None:
        queue, engines = Queue(), [Engine(name) for name in "abc"]
        granted = [engine_of(queue.ask(*engines, spill=0.5)) for _ in range(4)]
        assert granted == [*engines, None]

    def test_what_a_key_had_goes_with_it_when_further_tiers_open(self) -> None:
        queue, small, large = Queue(), Engine("small"), Engine("large")
        running = [queue.ask(small), queue.ask(large)]
        came = [queue.ask(small, large, key="a", spill=60.0) for _ in range(4)]
        queue.drain(running[:1], came[:2])
        small.rates.service = 1000.0
        queue.wait(TICK)
        late = queue.ask(small, large, key="b", spill=60.0)
        assert [ask.open for ask in (*came[2:], late)] == [2, 2, 2]
        queue.admission.leave(running[1])
        assert engine_of(late) is large


class TestPlansThatChange:
    def test_a_request_goes_where_its_new_plan_says(self) -> None:
        queue, old, new = Queue(), Engine("old"), Engine("new")
        queue.ask(old)
        waiting = queue.ask(old)
        waiting.tiers = tiers_of(new)
        queue.admission.tick()
        assert engine_of(waiting) is new

    def test_its_class_counts_from_then_on(self) -> None:
        queue, engine = Queue(), Engine("a")
        running, first, second = (queue.ask(engine) for _ in range(3))
        first.priority = CLASSES["low"]
        queue.admission.tick()
        assert queue.drain([running], [first, second]) == [second, first]

    def test_an_engine_that_is_another_under_the_same_name_is_waited_for_in_its_place(self) -> None:
        queue, old, new = Queue(), Engine("a"), Engine("a")
        running, waiting = queue.ask(old), queue.ask(old)
        old.ready = False
        waiting.tiers = tiers_of(new)
        queue.admission.tick()
        queue.admission.leave(running)
        assert (engine_of(waiting), old.in_flight, new.in_flight) == (new, 0, 1)

    def test_one_that_is_refused_waits_no_longer(self) -> None:
        queue, engine = Queue(), Engine("a")
        running, waiting = queue.ask(engine), queue.ask(engine)
        error = GatewayError("The config has changed.")
        queue.admission.refuse(waiting, error)
        queue.admission.leave(running)
        assert (waiting.refused, waiting.granted, engine.in_flight) == (error, None, 0)
        queue.admission.refuse(running, error)
        assert running.refused is None


class TestNoEngine:
    def test_a_request_none_of_whose_engines_is_ready_waits_a_little_and_is_refused(self) -> None:
        queue, first, second = Queue(), Engine("a"), Engine("b")
        first.ready = second.ready = False
        waiting = queue.ask(first, second, spill=1.0)
        queue.wait(TICK)
        queue.wait(PATIENCE - TICK)
        assert waiting.refused is None
        queue.wait(TICK)
        assert isinstance(waiting.refused, NoEngine)
        assert (waiting.refused.status, waiting.refused.code) == (503, "no_engine_available")
        assert waiting.refused.retry_after
        assert not queue.admission.waiting

    def test_one_whose_engine_comes_back_in_time_has_it(self) -> None:
        queue, engine = Queue(), Engine("a")
        running, waiting = queue.ask(engine), queue.ask(engine)
        engine.ready = False
        queue.admission.leave(running)
        queue.wait(TICK)
        queue.wait(PATIENCE - TICK)
        engine.ready = True
        queue.wait(TICK)
        assert engine_of(waiting) is engine

    def test_engines_that_come_and_go_are_waited_for(self) -> None:
        queue, engine = Queue(), Engine("a")
        queue.ask(engine)
        waiting = queue.ask(engine)
        for ready in (False, True) * 5:
            engine.ready = ready
            queue.wait(PATIENCE - TICK)
        assert waiting.refused is None

    def test_one_that_may_come_to_use_an_engine_that_is_up_waits_for_it(self) -> None:
        queue, down, up = Queue(), Engine("a"), Engine("b")
        down.ready = False
        queue.ask(up)
        waiting = queue.ask(down, up, spill=1.0)
        for _ in range(3):
            queue.wait(PATIENCE)
        assert waiting.refused is None

    def test_the_words_may_be_the_callers(self) -> None:
        queue, engine = Queue(), Engine("a")
        engine.ready = False
        error = GatewayError("Nobody at home.")
        queue.admission.none_ready = lambda _: error
        waiting = queue.ask(engine)
        for _ in range(2):
            queue.wait(PATIENCE)
        assert waiting.refused is error
