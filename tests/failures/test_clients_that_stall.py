"""Clients that read slowly or not at all: the engine is held back, others are served, and at last they are let go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.support.client import RawClient, post_json
from tests.support.engine import Connection, Script, ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, RunningGateway, gateway
from tests.support.leases import in_flight
from tests.support.sse import DONE, FIN, ROLE, SSE_HEAD, T, chunk, chunked, json_reply, sse_reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

STREAM = REQ | {"stream": True}
EVENT = T("x" * 8000)
FLOOD: Script = [SSE_HEAD, chunk(ROLE), *(25_000 * [chunk(EVENT)]), Step.HANG]
"""200 MB."""
BUFFERS = 30_000_000
"""More than all buffers of the kernel and the gateway between an engine and a client hold together."""
STALL = 0.5


@asynccontextmanager
async def stuck(
    script: Script, body: object = STREAM, stall: float = 60.0, receive_buffer: int | None = 4096
) -> AsyncIterator[tuple[ScriptedEngine, RunningGateway, RawClient]]:
    """A client that has asked, and has not read anything; who asks after it gets a short stream."""
    short = [sse_reply(ROLE, T("a"), FIN("stop"), DONE)]
    async with (
        ScriptedEngine([script, short]) as engine,
        gateway(engine.url, server={"stall_timeout": stall}) as sluice,
        RawClient(sluice.port, receive_buffer=receive_buffer) as client,
    ):
        await client.request("POST", CHAT, body)
        await eventually(lambda: engine.requests)
        yield engine, sluice, client


async def filled(connection: Connection) -> int:
    """How many bytes of an engine were taken once no more are."""
    before = -1
    async with asyncio.timeout(20):
        while connection.sent_bytes != before or not before:
            before = connection.sent_bytes
            await asyncio.sleep(0.3)
    return before


async def test_the_engine_is_held_back_while_a_client_reads_nothing() -> None:
    async with stuck(FLOOD) as (engine, sluice, _):
        assert await filled(engine.generating[0]) < BUFFERS
        assert engine.running == 1
        beside = await asyncio.gather(*(post_json(sluice.port, CHAT, STREAM, timeout=5) for _ in range(10)))
        assert {reply.body for reply in beside} == {ROLE + T("a") + FIN("stop") + DONE}
        assert engine.generating[0].open


async def test_the_engine_goes_on_when_the_client_does() -> None:
    events = 4000
    async with stuck([SSE_HEAD, chunk(ROLE), *(events * [chunk(EVENT)]), chunk(FIN("stop")), Step.FIN]) as (
        engine,
        _,
        client,
    ):
        await filled(engine.generating[0])
        reply = await client.finish()
        assert reply.complete
        assert reply.body == ROLE + events * EVENT + FIN("stop") + DONE


async def test_one_that_pauses_and_reads_on_is_not_let_go() -> None:
    patience = 4.0
    async with stuck(FLOOD, stall=patience, receive_buffer=None) as (engine, sluice, client):
        for _ in range(6):
            await asyncio.sleep(patience / 4)
            size = 0
            while size < 4_000_000:
                size += len(await client.read())
        assert engine.generating[0].open
        assert sluice.records() == []


async def let_go(client: RawClient) -> bool:
    """Whether the connection ended, which the client learns after reading what the kernel still has for it."""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(5):
            while await client.read():
                pass
    return not client.reply.complete


async def test_a_client_that_reads_nothing_is_let_go_in_the_end_and_so_is_the_engine() -> None:
    async with stuck(FLOOD, stall=STALL) as (engine, sluice, client):
        await eventually(lambda: not engine.generating[0].open, timeout=10)
        record = await sluice.record()
        assert record["outcome"] == "client_stalled"
        assert record["duration"] >= STALL
        assert in_flight(sluice) == {}
        assert await let_go(client)


async def test_the_end_of_a_stream_is_not_waited_for_without_limit() -> None:
    """All of the answer is there, and more than the client's buffers take."""
    whole = sse_reply(ROLE, *(50 * [T("x" * 200_000)]), FIN("stop"), DONE)
    async with stuck([whole], stall=STALL) as (_, sluice, client):
        assert (await sluice.record(timeout=10))["outcome"] == "client_stalled"
        assert in_flight(sluice) == {}
        assert await let_go(client)


async def test_an_answer_in_one_piece_is_not_kept_for_ever() -> None:
    answer = json_reply({"id": "r", "choices": [], "x": "x" * 20_000_000})
    async with stuck([answer], REQ, stall=STALL) as (_, sluice, client):
        await sluice.record(timeout=10)
        await eventually(lambda: not sluice.server.server_state.connections, timeout=10)
        assert in_flight(sluice) == {}
        assert await let_go(client)


async def test_nothing_is_left_of_a_client_that_stalls_at_the_very_end() -> None:
    """The last read of the engine's stream holds more than the client's buffers take."""
    whole = SSE_HEAD + chunked(ROLE + T("x" * 16_000_000) + FIN("stop") + DONE)
    async with stuck([whole], stall=STALL) as (_, sluice, client):
        await sluice.record(timeout=20)
        await eventually(lambda: not sluice.server.server_state.connections, timeout=10)
        assert await let_go(client)
