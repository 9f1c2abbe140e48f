"""Clients that leave: the engine's work ends at once, nobody is asked again, and nothing stays behind."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import pytest

from tests.support.answers import ANSWER
from tests.support.client import RawClient, encode_request, post_json
from tests.support.engine import Connection, Request, Script, ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, gateway
from tests.support.leases import in_flight
from tests.support.processes import open_files
from tests.support.sse import DONE, FIN, LAST_CHUNK, ROLE, SSE_HEAD, T, chunk, http_ok, json_reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

AT_ONCE = 2.0
"""Seconds that count as such, on a busy machine too."""

STREAM = REQ | {"stream": True}
JSON_HEAD = http_ok("Content-Type: application/json", "Transfer-Encoding: chunked")
TOKENS = [step for _ in range(1000) for step in (chunk(T("x")), 0.02)]

leaving = pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["FIN", "RST"])


async def three_tokens(client: RawClient) -> None:
    await client.read_until(b'"x"', 3)


async def nothing(_: RawClient) -> None:
    """Leaves as soon as the engine has the request."""


@dataclass(frozen=True)
class Moment:
    """What the engine does, and what of it the client has when it leaves."""

    body: Mapping[str, object]
    script: Script
    seen: Callable[[RawClient], Awaitable[None]] = nothing
    status: int = 499


MOMENTS = {
    "before a stream's head": Moment(STREAM, [Step.HANG]),
    "before an answer's head": Moment(REQ, [Step.HANG]),
    "after a stream's head": Moment(STREAM, [SSE_HEAD, Step.HANG]),
    "during prefill": Moment(STREAM, [SSE_HEAD, chunk(ROLE), chunk(b":\n\n"), Step.HANG]),
    "in the middle of an answer": Moment(REQ, [JSON_HEAD, chunk(b'{"choices":['), Step.HANG]),
    "in the middle of an error": Moment(REQ, [http_ok("Content-Length: 9", status=500) + b"{", Step.HANG]),
    "in the middle of a stream": Moment(STREAM, [SSE_HEAD, chunk(ROLE), *TOKENS], three_tokens, 200),
    "in a pause of a stream": Moment(STREAM, [SSE_HEAD, chunk(3 * T("x")), Step.HANG], three_tokens, 200),
}
SIZES = {"a small request": 0, "one of 200 kB": 200_000}


@leaving
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
async def test_the_engine_is_let_go_at_once(moment: Moment, size: int, leave: Callable[[RawClient], None]) -> None:
    async with ScriptedEngine(moment.script) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
        await client.request("POST", CHAT, {**moment.body, "user": "u" * size})
        await eventually(lambda: engine.requests, timeout=10)
        await moment.seen(client)
        await asyncio.sleep(0.05)  # in which the gateway takes what the engine has sent
        leave(client)
        await engine.gone(AT_ONCE)
        record = await sluice.record()
        assert (record["outcome"], record["status"]) == ("cancelled", moment.status)
        assert record["level"] == "info"
        assert in_flight(sluice) == {}
        await asyncio.sleep(0.1)
        assert len(engine.requests) == 1


@leaving
async def test_an_engine_is_never_asked_if_the_request_was_not_whole(leave: Callable[[RawClient], None]) -> None:
    async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
        for sent in (-1, -20, 200):
            async with RawClient(sluice.port) as client:
                await client.send(encode_request("POST", CHAT, STREAM | {"user": "u" * 100_000}, {})[:sent])
                await asyncio.sleep(0.05)
                leave(client)
        for number in range(3):
            record = await sluice.record(number)
            assert (record["outcome"], record["status"]) == ("cancelled", 499)
        assert engine.requests == []


async def test_one_that_leaves_after_its_answer_has_not_left_it() -> None:
    """It may go while the engine still ends its reply, whose connection then serves again."""
    script = [SSE_HEAD, chunk(T("a") + FIN("stop") + DONE), 0.1, LAST_CHUNK]
    async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice:
        for number in range(2):
            assert (await post_json(sluice.port, CHAT, STREAM)).complete
            assert (await sluice.record(number))["outcome"] == "ok"
        assert len(engine.generating) == 1


class Moody:
    """An engine that takes its time in every phase; one seed makes one story."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.calm = False

    async def __call__(self, request: Request, connection: Connection) -> None:
        if not request.json().get("stream"):
            await self._pause()
            await connection.send(json_reply(ANSWER))
            return
        for part in (SSE_HEAD, chunk(ROLE), chunk(T("x")), chunk(T("x")), chunk(FIN("stop")), chunk(DONE), LAST_CHUNK):
            await self._pause()
            await connection.send(part)

    async def _pause(self) -> None:
        if not self.calm:
            await asyncio.sleep(self._random.uniform(0, 0.06))


async def leave_some_time(port: int, dice: random.Random) -> None:
    """A client that sends its request, or a part of it, reads a while, and leaves at any moment."""
    request = encode_request(
        "POST", CHAT, REQ | {"stream": dice.random() < 0.7, "user": "u" * dice.choice([0, 99_999])}, {}
    )
    part = request[: dice.randrange(len(request))] if dice.random() < 0.2 else request
    async with RawClient(port) as client:
        try:
            async with asyncio.timeout(dice.uniform(0, 0.4)):
                await client.send(part)
                while await client.read():
                    pass
        except TimeoutError:
            pass
        dice.choice([RawClient.close, RawClient.reset])(client)


async def test_300_that_leave_at_any_moment_leave_nothing_behind() -> None:
    dice = random.Random(1)
    moods = Moody(2)
    async with ScriptedEngine(moods) as engine, gateway(engine.url) as sluice:
        assert (await post_json(sluice.port, CHAT, REQ)).status == 200
        tasks, files = len(asyncio.all_tasks()), open_files(os.getpid())
        for _ in range(10):
            await asyncio.gather(*(leave_some_time(sluice.port, dice) for _ in range(30)))
        moods.calm = True
        replies = await asyncio.gather(*(post_json(sluice.port, CHAT, REQ) for _ in range(20)))
        assert [reply.json() for reply in replies] == 20 * [ANSWER]
        await eventually(lambda: engine.running == 0 and in_flight(sluice) == {})
        outcomes = [record["outcome"] for record in sluice.records()]
        assert set(outcomes) == {"ok", "cancelled"}
        assert outcomes.count("cancelled") > 100
        # The engine's open connections are the pool's, for a few seconds; a task of the engine's serves each of them.
        await eventually(lambda: open_files(os.getpid()) <= files, timeout=15)
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
