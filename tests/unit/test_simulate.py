"""Simulations: the gateway's own policy and queue in virtual time, on engines whose speed is known."""

from collections import Counter

import pytest

from gateway.simulate.report import summarize
from gateway.simulate.run import Outcome
from tests.support.simulation import ONE, TIERS, TWO, burst, codes, engines, play, workload


class TestTimes:
    def test_requests_at_once_are_served_one_after_the_other(self) -> None:
        result = play(ONE, workload(burst(3) + engines(box="slots: 1")))
        seen = [(one.waited, one.ttft, one.total) for one in result.outcomes]
        assert seen == [pytest.approx(times) for times in ((0, 1, 2), (2, 3, 4), (4, 5, 6))]
        assert result.seconds == 100
        assert result.engines["box"].used == pytest.approx(6 / 100)

    def test_an_answer_in_one_piece_comes_at_its_end(self) -> None:
        (one,) = play(ONE, workload(burst(1) + engines(box=""), stream=False)).outcomes
        assert (one.ttft, one.total) == (pytest.approx(2), pytest.approx(2))

    def test_where_the_gateway_does_not_know_the_slots_requests_wait_inside_the_engine(self) -> None:
        config = ONE.replace("llamacpp", "vllm")
        result = play(config, workload(burst(3) + engines(box="slots: 1")))
        assert [(one.waited, one.total) for one in result.outcomes] == [(0, pytest.approx(end)) for end in (2, 4, 6)]

    def test_the_end_is_that_of_the_last_answer(self) -> None:
        assert play(ONE, workload(burst(3, at=4) + engines(box=""), duration=5)).seconds == pytest.approx(10)

    def test_a_cold_model_costs_its_load_and_the_gateway_learns_that(self) -> None:
        config = "engines: {box: {kind: ollama, url: http://h, models: [m]}}"
        result = play(config, workload(burst(2) + engines(box="load: 5, cold: true")))
        assert [one.ttft for one in result.outcomes] == [pytest.approx(6), pytest.approx(8)]
        assert result.engines["box"].loads == 1

    def test_a_shared_beginning_is_computed_once(self) -> None:
        result = play(ONE, workload(burst(2) + engines(box="cache: 500"), prefix={"tokens": 300}))
        assert [(one.prompt, one.cached) for one in result.outcomes] == [(400, 0), (400, 300)]
        assert [one.total for one in result.outcomes] == [pytest.approx(5), pytest.approx(7)]


class TestPolicy:
    def test_an_overload_spills_and_comes_back(self) -> None:
        """One request in five seconds is what the first tier can do; a burst in the middle is not."""
        load = workload(burst(30, at=500) + engines(small="", large="slots: 4"), rate=0.2, duration=1000, model="chat")
        outcomes = play(TWO, load, TIERS).outcomes
        before = [one for one in outcomes if one.at < 500]
        meanwhile = [one for one in outcomes if 500 <= one.at < 530]
        after = [one for one in outcomes if one.at > 600]
        assert all(one.answered for one in outcomes)
        assert _spilled(before) < 0.1 > _spilled(after)
        assert len(before) > 50 < len(after)
        assert _spilled(meanwhile) > 0.5

    def test_without_a_spill_that_is_reached_all_wait_for_the_first_tier(self) -> None:
        load = workload(burst(20) + engines(small="", large=""), model="chat")
        result = play(TWO, load, TIERS.replace("spill: 2", "spill: 1000"))
        assert {one.engine for one in result.outcomes} == {"small"}
        assert result.seconds == pytest.approx(100)

    def test_rules_see_the_request(self) -> None:
        policy = """
models:
  chat:
    tiers: {first: small, second: large}
    rules:
      - {when: prompt_tokens > 99 && header("x-team") == "batch" && dialect == "ollama", route: [second]}
"""
        fields = {"headers": {"X-Team": "batch"}, "dialect": "ollama"}
        load = workload(burst(1) + engines(small="", large=""), model="chat", **fields)
        assert [one.tier for one in play(TWO, load, policy).outcomes] == ["second"]

    @pytest.mark.parametrize(("hour", "engine"), [(21, "small"), (23, "large"), (0, "large")])
    def test_the_hour_is_that_of_the_workload(self, hour: int, engine: str) -> None:
        policy = (
            "models: {chat: {tiers: {first: small, second: large}, "
            "rules: [{when: hour >= 22 || hour < 6, route: [second]}]}}"
        )
        load = workload(f"  hour: {hour}\n{burst(1)}{engines(small='', large='')}", model="chat")
        assert [one.engine for one in play(TWO, load, policy).outcomes] == [engine]

    def test_time_goes_on_while_it_is_simulated(self) -> None:
        policy = "models: {chat: {tiers: {first: small, second: large}, rules: [{when: hour == 1, route: [second]}]}}"
        load = workload(f"  hour: 23\n{burst(1, at=7300)}{engines(small='', large='')}", duration=8000, model="chat")
        assert [one.engine for one in play(TWO, load, policy).outcomes] == ["large"]

    def test_an_answer_is_as_long_as_the_client_and_the_policy_let_it_be(self) -> None:
        policy = "models: {chat: {tiers: {first: small}, rules: [{when: stream, cap: {max_tokens: 6}}]}}"
        lengths = []
        for fields in ({}, {"max_tokens": 3}, {"max_tokens": 9}, {"stream": False}, {"stream": False, "max_tokens": 9}):
            (one,) = play(TWO, workload(burst(1) + engines(small=""), model="chat", **fields), policy).outcomes
            lengths.append(one.output)
        assert lengths == [6, 3, 6, 11, 9]

    def test_a_score_learns_which_engine_is_faster(self) -> None:
        policy = "models: {chat: {tiers: {all: [small, large]}, score: SCORE}}"
        speeds = "engines:\n  small: {prefill: 100}\n  large: {prefill: 1000}\n"
        load = workload(speeds, rate=0.1, duration=5000, model="chat")
        shares = {}
        for score in ("predicted_ttft", "round_robin"):
            placed = Counter(one.engine for one in play(TWO, load, policy.replace("SCORE", score)).outcomes)
            shares[score] = placed["large"] / placed.total()
        assert shares["predicted_ttft"] > 0.9
        assert 0.4 < shares["round_robin"] < 0.6

    def test_a_model_in_memory_goes_before_one_that_is_not(self) -> None:
        config = """
engines:
  a: {kind: ollama, url: http://a, models: [m], concurrency: 1}
  b: {kind: ollama, url: http://b, models: [m], concurrency: 1}
"""
        policy = "models: {chat: {tiers: {all: [a, b]}}}"
        for cold, warm in ("ab", "ba"):
            load = workload(burst(4, over=80) + engines(**{cold: "cold: true, load: 30", warm: ""}), model="chat")
            assert {one.engine for one in play(config, load, policy).outcomes} == {warm}


class TestTrials:
    CANARY = "models: {chat: {tiers: {usual: small, new: large}, canary: {tier: new, share: 0.5, back: BACK}}}"

    @pytest.mark.parametrize(("limit", "most"), [(1.5, 1000), (0.5, 20)])
    def test_a_canary_gets_its_share_until_it_is_too_slow(self, limit: float, most: int) -> None:
        """The first token comes after a second, or later where others are read at the same time."""
        policy = self.CANARY.replace("BACK", f"{{ttft: {limit}, least: 20}}")
        load = workload(engines(small="slots: 9", large="slots: 9"), rate=0.1, duration=4000, model="chat")
        outcomes = play(TWO, load, policy).outcomes
        tried = [one for one in outcomes if one.tier == "new"]
        assert len(tried) == (most if most == 20 else pytest.approx(len(outcomes) / 2, rel=0.2))

    def test_copies_for_a_shadow_are_work_that_no_client_sees(self) -> None:
        policy = "models: {chat: {tiers: {usual: small, new: large}, shadow: {tier: new, share: 1}}}"
        result = play(TWO, workload(burst(5, over=50) + engines(small="", large=""), model="chat"), policy)
        assert [one.engine for one in result.outcomes] == ["small"] * 5
        assert {name: work.output for name, work in result.engines.items()} == {"small": 55, "large": 55}


class TestRefusals:
    def test_a_full_queue_and_a_long_wait(self) -> None:
        """Of ten at once one is served, four wait of whom one is served in time, and five are told when to return."""
        config = f"{ONE}queue: {{limit: 4, timeout: 3}}"
        result = play(config, workload(burst(10) + engines(box="")))
        assert codes(result) == {"ok": 2, "queue_timeout": 3, "queue_full": 5}
        refused = [one for one in result.outcomes if not one.answered]
        assert {(one.code, one.status) for one in refused} == {("queue_full", 429), ("queue_timeout", 503)}
        assert all(one.retry_after is not None and one.retry_after >= 1 for one in refused)
        assert [one.waited for one in refused if one.status == 503] == [pytest.approx(3)] * 3

    @pytest.mark.parametrize(
        ("rule", "code", "status", "total", "output"),
        [
            ("reject: No.", "rejected_by_policy", 403, 0, 0),
            ("deadline: 0.5", "deadline_passed", 504, 0.5, 0),
            ("deadline: 0.5, on_deadline: cut", "deadline_passed", 504, 0.5, 0),
            ("deadline: 1.55", "deadline_passed", 504, 1.55, 0),
            ("deadline: 1.55, on_deadline: cut", "cut", 200, 1.55, 6),
            ("deadline: 3", "ok", 200, 2, 11),
        ],
    )
    def test_a_rule_ends_it(self, rule: str, code: str, status: int, total: float, output: int) -> None:
        policy = f"models: {{chat: {{tiers: {{all: small}}, rules: [{{{rule}}}]}}}}"
        (one,) = play(TWO, workload(burst(1) + engines(small=""), model="chat"), policy).outcomes
        assert (one.code, one.status, one.output) == (code, status, output)
        assert one.total == pytest.approx(total)

    def test_a_deadline_passes_in_the_queue_too_and_the_place_is_for_others(self) -> None:
        policy = "models: {chat: {tiers: {all: small}, rules: [{deadline: 3}]}}"
        result = play(TWO, workload(burst(3) + engines(small=""), model="chat"), policy)
        assert sorted(codes(result).items()) == [("deadline_passed", 2), ("ok", 1)]
        assert result.engines["small"].used == pytest.approx(3 / 100)

    def test_a_prompt_that_fits_nowhere_goes_elsewhere(self) -> None:
        load = workload(burst(1) + engines(small="context: 50", large="context: 500"), model="chat")
        assert [one.engine for one in play(TWO, load, TIERS).outcomes] == ["large"]


def test_figures_of_a_report() -> None:
    result = play(ONE, workload(burst(4) + engines(box="slots: 1"), keys=["a"]))
    report = summarize(result)
    (chat,) = report.requests.values()
    assert chat == report.total == report.engines["box"].requests == report.keys["a"].requests
    assert chat.waited is not None
    assert (chat.waited.p50, chat.waited.p95, chat.waited.p99) == tuple(map(pytest.approx, (2, 6, 6)))
    assert chat.tokens_per_second == pytest.approx(44 / 100)
    assert report.engines["box"].prefill_per_second == pytest.approx(400 / 100)
    assert [(tier.model, tier.tier, tier.share) for tier in report.tiers] == [("m", "all", 1)]
    assert (report.spilled, report.fairness, report.contested, report.keys["a"].share) == (0, None, 0, None)


def test_an_engine_is_full_when_it_has_all_that_the_gateway_gives_it() -> None:
    config = ONE.replace("models: [m]", "models: [m], concurrency: 2")
    (box,) = summarize(play(config, workload(burst(100) + engines(box="slots: 8")))).engines.values()
    assert (box.slots, box.places) == (8, 2)
    assert box.used == pytest.approx(1)


def _spilled(outcomes: list[Outcome]) -> float:
    return sum(one.tier == "second" for one in outcomes) / len(outcomes)
