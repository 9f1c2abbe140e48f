"""Pinned models: the engine has exactly the model that the config names, or takes no requests."""

import pytest

from gateway.config.schema import Pin
from gateway.engines.base import EngineModel
from gateway.engines.identity import broken_pin, describe

MODEL = EngineModel("m", context=4096, digest="sha256:765525e6017ab6ad", quantization="Q4_1", version="b1234")


@pytest.mark.parametrize(
    "pin",
    [
        Pin(),
        Pin(digest="sha256:765525e6017ab6ad"),
        Pin(digest="765525e6"),
        Pin(quantization="Q4_1", version="b1234", context=4096),
    ],
)
def test_a_model_that_is_as_pinned_may_be_used(pin: Pin) -> None:
    assert broken_pin({"m": pin}, [EngineModel("other"), MODEL]) is None


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        (Pin(digest="765525e7"), "the digest of m is pinned to 765525e7, and the engine has sha256:765525e6017ab6ad"),
        (Pin(digest="017ab6ad"), "the digest of m is pinned to 017ab6ad, and the engine has sha256:765525e6017ab6ad"),
        (Pin(quantization="Q8_0"), "the quantization of m is pinned to Q8_0, and the engine has Q4_1"),
        (Pin(version="b1235"), "the version of m is pinned to b1235, and the engine has b1234"),
        (Pin(context=8192), "the context of m is pinned to 8192, and the engine has 4096"),
    ],
)
def test_a_model_that_is_another_is_told_apart(pin: Pin, reason: str) -> None:
    assert broken_pin({"m": pin}, [MODEL]) == reason


def test_what_an_engine_does_not_tell_is_not_taken_for_granted() -> None:
    reason = broken_pin({"m": Pin(digest="765525e6")}, [EngineModel("m")])
    assert reason == "the digest of m is pinned to 765525e6, and the engine does not tell it"


def test_a_pinned_model_that_is_gone_breaks_the_pin() -> None:
    assert broken_pin({"m": Pin()}, [EngineModel("n")]) == "it does not have the model m, which is pinned"


def test_a_description_holds_what_is_known() -> None:
    assert describe(MODEL) == "digest=sha256:765525e6017ab6ad; version=b1234; quantization=Q4_1; context=4096"
    assert describe(EngineModel("m", version="1.0")) == "version=1.0"
    assert describe(EngineModel("m")) == ""
