"""Engines that fail: a client gets one clear error, or what came of its answer and an error; and then all is well."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from gateway.upstream import relay
from tests.failures.faults import AFTER_OUTPUT, BEFORE_OUTPUT, CLOSE, MAX_REPLY, Break, Fault
from tests.support.answers import ANSWER, error_of
from tests.support.backlog import full_backlog
from tests.support.client import Reply, post_json
from tests.support.engine import Script, ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.leases import in_flight
from tests.support.sse import (
    DONE,
    FIN,
    ROLE,
    SSE_HEAD,
    T,
    chunk,
    failed,
    finish_reasons,
    joined,
    json_reply,
    read_events,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

LIMIT = 0.3
"""Seconds of the limit that a fault runs into. All others are far away."""
LIMITS = ("first_byte", "ttft", "idle", "total")


@dataclass
class Bench:
    """An engine, and a gateway that knows it as `m` with the usual limits, and once more for each limit, by its name.

    Probes leave no connection behind that a request could find, so that each one begins with a fresh one.
    """

    engine: ScriptedEngine
    sluice: RunningGateway
    asked: int = 0

    async def ask(self, script: Script, limit: str | None, *, stream: bool) -> Reply:
        self.engine.requests.clear()
        self.engine.script = script
        self.asked += 1
        return await post_json(self.sluice.port, CHAT, REQ | {"model": limit or "m", "stream": stream})

    async def check_aftermath(self, outcome: str, limit: str | None = None) -> None:
        """It is in the log, cost one request, and left neither a connection nor a lease; the next one is answered."""
        record = await self.sluice.record(self.asked - 1)
        assert record["outcome"] == outcome
        assert (LIMIT if limit else 0) <= record["duration"] < 10
        (request,) = self.engine.requests
        async with asyncio.timeout(2):
            await request.connection.wait_closed()
        await eventually(lambda: in_flight(self.sluice) == {})
        after = await self.ask([json_reply(ANSWER, 200, CLOSE)], limit, stream=False)
        assert (after.status, after.json()) == (200, ANSWER)


@pytest.fixture(scope="module")
async def bench() -> AsyncIterator[Bench]:
    models = json_reply({"object": "list", "data": [{"id": "m"}]}, 200, CLOSE)
    async with ScriptedEngine(probes={"/v1/models": models}) as engine:
        engines = {"m": engine_config(engine.url)}
        engines |= {name: engine_config(engine.url, models=[name], timeouts={name: LIMIT}) for name in LIMITS}
        async with gateway(engines=engines, server={"max_reply_bytes": MAX_REPLY}) as sluice:
            yield Bench(engine, sluice)


CASES = [
    pytest.param(fault, stream, id=f"{name}-{'stream' if stream else 'whole'}")
    for name, fault in BEFORE_OUTPUT.items()
    for stream, script in ((True, fault.stream), (False, fault.whole))
    if script is not None
]


@pytest.mark.parametrize(("fault", "stream"), CASES)
async def test_before_any_output_it_is_an_error_with_a_status(bench: Bench, fault: Fault, stream: bool) -> None:
    got = await bench.ask((fault.stream if stream else fault.whole) or [], fault.limit, stream=stream)
    error = error_of(got)
    assert (got.status, error["code"]) == (fault.status, fault.code)
    assert len(got.body) < 2000
    assert b"<" not in got.body
    assert got.headers.get("x-sluice-engine") == (fault.limit or "m")
    await bench.check_aftermath(fault.code, fault.limit)


@pytest.mark.parametrize("case", AFTER_OUTPUT.values(), ids=AFTER_OUTPUT)
async def test_after_output_it_is_an_error_event_and_no_end_mark(bench: Bench, case: Break) -> None:
    output = ROLE + T("one ") + T("two")
    got = await bench.ask([SSE_HEAD, chunk(output), 0.05, *case.steps], case.limit, stream=True)
    assert (got.status, got.complete, got.error) == (200, True, None)
    assert got.body.startswith(output)
    assert joined(got.body) == "one two"
    assert finish_reasons(got.body) == []
    assert failed(got.body)
    error = read_events(got.body)[-1].error or {}
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == case.code
    assert error["message"] == "boom" if case.code == "engine_error" else "ngine `" in error["message"]
    await bench.check_aftermath(case.code, case.limit)


@pytest.mark.parametrize("end", [Step.FIN, Step.RESET])
async def test_after_the_finish_nothing_can_break_any_more(bench: Bench, end: Step) -> None:
    answer = ROLE + T("one ") + T("two") + FIN("stop")
    got = await bench.ask([SSE_HEAD, chunk(answer), 0.05, end], None, stream=True)
    assert got.body == answer + DONE
    await bench.check_aftermath("ok")


async def test_silence_after_the_finish_is_no_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_FAREWELL_TIME", 0.2)
    answer = ROLE + T("one ") + T("two") + FIN("stop")
    got = await bench.ask([SSE_HEAD, chunk(answer), Step.HANG], None, stream=True)
    assert got.body == answer + DONE
    await bench.check_aftermath("ok")


SUSPICIOUS: dict[str, tuple[Script, str | None]] = {
    "a reset": ([Step.RESET], None),
    "a stream that breaks off": ([SSE_HEAD, chunk(T("a")), 0.05, Step.RESET], None),
    "silence": ([Step.HANG], "first_byte"),
    "silence inside a stream": ([SSE_HEAD, chunk(T("a")), Step.HANG], "idle"),
}


@pytest.mark.parametrize(("script", "limit"), SUSPICIOUS.values(), ids=SUSPICIOUS)
async def test_an_engine_that_breaks_off_is_looked_at_at_once(bench: Bench, script: Script, limit: str | None) -> None:
    await eventually(lambda: len(bench.engine.probes) > len(LIMITS))
    before = len(bench.engine.probes)
    await bench.ask(script, limit, stream=True)
    await eventually(lambda: len(bench.engine.probes) > before)


async def test_slow_is_not_silent(bench: Bench) -> None:
    """What comes again and again within the limit between pieces may take longer than it in all."""
    pieces = [T("a")] * 8 + [FIN("stop")]
    steps = [step for piece in pieces for step in (chunk(piece), LIMIT / 4)]
    got = await bench.ask([SSE_HEAD, *steps, Step.FIN], "idle", stream=True)
    assert got.body == b"".join(pieces) + DONE
    await bench.check_aftermath("ok", "idle")


async def test_comments_may_precede_an_answer_for_as_long_as_its_first_token_may_take(bench: Bench) -> None:
    comments = [step for _ in range(20) for step in (chunk(b":\n\n"), LIMIT / 10)]
    got = await bench.ask([SSE_HEAD, *comments, chunk(T("a") + FIN("stop")), Step.FIN], "idle", stream=True)
    assert got.body == 20 * b":\n\n" + T("a") + FIN("stop") + DONE
    await bench.check_aftermath("ok", "idle")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_engine_that_takes_no_more_connections(stream: bool) -> None:
    async with ScriptedEngine() as engine, gateway(engine.url, timeouts={"connect": LIMIT}) as sluice:
        await engine.__aexit__(None, None, None)
        with full_backlog(engine.port):
            got = await post_json(sluice.port, CHAT, REQ | {"stream": stream})
            assert (got.status, error_of(got)["code"]) == (504, "engine_timeout")
            assert (await sluice.record())["duration"] >= LIMIT
            assert in_flight(sluice) == {}


async def test_an_engine_that_goes_away_and_comes_back() -> None:
    async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
        await engine.__aexit__(None, None, None)
        asked = [await post_json(sluice.port, CHAT, REQ | {"stream": stream}) for stream in (True, False)]
        assert [error_of(got)["code"] for got in asked] == ["engine_unreachable", "no_engine_available"]
        assert [got.status for got in asked] == [502, 503]
        assert asked[1].headers.get("retry-after") == "2"
        assert in_flight(sluice) == {}
        async with ScriptedEngine([json_reply(ANSWER)], port=engine.port), asyncio.timeout(10):
            while (await post_json(sluice.port, CHAT, REQ)).status != 200:
                await asyncio.sleep(0.05)
