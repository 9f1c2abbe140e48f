"""The choice among engines: a pure function of their numbers."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.choose import least_loaded


@dataclass(frozen=True)
class Candidate:
    load: float
    last_used: int = 0


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([Candidate(0.0)], 0),
        ([Candidate(1.0), Candidate(0.5), Candidate(0.75)], 1),
        ([Candidate(0.5, last_used=1), Candidate(0.0, last_used=9)], 1),  # load comes first
        ([Candidate(0.5, last_used=9), Candidate(0.5, last_used=4), Candidate(0.5, last_used=7)], 1),
        ([Candidate(0.0), Candidate(0.0)], 0),  # never used, in the order of the config
        ([Candidate(2.5, last_used=3), Candidate(2.0, last_used=4)], 1),  # also when all are full
    ],
)
def test_the_least_loaded_and_of_equals_the_one_unused_for_longest(candidates: list[Candidate], chosen: int) -> None:
    assert least_loaded(candidates) is candidates[chosen]


def test_of_none_there_is_none() -> None:
    assert least_loaded([]) is None


def test_it_takes_any_iterable_once() -> None:
    assert least_loaded(Candidate(load) for load in (3.0, 1.0, 2.0)) == Candidate(1.0)


CANDIDATES = st.lists(st.builds(Candidate, st.floats(0, 8), st.integers(0, 9)), min_size=1)


@given(CANDIDATES)
def test_nobody_is_less_loaded_than_the_chosen_one(candidates: list[Candidate]) -> None:
    chosen = least_loaded(candidates)
    assert chosen in candidates
    assert not any((other.load, other.last_used) < (chosen.load, chosen.last_used) for other in candidates)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 60))
def test_requests_that_stay_are_shared_out_by_capacity(capacities: list[int], requests: int) -> None:
    """No engine could hand one of its requests to another and both be better off."""
    running = [0] * len(capacities)
    used = [0] * len(capacities)
    for number in range(1, requests + 1):
        numbered = [Candidate(running[i] / capacity, used[i]) for i, capacity in enumerate(capacities)]
        chosen = least_loaded(numbered)
        assert chosen is not None
        at = next(i for i, candidate in enumerate(numbered) if candidate is chosen)
        running[at] += 1
        used[at] = number
    loads = [count / capacity for count, capacity in zip(running, capacities, strict=True)]
    for count, capacity in zip(running, capacities, strict=True):
        assert (count - 1) / capacity <= min(loads)
