"""An engine that hangs keeps nobody waiting but those who asked for its model."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.answers import ANSWER, error_of
from tests.support.backlog import full_backlog
from tests.support.client import Reply, get, post_json
from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.leases import in_flight
from tests.support.sse import json_reply

pytestmark = pytest.mark.anyio

LIMIT = 2.0
SOON = 1.0
"""Seconds that a request to the other engine may take, on a busy machine too."""


@asynccontextmanager
async def beside(hung_url: str) -> AsyncIterator[RunningGateway]:
    """A gateway with an engine at `hung_url` that has the model `hung`, and one that is well and has `well`."""
    limits = {"first_byte": LIMIT, "connect": LIMIT}
    async with ScriptedEngine([0.01, json_reply(ANSWER)], model="well") as well:
        engines = {
            "hung": engine_config(hung_url, models=["hung"], timeouts=limits),
            "well": engine_config(well.url, models=["well"]),
        }
        async with gateway(engines=engines) as sluice:
            yield sluice


async def ask(sluice: RunningGateway, model: str, number: int) -> tuple[Reply, float]:
    start = time.monotonic()
    reply = await post_json(sluice.port, CHAT, REQ | {"model": model, "stream": model == "hung" and number % 2 == 0})
    return reply, time.monotonic() - start


async def served_beside_50_hung(sluice: RunningGateway) -> list[Reply]:
    """The replies for the hung engine's model; in the meantime, the other's come as always."""
    waiting = [asyncio.create_task(ask(sluice, "hung", number)) for number in range(50)]
    await asyncio.sleep(0.2)
    for reply, took in await asyncio.gather(*(ask(sluice, "well", number) for number in range(50))):
        assert (reply.status, reply.json()) == (200, ANSWER)
        assert took < SOON
    assert (await get(sluice.port, "/v1/models", timeout=SOON)).status == 200
    return [reply for reply, _ in await asyncio.gather(*waiting)]


async def test_one_that_never_answers() -> None:
    async with ScriptedEngine([Step.HANG]) as hung, beside(hung.url) as sluice:
        replies = await served_beside_50_hung(sluice)
        assert {(reply.status, error_of(reply)["code"]) for reply in replies} == {(504, "engine_timeout")}
        assert len(hung.requests) == 50
        assert in_flight(sluice) == {}
        await hung.gone(2)


async def test_one_that_takes_no_connections() -> None:
    async with ScriptedEngine() as hung, beside(hung.url) as sluice:
        await hung.__aexit__(None, None, None)
        with full_backlog(hung.port):
            replies = await served_beside_50_hung(sluice)
        assert {reply.status for reply in replies} == {504}
        assert in_flight(sluice) == {}
