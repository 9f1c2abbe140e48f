"""What must hold of any simulation, and of the queue that is in it: order, fairness, Erlang's formula, conservation."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.simulate.fairness import jain
from gateway.simulate.report import summarize
from gateway.simulate.run import Result
from tests.support.simulation import ONE, TIERS, TWO, burst, codes, engines, play, workload


def _decimals(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most).map(lambda number: round(number, 3))


def report(result: Result) -> bytes:
    return msgspec.json.encode(summarize(result))


class TestOrder:
    def test_a_high_class_goes_first(self) -> None:
        load = """
workload:
  duration: 100
  requests:
    slow: {model: m, class: low, prompt: 100, output: 11, keys: [a]}
    fast: {model: m, class: high, prompt: 100, output: 11, keys: [b]}
  bursts: [{at: 0, requests: 10, of: slow}, {at: 1, requests: 10, of: fast}]
"""
        outcomes = play(ONE, load + engines(box="")).outcomes
        served = sorted(outcomes, key=lambda one: one.at + one.waited)
        assert [one.kind for one in served] == ["slow"] + ["fast"] * 10 + ["slow"] * 9
        assert {one.priority for one in outcomes} == {"low", "high"}

    @pytest.mark.parametrize(
        ("stream", "at", "ends"),
        [
            (True, 0.5, {"slow": (2.5, 4.5), "fast": (0, 2)}),  # it was reading, and begins anew behind the other
            (True, 1.5, {"slow": (0, 2), "fast": (0.5, 2.5)}),  # its answer had begun
            (False, 1.5, {"slow": (3.5, 5.5), "fast": (0, 2)}),  # nothing of its answer had been sent
        ],
    )
    def test_one_of_a_lower_class_gives_up_its_place_before_its_answer_begins(
        self, stream: bool, at: float, ends: dict[str, tuple[float, float]]
    ) -> None:
        load = f"""
workload:
  duration: 100
  requests:
    slow: {{model: m, class: low, prompt: 100, output: 11, stream: {str(stream).lower()}}}
    fast: {{model: m, class: high, prompt: 100, output: 11}}
  bursts: [{{at: 0, requests: 1, of: slow}}, {{at: {at}, requests: 1, of: fast}}]
"""
        result = play(ONE, load + engines(box=""))
        seen = {one.kind: (one.waited, one.total) for one in result.outcomes}
        assert seen == {kind: tuple(map(pytest.approx, times)) for kind, times in ends.items()}
        assert sum(work.output for work in result.engines.values()) == 22

    def test_a_place_that_was_lost_counts_for_no_key(self) -> None:
        load = """
workload:
  duration: 100
  requests:
    mine: {model: m, class: low, prompt: 100, output: 11, keys: [a]}
    yours: {model: m, class: low, prompt: 100, output: 11, keys: [b]}
    fast: {model: m, class: high, prompt: 100, output: 11, keys: [c]}
  bursts:
    - {at: 0, requests: 1, of: mine}
    - {at: 0.1, requests: 1, of: mine}
    - {at: 0.2, requests: 1, of: yours}
    - {at: 2.5, requests: 1, of: fast}
"""
        result = play(ONE, load + engines(box=""))
        assert codes(result) == {"ok": 4}
        assert result.fairness.places == 1
        assert sum(result.fairness.share().values()) == pytest.approx(2)

    def test_the_class_of_a_key_is_that_of_the_config(self) -> None:
        keys = "server: {keys: [{name: vip, key: sk-vip-vip, class: high}, {name: any, key: sk-any-any}]}"
        load = workload(burst(40) + engines(box="slots: 40"), keys=["vip", "any"])
        outcomes = play(ONE + keys, load).outcomes
        assert {(one.key, one.priority) for one in outcomes} == {("vip", "high"), ("any", "normal")}

    def test_a_burst_of_200_clients_is_shared_fairly_by_key(self) -> None:
        """One of five keys comes first and with more than all others together: it gets a fifth while they wait."""
        load = """
workload:
  duration: 600
  seed: 7
  requests:
    many: {model: m, keys: [greedy], prompt: {median: 300, p95: 900}, output: {median: 60, p95: 200}}
    few: {model: m, keys: [a, b, c, d], prompt: {median: 300, p95: 900}, output: {median: 60, p95: 200}}
  bursts: [{at: 0, requests: 120, of: many}, {at: 0.5, requests: 80, over: 1, of: few}]
engines:
  box: {slots: 4, prefill: 1000, decode: 30, decode_full: 20}
"""
        result = play(f"{ONE}queue: {{limit: 185}}", load)
        report = summarize(result)
        assert len(result.outcomes) == 200
        assert codes(result)["queue_full"] == 200 - 4 - 185
        assert all(one.answered or one.retry_after for one in result.outcomes)
        assert report.fairness is not None
        assert report.fairness >= 0.95
        assert len(report.keys) == 5
        assert report.contested > 80
        assert all(key.share is not None and key.share > 0.7 for key in report.keys.values())
        last = {
            kind: max(one.at + one.waited for one in result.outcomes if one.kind == kind) for kind in ("few", "many")
        }
        assert last["few"] < last["many"]

    def test_fairness_is_not_taken_for_granted(self) -> None:
        assert jain([1, 1, 1, 1]) == 1
        assert jain([1, 0, 0, 0]) == 0.25
        assert jain([]) is None


class TestLaws:
    def test_the_same_seed_is_the_same_simulation(self) -> None:
        load = workload(engines(small="", large=""), rate=0.5, duration=500, model="chat", output={"mean": 20})
        one, same, other = (play(TWO, load.replace("rate:", f"seed: {seed}\n  rate:"), TIERS) for seed in (1, 1, 2))
        assert report(one) == report(same) != report(other)
        assert [msgspec.structs.asdict(a) for a in one.outcomes] == [msgspec.structs.asdict(b) for b in same.outcomes]

    @pytest.mark.parametrize(("slots", "busy"), [(1, 0.5), (5, 0.6)])
    def test_waiting_is_as_erlang_says(self, slots: int, busy: float) -> None:
        """Poisson arrivals and exponential service at `slots` places: M/M/c."""
        tokens, decode = 200, 2000.0
        service = (tokens - 1) / decode  # the first one comes with the prefill, which takes no time here
        arrivals = busy * slots / service
        load = workload(
            f"engines: {{box: {{slots: {slots}, prefill: 1e6, decode: {decode}, decode_full: {decode}}}}}\n",
            rate=round(arrivals, 6),
            duration=round(20_000 / arrivals),
            prompt=1,
            output={"mean": tokens},
        ).replace("rate:", "seed: 3\n  rate:")
        result = play(f"{ONE}queue: {{limit: 100000, timeout: 86400}}", load)
        waits = [one.waited for one in result.outcomes]
        assert codes(result).keys() == {"ok"}
        assert len(waits) == pytest.approx(20_000, rel=0.03)
        must_wait = _erlang_c(slots, busy * slots)
        assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(must_wait, rel=0.06)
        mean = must_wait * service / (slots * (1 - busy))
        assert sum(waits) / len(waits) == pytest.approx(mean, rel=0.12)
        assert result.engines["box"].used == pytest.approx(busy, rel=0.04)

    @settings(max_examples=25, deadline=None)
    @given(
        seed=st.integers(0, 10_000),
        rate=_decimals(0.1, 3),
        at_once=st.integers(1, 40),
        limit=st.integers(0, 20),
        deadline=_decimals(0.5, 30),
        spill=_decimals(0.1, 10),
        score=st.sampled_from(["predicted_ttft", "least_loaded", "round_robin", "weighted", "hash"]),
    )
    def test_every_request_ends_once_and_nothing_is_lost(
        self, seed: int, rate: float, at_once: int, limit: int, deadline: float, spill: float, score: str
    ) -> None:
        policy = (
            f"models: {{chat: {{tiers: {{first: small, second: [large, small]}}, spill: {spill}, score: {score}, "
            f"rules: [{{when: prompt_tokens > 100, deadline: {deadline}}}]}}}}"
        )
        load = workload(
            burst(at_once, at=20) + engines(small="", large="slots: 3, load: 2, cold: true"),
            rate=rate,
            duration=60,
            model="chat",
            prompt={"mean": 100},
            output={"median": 5, "p95": 30},
            keys=["a", "b", "c"],
        ).replace("rate:", f"seed: {seed}\n  rate:")
        result = play(f"{TWO}queue: {{limit: {limit}, timeout: 5}}", load, policy)
        figures = summarize(result)
        assert figures.total.requests == len(result.outcomes) >= at_once
        assert set(codes(result)) <= {"ok", "queue_full", "queue_timeout", "deadline_passed"}
        assert all(0 <= one.waited <= one.total + 1e-6 for one in result.outcomes)
        assert all(
            one.ttft is not None and one.waited < one.ttft <= one.total for one in result.outcomes if one.answered
        )
        assert sum(one.output for one in result.outcomes) == sum(work.output for work in result.engines.values())
        assert sum(key.requests.requests for key in figures.keys.values()) == len(result.outcomes)
        assert _slots_kept(result)


def _erlang_c(servers: int, load: float) -> float:
    """The share that must wait. Source: https://en.wikipedia.org/wiki/Erlang_(unit)#Erlang_C_formula."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**n / math.factorial(n) for n in range(servers)) + last)


def _slots_kept(result: Result) -> bool:
    """Whether no engine of the gateway ever had more requests than it has slots."""
    for name, work in result.engines.items():
        placed = [one for one in result.outcomes if one.engine == name]
        changes = sorted(
            [(one.at + one.total - 1e-9, -1) for one in placed] + [(one.at + one.waited, 1) for one in placed]
        )
        running = 0
        for _, change in changes:
            running += change
            if running > work.build.slots:
                return False
    return True
