"""Kept-alive connections that the engine closes: a request that finds one is not lost, and not sent again and again."""

import asyncio

import pytest

from tests.support.answers import ANSWER, error_of
from tests.support.client import post_json
from tests.support.engine import Script, ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, gateway
from tests.support.sse import DONE, FIN, ROLE, SSE_HEAD, T, chunk, json_reply, sse_reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

WHOLE = json_reply(ANSWER)
STREAMED = sse_reply(ROLE, T("a"), FIN("stop"), DONE)
answering = pytest.mark.parametrize(("stream", "answer"), [(False, WHOLE), (True, STREAMED)], ids=["whole", "stream"])


@answering
async def test_one_closed_while_idle_is_not_used(stream: bool, answer: bytes) -> None:
    async with ScriptedEngine([answer, 0.05, Step.FIN]) as engine, gateway(engine.url) as sluice:
        for number in range(3):
            assert (await post_json(sluice.port, CHAT, REQ | {"stream": stream})).status == 200
            await eventually(lambda: not any(connection.open for connection in engine.generating))
            assert (await sluice.record(number))["outcome"] == "ok"
        assert len(engine.requests) == 3
        assert len(engine.generating) == 3


@answering
@pytest.mark.parametrize("end", [Step.FIN, Step.RESET])
async def test_one_closed_as_the_request_is_written_is_replaced_unseen(stream: bool, answer: bytes, end: Step) -> None:
    async with ScriptedEngine([[answer], [end], [answer]]) as engine, gateway(engine.url) as sluice:
        for number in range(2):
            assert (await post_json(sluice.port, CHAT, REQ | {"stream": stream})).status == 200
            assert (await sluice.record(number))["outcome"] == "ok"
        first, second, third = engine.requests
        assert first.connection is second.connection
        assert second.connection is not third.connection
        assert second.body == third.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("end", [Step.FIN, Step.RESET])
async def test_a_request_is_replaced_but_once(stream: bool, end: Step) -> None:
    async with ScriptedEngine([[WHOLE], [end]]) as engine, gateway(engine.url) as sluice:
        assert (await post_json(sluice.port, CHAT, REQ)).status == 200
        lost = await post_json(sluice.port, CHAT, REQ | {"stream": stream})
        assert (lost.status, error_of(lost)["code"]) == (502, "engine_failed")
        assert len(engine.requests) == 3


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200", SSE_HEAD, SSE_HEAD + chunk(ROLE)], ids=["status", "head", "role"])
async def test_a_request_that_was_being_answered_is_not_sent_again(begun: bytes) -> None:
    script: list[Script] = [[STREAMED], [begun, 0.05, Step.RESET]]
    async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice:
        assert (await post_json(sluice.port, CHAT, REQ | {"stream": True})).status == 200
        lost = await post_json(sluice.port, CHAT, REQ | {"stream": True})
        assert (lost.status, error_of(lost)["code"]) == (502, "engine_failed")
        assert len(engine.requests) == 2


async def test_many_at_once_find_connections_of_their_own() -> None:
    async with ScriptedEngine([0.1, WHOLE]) as engine, gateway(engine.url) as sluice:
        for _ in range(2):
            replies = await asyncio.gather(*(post_json(sluice.port, CHAT, REQ) for _ in range(20)))
            assert {reply.status for reply in replies} == {200}
        assert engine.max_parallel == 20
        assert len(engine.generating) <= 21  # the second round used those of the first
