"""A canary gets its share until it does badly, and none from then on."""

import pytest

from gateway.config import policy as schema
from gateway.policy.canary import Canary, Outcome

GOOD = Outcome(failed=False, ttft=0.5)
FAILED = Outcome(failed=True)
TIERS = ("old", "new", "spare")


def canary(share: float = 0.05, *, seed: int = 1, **back: float) -> Canary:
    return Canary(schema.Canary(tier="new", share=share, back=schema.Back(**back)), seed)  # type: ignore[arg-type]


def drawn(one: Canary, tiers: tuple[str, ...] = TIERS, requests: int = 10_000) -> int:
    """How many of so many requests go to the canary first."""
    return sum(one.order(tiers)[0] == "new" for _ in range(requests))


class TestShare:
    @pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
    def test_it_gets_its_share(self, share: float) -> None:
        assert drawn(canary(share)) == pytest.approx(10_000 * share, rel=0.15)

    def test_the_same_seed_draws_the_same(self) -> None:
        one, other, third = canary(seed=7), canary(seed=7), canary(seed=8)
        lots = [[each.order(TIERS)[0] for _ in range(1000)] for each in (one, other, third)]
        assert lots[0] == lots[1] != lots[2]

    def test_all_of_it(self) -> None:
        assert drawn(canary(1.0)) == 10_000

    def test_who_does_not_draw_it_never_spills_there_and_who_does_has_the_others_to_fall_back_on(self) -> None:
        one = canary(0.5)
        assert {one.order(TIERS) for _ in range(100)} == {("new", "old", "spare"), ("old", "spare")}

    @pytest.mark.parametrize("tiers", [(), ("old",), ("old", "spare"), ("new",)])
    def test_a_rule_that_leaves_no_choice_has_its_way(self, tiers: tuple[str, ...]) -> None:
        one = canary(0.5)
        assert {one.order(tiers) for _ in range(100)} == {tiers}


class TestTheWayBack:
    def test_nothing_is_concluded_from_a_few(self) -> None:
        one = canary(least=20)
        assert [one.learn(FAILED) for _ in range(20)] == [False] * 19 + [True]

    def test_it_ends_with_the_failure_that_is_one_too_many(self) -> None:
        one = canary(errors=0.1, least=20, window=100)
        outcomes = [GOOD] * 45 + [FAILED] * 5
        assert not any(one.learn(outcome) for outcome in outcomes)  # 5 of 50 are 10 %, and no more
        assert one.learn(FAILED)
        assert one.ended == "6 of its latest 51 requests failed, more than 10% (`back.errors`)"

    def test_failures_of_long_ago_are_forgotten(self) -> None:
        one = canary(errors=0.1, least=20, window=50)
        outcomes = [*([GOOD] * 45 + [FAILED] * 5) * 10]  # 5 of any 50
        assert not any(one.learn(outcome) for outcome in outcomes)

    def test_it_ends_when_it_is_slow(self) -> None:
        one = canary(ttft=3.0, least=20)
        slow, fast = Outcome(failed=False, ttft=4.0), Outcome(failed=False, ttft=1.0)
        assert [one.learn(slow if at % 2 else fast) for at in range(40)] == [False] * 40  # the median is 2.5 s
        assert one.learn(slow)
        assert one.ended == "the median time to first token of its latest 41 was 4.00 s, more than 3 s (`back.ttft`)"

    def test_a_few_times_say_nothing_though_many_requests_came(self) -> None:
        one = canary(ttft=3.0, least=20)
        unknown = Outcome(failed=False)
        slow = Outcome(failed=False, ttft=60.0)
        assert not any(one.learn(outcome) for outcome in [*[unknown] * 50, *[slow] * 19])
        assert one.learn(slow)

    def test_slowness_does_not_matter_unless_it_is_said(self) -> None:
        one = canary()
        assert not any(one.learn(Outcome(failed=False, ttft=600.0)) for _ in range(200))

    def test_more_may_be_asked_for_than_the_window_has(self) -> None:
        one = canary(least=30, window=10)
        assert [one.learn(FAILED) for _ in range(30)] == [False] * 29 + [True]


class TestAfterwards:
    def test_it_gets_nothing_more_whatever_comes(self) -> None:
        one = canary(0.5, least=1)
        assert one.learn(FAILED)
        why = one.ended
        assert not any(one.learn(GOOD) for _ in range(1000))
        assert one.ended == why
        assert drawn(one) == 0

    def test_a_rule_that_names_it_alone_still_has_its_way(self) -> None:
        one = canary(0.5, least=1)
        one.learn(FAILED)
        assert one.order(("new",)) == ("new",)

    def test_it_goes_on_until_its_section_changes(self) -> None:
        one = canary(least=1)
        assert one.goes_on_as(schema.Canary(tier="new", share=0.05, back=schema.Back(least=1)))
        assert not one.goes_on_as(schema.Canary(tier="new", share=0.06, back=schema.Back(least=1)))
        assert not one.goes_on_as(None)
