"""A request of a higher class takes the place of one that has sent nothing to its client yet."""

import asyncio
from typing import Any

import anyio
import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, post_json
from tests.support.engine import Connection as EngineConnection
from tests.support.engine import Request, ScriptedEngine
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.messages import ASK, MESSAGES, read_message
from tests.support.sse import DONE, FIN, LAST_CHUNK, ROLE, SSE_HEAD, T, chunk, finish_reasons, is_clean, sse_reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

POLICY = """
models:
  chat:
    tiers: {box: box}
    rules:
      - {when: 'header("x-class") == "low"', class: low}
      - {when: 'header("x-class") == "high"', class: high}
"""


class Box:
    """An engine of one place. It says no word on the first request of a low class until it is let to."""

    def __init__(self, *, begins: bool = False) -> None:
        self.begins = begins
        self.open = asyncio.Event()

    async def __call__(self, request: Request, connection: EngineConnection) -> None:
        body = request.json()
        streams = body.get("stream")
        if body.get("user") == "slow":
            if self.begins:
                await connection.send(SSE_HEAD + chunk(ROLE + T("Once ")))
            await self.open.wait()
            if self.begins:
                await connection.send(chunk(T("hi") + FIN("stop") + DONE) + LAST_CHUNK)
                return
        await connection.send(sse_reply(ROLE, T("hi"), FIN("stop"), DONE) if streams else OK)


class Case:
    """A gateway in front of a box, with requests under way."""

    def __init__(self, sluice: RunningGateway, engine: ScriptedEngine, box: Box) -> None:
        self.sluice = sluice
        self.engine = engine
        self.box = box
        self.replies: dict[str, Reply] = {}

    async def ask(self, name: str, priority: str, **fields: Any) -> None:
        body = REQ | {"model": "chat"} | fields
        self.replies[name] = await post_json(self.sluice.port, CHAT, body, {"X-Class": priority, "X-Request-Id": name})

    async def records(self, count: int) -> dict[str, dict[str, Any]]:
        found = [await self.sluice.record(at) for at in range(count)]
        return {record["request_id"]: record for record in found}


def box_of(engine: ScriptedEngine) -> dict[str, dict[str, Any]]:
    return {"box": engine_config(engine.url, concurrency=1)}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_lower_class_waits_on_and_is_answered_later(stream: bool) -> None:
    box = Box()
    async with (
        ScriptedEngine(box) as engine,
        gateway(engines=box_of(engine), policy=POLICY) as sluice,
        anyio.create_task_group() as tasks,
    ):
        case = Case(sluice, engine, box)
        tasks.start_soon(lambda: case.ask("low", "low", user="slow", stream=stream))
        await eventually(lambda: len(engine.requests) == 1)
        await case.ask("high", "high", stream=stream)
        await engine.requests[0].connection.wait_closed()  # the engine was told to stop that one
        box.open.set()
        await eventually(lambda: len(case.replies) == 2)
        records = await case.records(2)
    assert [request.json().get("user") for request in engine.requests] == ["slow", None, "slow"]
    assert {reply.status for reply in case.replies.values()} == {200}
    assert (records["low"]["outcome"], records["low"]["attempt"]) == ("ok", 2)
    assert records["low"]["queued"] <= records["low"]["dispatched"]
    assert (records["high"]["outcome"], records["high"]["attempt"]) == ("ok", 1)
    assert case.replies["low"].headers.get("x-sluice-attempt") == "2"
    if stream:
        assert is_clean(case.replies["low"].body)


async def test_a_request_that_has_begun_keeps_its_place() -> None:
    box = Box(begins=True)
    async with (
        ScriptedEngine(box) as engine,
        gateway(engines=box_of(engine), policy=POLICY) as sluice,
        anyio.create_task_group() as tasks,
    ):
        case = Case(sluice, engine, box)
        async with RawClient(sluice.port) as client:
            await client.request(
                "POST", CHAT, REQ | {"model": "chat", "user": "slow", "stream": True}, {"X-Class": "low"}
            )
            await client.read_until(b"Once")
            tasks.start_soon(lambda: case.ask("high", "high"))
            await anyio.sleep(0.6)  # more than two looks at who may lose a place
            assert len(engine.requests) == 1
            box.open.set()
            await client.read_until(b"[DONE]")
        await eventually(lambda: len(case.replies) == 1)
    assert case.replies["high"].status == 200
    assert len(engine.requests) == 2


@pytest.mark.parametrize("priority", ["low", "normal"])
async def test_none_of_its_own_class_or_below_takes_it(priority: str) -> None:
    box = Box()
    async with (
        ScriptedEngine(box) as engine,
        gateway(engines=box_of(engine), policy=POLICY) as sluice,
        anyio.create_task_group() as tasks,
    ):
        case = Case(sluice, engine, box)
        tasks.start_soon(lambda: case.ask("first", priority, user="slow"))
        await eventually(lambda: len(engine.requests) == 1)
        tasks.start_soon(lambda: case.ask("second", "low"))
        await anyio.sleep(0.6)
        assert len(engine.requests) == 1
        box.open.set()
        await eventually(lambda: len(case.replies) == 2)
    assert len(engine.requests) == 2


async def test_a_place_is_lost_once_at_most() -> None:
    box = Box()
    async with (
        ScriptedEngine(box) as engine,
        gateway(engines=box_of(engine), policy=POLICY) as sluice,
        anyio.create_task_group() as tasks,
    ):
        case = Case(sluice, engine, box)
        tasks.start_soon(lambda: case.ask("low", "low", user="slow"))
        await eventually(lambda: len(engine.requests) == 1)
        await case.ask("high", "high")
        await eventually(lambda: len(engine.requests) == 3)
        tasks.start_soon(lambda: case.ask("higher", "high"))
        await anyio.sleep(0.6)
        assert len(engine.requests) == 3
        box.open.set()
        await eventually(lambda: len(case.replies) == 3)


async def test_comments_are_no_beginning() -> None:
    box = Box()
    async with (
        ScriptedEngine(box) as engine,
        gateway(engines=box_of(engine), policy=POLICY, queue={"comment_interval": 0.1}) as sluice,
        anyio.create_task_group() as tasks,
    ):
        case = Case(sluice, engine, box)
        tasks.start_soon(lambda: case.ask("low", "low", user="slow", stream=True))
        await anyio.sleep(0.3)
        await case.ask("high", "high")
        box.open.set()
        await eventually(lambda: len(case.replies) == 2)
    body = case.replies["low"].body
    assert b": waiting for the first token" in body
    assert is_clean(body)
    assert finish_reasons(body) == ["stop"]


async def test_a_client_that_leaves_after_that_leaves_no_trace() -> None:
    box = Box()
    async with (
        ScriptedEngine(box) as engine,
        gateway(engines=box_of(engine), policy=POLICY) as sluice,
        anyio.create_task_group() as tasks,
    ):
        case = Case(sluice, engine, box)
        async with RawClient(sluice.port) as client:
            await client.request("POST", CHAT, REQ | {"model": "chat", "user": "slow"}, {"X-Class": "low"})
            await eventually(lambda: len(engine.requests) == 1)
            tasks.start_soon(lambda: case.ask("high", "high", user="slow"))
            await eventually(lambda: len(engine.requests) == 2)
            client.close()
            record = await sluice.record()
        box.open.set()
        await eventually(lambda: len(case.replies) == 1)
        await case.ask("next", "low")
    assert (record["outcome"], record["priority"]) == ("cancelled", "low")
    assert len(engine.requests) == 3


async def test_the_limits_of_the_first_try_are_over_with_it() -> None:
    box = Box()
    async with ScriptedEngine(box) as engine:
        engines = {"box": engine_config(engine.url, concurrency=1, timeouts={"first_byte": 0.8, "total": 0.9})}
        async with gateway(engines=engines, policy=POLICY) as sluice, anyio.create_task_group() as tasks:
            case = Case(sluice, engine, box)
            tasks.start_soon(lambda: case.ask("low", "low", user="slow"))
            await eventually(lambda: len(engine.requests) == 1)
            await anyio.sleep(0.5)
            await case.ask("high", "high")
            await eventually(lambda: len(engine.requests) == 3)
            await anyio.sleep(0.5)  # later than the limits of the first try, and sooner than those of the second
            box.open.set()
            await eventually(lambda: len(case.replies) == 2)
    assert case.replies["low"].status == 200


async def test_a_limit_that_passes_at_the_second_place_is_an_error() -> None:
    box = Box()
    async with ScriptedEngine(box) as engine:
        engines = {"box": engine_config(engine.url, concurrency=1, timeouts={"first_byte": 0.4})}
        async with gateway(engines=engines, policy=POLICY) as sluice, anyio.create_task_group() as tasks:
            case = Case(sluice, engine, box)
            tasks.start_soon(lambda: case.ask("low", "low", user="slow"))
            await eventually(lambda: len(engine.requests) == 1)
            await case.ask("high", "high")
            await eventually(lambda: len(case.replies) == 2)
            box.open.set()
    assert (case.replies["low"].status, error_of(case.replies["low"])["code"]) == (504, "engine_timeout")


async def test_a_translated_stream_is_whole_after_that() -> None:
    box = Box()
    async with (
        ScriptedEngine(box) as engine,
        gateway(engines=box_of(engine), policy=POLICY) as sluice,
        anyio.create_task_group() as tasks,
    ):
        case = Case(sluice, engine, box)
        replies: list[Reply] = []

        async def ask() -> None:
            body = ASK | {"model": "chat", "stream": True, "metadata": {"user_id": "slow"}}
            replies.append(await post_json(sluice.port, MESSAGES, body, {"X-Class": "low"}))

        tasks.start_soon(ask)
        await eventually(lambda: len(engine.requests) == 1)
        await case.ask("high", "high")
        box.open.set()
        await eventually(lambda: len(replies) == 1)
    assert len(engine.requests) == 3
    assert read_message(replies[0].body).text == "hi"
