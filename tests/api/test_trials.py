"""A canary gets a share of the traffic until it does badly; a shadow gets copies, and nobody sees its answers."""

import logging
from collections import Counter
from typing import Any

import anyio
import pytest

from tests.support.answers import OK, error_of
from tests.support.client import Reply, post_json
from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.messages import ASK, MESSAGES, read_message
from tests.support.sse import DONE, FIN, ROLE, T, json_reply, sse_reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

CANARY = """
models:
  chat:
    tiers: {old: old, new: new}
    rules:
      - {name: testers, when: 'header("x-canary") == "new"', route: [new]}
    canary: {tier: new, share: %s, back: {errors: 0.5, least: 4}}
"""
SHADOW = """
models:
  chat:
    tiers: {old: old, new: new}
    shadow: {tier: new, share: %s}
"""
BROKEN = json_reply({"error": {"message": "no"}}, 500)
STREAM = sse_reply(ROLE, T("hi"), FIN("stop"), DONE)


def engines(old: ScriptedEngine, new: ScriptedEngine, **fields: Any) -> dict[str, dict[str, Any]]:
    return {"old": engine_config(old.url, **fields), "new": engine_config(new.url, concurrency=1, **fields)}


async def chat(sluice: RunningGateway, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return await post_json(sluice.port, CHAT, REQ | {"model": "chat"} | fields, headers or {})


def tiers(replies: list[Reply]) -> Counter[str | None]:
    return Counter(reply.headers.get("x-sluice-tier") for reply in replies)


class TestCanary:
    async def test_it_gets_about_its_share(self) -> None:
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine([OK]) as new,
            gateway(engines=engines(old, new), policy=CANARY % 0.5) as sluice,
        ):
            seen = tiers([await chat(sluice) for _ in range(60)])
        assert set(seen) == {"old", "new"}
        assert 10 <= seen["new"] <= 50

    async def test_others_do_not_use_it_even_when_the_old_one_is_busy(self) -> None:
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine([OK]) as new,
            gateway(engines=engines(old, new), policy=CANARY % 0.000001) as sluice,
        ):
            seen = tiers([await chat(sluice) for _ in range(10)])
        assert seen == {"old": 10}

    async def test_a_rule_that_names_it_alone_means_it(self) -> None:
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine([OK]) as new,
            gateway(engines=engines(old, new), policy=CANARY % 0.000001) as sluice,
        ):
            reply = await chat(sluice, {"X-Canary": "new"})
        assert (reply.headers.get("x-sluice-tier"), reply.headers.get("x-sluice-rule")) == ("new", "testers")

    async def test_it_gets_no_more_once_it_fails_too_often(self, caplog: pytest.LogCaptureFixture) -> None:
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine([BROKEN]) as new,
            gateway(engines=engines(old, new), policy=CANARY % 1) as sluice,
        ):
            with caplog.at_level(logging.WARNING, "sluice.policy"):
                statuses = [(await chat(sluice)).status for _ in range(10)]
        assert statuses == [500] * 4 + [200] * 6
        assert caplog.messages == [
            "model chat: the canary `new` gets no more traffic: "
            "4 of its latest 4 requests failed, more than 50% (`back.errors`)"
        ]

    async def test_mistakes_of_clients_are_not_its_fault(self) -> None:
        refused = json_reply({"error": {"message": "bad temperature", "type": "invalid_request_error"}}, 400)
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine([refused]) as new,
            gateway(engines=engines(old, new), policy=CANARY % 1) as sluice,
        ):
            statuses = [(await chat(sluice)).status for _ in range(8)]
        assert statuses == [400] * 8


class TestShadow:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_it_gets_a_copy_and_the_client_the_answer_of_the_other(self, stream: bool) -> None:
        answer = STREAM if stream else OK
        async with (
            ScriptedEngine([answer]) as old,
            ScriptedEngine([answer]) as new,
            gateway(engines=engines(old, new), policy=SHADOW % 1) as sluice,
        ):
            reply = await chat(sluice, {"X-Request-Id": "one"}, stream=stream)
            records = [await sluice.record(at) for at in (0, 1)]
        assert (reply.status, reply.headers.get("x-sluice-tier")) == (200, "old")
        assert [engine.requests[0].json()["messages"] for engine in (old, new)] == [REQ["messages"]] * 2
        by_event = {record["event"]: record for record in records}
        assert set(by_event) == {"request", "copy"}
        assert {record["request_id"] for record in records} == {"one"}
        assert (by_event["copy"]["engine"], by_event["copy"]["outcome"]) == ("new", "ok")
        assert "ttft" in by_event["copy"]
        assert "decision" in by_event["request"]
        assert "decision" not in by_event["copy"]  # it is no request that a replay could count

    async def test_only_its_share(self) -> None:
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine([OK]) as new,
            gateway(engines=engines(old, new), policy=SHADOW % 0.000001) as sluice,
        ):
            for _ in range(5):
                await chat(sluice)
            await anyio.sleep(0.1)
        assert (len(old.requests), len(new.requests)) == (5, 0)

    async def test_requests_themselves_do_not_go_there(self) -> None:
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine([OK]) as new,
            gateway(engines=engines(old, new, models=["m"]), policy=SHADOW % 0.000001) as sluice,
        ):
            seen = tiers([await chat(sluice) for _ in range(5)])
        assert seen == {"old": 5}

    @pytest.mark.parametrize("new_script", [[BROKEN], [Step.RESET], [b"nonsense\r\n\r\n", Step.FIN]])
    async def test_its_failures_are_nobodys_but_its_own(self, new_script: Any) -> None:
        async with (
            ScriptedEngine([OK]) as old,
            ScriptedEngine(new_script) as new,
            gateway(engines=engines(old, new), policy=SHADOW % 1) as sluice,
        ):
            reply = await chat(sluice)
            records = [await sluice.record(at) for at in (0, 1)]
        assert reply.status == 200
        outcomes = {record["event"]: record["outcome"] for record in records}
        assert outcomes["request"] == "ok"
        assert outcomes["copy"] != "ok"

    async def test_a_silent_one_holds_nobody_up_and_has_its_limits(self) -> None:
        async with ScriptedEngine([OK]) as old, ScriptedEngine([Step.HANG]) as new:
            silent = engines(old, new, timeouts={"first_byte": 0.3})
            async with gateway(engines=silent, policy=SHADOW % 1) as sluice:
                reply = await chat(sluice)
                assert reply.status == 200
                assert [record["event"] for record in sluice.records()] in ([], ["request"])
                copy = await sluice.record(1)
                await new.gone(1)
        assert (copy["event"], copy["outcome"]) == ("copy", "engine_timeout")

    async def test_it_ends_with_the_gateway(self) -> None:
        async with ScriptedEngine([OK]) as old, ScriptedEngine([Step.HANG]) as new:
            running = gateway(engines=engines(old, new), policy=SHADOW % 1)
            async with running as sluice:
                await chat(sluice)
                await eventually(lambda: len(new.requests) == 1)
            await new.gone(1)

    async def test_it_gets_what_another_dialect_asks(self) -> None:
        async with (
            ScriptedEngine([STREAM]) as old,
            ScriptedEngine([STREAM]) as new,
            gateway(engines=engines(old, new), policy=SHADOW % 1) as sluice,
        ):
            reply = await post_json(sluice.port, MESSAGES, ASK | {"model": "chat", "stream": True})
            await eventually(lambda: len(new.requests) == 1)
        assert read_message(reply.body).text == "hi"
        assert old.requests[0].json() == new.requests[0].json()


class TestLimitsOfATarget:
    POLICY = """
models:
  quick:
    tiers: {box: [{engine: box, model: m, timeouts: {first_byte: 0.2}}]}
  slow:
    tiers: {box: [{engine: box, model: m}]}
"""

    async def test_they_take_the_place_of_its_engines(self) -> None:
        async with (
            ScriptedEngine([0.5, OK]) as box,
            gateway(engines={"box": engine_config(box.url)}, policy=self.POLICY) as sluice,
        ):
            quick = await post_json(sluice.port, CHAT, REQ | {"model": "quick"})
            slow = await post_json(sluice.port, CHAT, REQ | {"model": "slow"})
        assert (quick.status, error_of(quick)["code"]) == (504, "engine_timeout")
        assert error_of(quick)["message"] == "Engine `box` sent nothing for 0.2 s."
        assert slow.status == 200
