"""What real engines answered arrives at a client byte for byte, however their bytes were cut on the way."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from tests.api.wire_differences import BY_NAME, DIFFERENCES, words_of
from tests.support.client import RawClient, Reply, post_json
from tests.support.engine import Connection, Request, ScriptedEngine
from tests.support.gateway import CHAT, COMPLETIONS, RunningGateway, engine_config, gateway
from tests.support.sse import failed, read_events
from tests.support.waiting import eventually
from tests.support.wire import Recording, recording, recordings

pytestmark = pytest.mark.anyio

RECORDINGS = [one for path in (CHAT, COMPLETIONS) for one in recordings(path=path)]
SAME = [one for one in RECORDINGS if str(one) not in BY_NAME]
DIFFERENT = [one for one in RECORDINGS if str(one) in BY_NAME]

BETWEEN_READS = 0.001
"""A pause after which the gateway, in the same loop, has taken what was sent."""


def asked(recorded: Recording) -> bytes:
    """The request as it was recorded; TGI needs no model's name, the gateway does."""
    try:
        body = json.loads(recorded.request_body)
    except ValueError:
        return recorded.request_body
    return recorded.request_body if "model" in body else json.dumps(body | {"model": "tgi"}).encode()


def models(recorded: Iterable[Recording]) -> Iterator[str]:
    for one in recorded:
        try:
            name = json.loads(asked(one))["model"]
        except ValueError:
            continue
        if name:
            yield name


@dataclass
class Played:
    reply: Reply
    record: dict[str, Any]
    requests: int
    """How often the engine was asked."""


@dataclass
class Player:
    engine: ScriptedEngine
    sluice: RunningGateway
    played: int = 0

    async def play(self, recorded: Recording) -> Played:
        """Sends the recorded request, and has the engine answer as it did, read by read.

        Where output comes before a failure, the client has it before the engine goes on to its last read.
        """
        difference = BY_NAME.get(str(recorded))
        lasts = difference is not None and difference.status == 200

        async def script(_request: Request, connection: Connection) -> None:
            for number, (_, data) in enumerate(recorded.reads, 1):
                if lasts and number == len(recorded.reads):
                    await eventually(lambda: client.reply.status)
                await connection.send(data)
                await asyncio.sleep(BETWEEN_READS)
            await connection.fin()

        self.engine.script = script
        before = len(self.engine.requests)
        async with RawClient(self.sluice.port) as client:
            await client.request(recorded.method, recorded.path, asked(recorded) or None, recorded.request_headers)
            reply = await client.finish()
        record = await self.sluice.record(self.played)
        self.played += 1
        return Played(reply, record, len(self.engine.requests) - before)


@pytest.fixture(scope="module")
async def player() -> AsyncIterator[Player]:
    async with (
        ScriptedEngine() as engine,
        gateway(engines={"a": engine_config(engine.url, models=sorted(set(models(RECORDINGS))))}) as sluice,
    ):
        yield Player(engine, sluice)


@pytest.mark.parametrize("recorded", SAME, ids=str)
async def test_arrives_as_it_was(player: Player, recorded: Recording) -> None:
    played = await player.play(recorded)
    reply = played.reply
    assert (reply.status, reply.body, reply.error) == (recorded.status, recorded.body, None)
    sent_type = recorded.headers.get("content-type")
    assert reply.headers.get("content-type") == (sent_type if recorded.status == 200 else "application/json")
    assert played.requests == 1
    assert played.record["outcome"] == ("ok" if recorded.status == 200 else "engine_error")
    assert {key: played.record[key] for key in REPORT if key in played.record} == report(recorded)


REPORT = ("prompt_tokens", "completion_tokens", "cached_tokens", "engine_prefill", "engine_decode")


def report(recorded: Recording) -> dict[str, float]:
    """What the recording itself tells: tokens by its last `usage`, else llama.cpp's `timings`, and their times."""
    if (recorded.headers.get("content-type") or "").startswith("text/event-stream"):
        told = [event.json for event in read_events(recorded.body) if not event.done]
    else:
        told = [recorded.reply.json()]
    usage = next((part["usage"] for part in reversed(told) if part.get("usage")), None)
    timings = next((part["timings"] for part in reversed(told) if part.get("timings")), None)
    found: dict[str, float | None] = {}
    if timings:
        found["prompt_tokens"] = timings["prompt_n"] + timings["cache_n"]
        found["completion_tokens"] = timings["predicted_n"]
        found["cached_tokens"] = timings["cache_n"]
        found["engine_prefill"] = timings["prompt_ms"] / 1000
        found["engine_decode"] = timings["predicted_ms"] / 1000
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        found["prompt_tokens"] = usage["prompt_tokens"]
        found["completion_tokens"] = usage["completion_tokens"]
        found["cached_tokens"] = details.get("cached_tokens", found.get("cached_tokens"))
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("recorded", DIFFERENT, ids=str)
async def test_differs_for_a_reason(player: Player, recorded: Recording) -> None:
    difference = BY_NAME[str(recorded)]
    played = await player.play(recorded)
    reply = played.reply
    assert reply.error is None
    assert reply.status == (difference.status or recorded.status)
    assert played.record["outcome"] == difference.outcome
    assert played.requests == difference.asked
    if reply.status == 200:
        assert failed(reply.body)
        *relayed, last = read_events(reply.body)
        assert relayed == read_events(recorded.body)[: len(relayed)]
        assert len(relayed) >= 3
        assert last.error is not None
        error = last.error
    else:
        assert reply.headers.get("content-type") == "application/json"
        error = reply.json()["error"]
    assert {key: type(value) for key, value in error.items() if key != "param"} == {
        "message": str,
        "type": str,
        "code": str,
    }
    if difference.outcome == "engine_error":
        assert error["message"] == words_of(recorded)


def test_every_difference_is_a_recording_and_has_one_reason() -> None:
    listed = [name for difference in DIFFERENCES for name in difference.names.split()]
    assert sorted(listed) == sorted(map(str, DIFFERENT))


# Cut anywhere

LLAMACPP, VLLM = recording("llamacpp", "completion-stream"), recording("vllm", "chat-stream")


async def play_cut(recorded: Recording, scripts: dict[int, list[bytes]]) -> list[int]:
    """Plays the recording once for each of `scripts`, a few at a time; returns those that did not arrive as it was."""

    async def script(request: Request, connection: Connection) -> None:
        for part in scripts[request.json()["script"]]:
            await connection.send(part)
            await asyncio.sleep(BETWEEN_READS)
        await connection.fin()

    question = json.loads(recorded.request_body)
    waiting = iter(scripts)
    wrong = []

    async def ask(port: int) -> None:
        for number in waiting:
            reply = await post_json(port, recorded.path, question | {"script": number})
            if (reply.status, reply.body, reply.error) != (200, recorded.body, None):
                wrong.append(number)

    async with (
        ScriptedEngine(script) as engine,
        gateway(engines={"a": engine_config(engine.url, models=[question["model"]])}) as sluice,
    ):
        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(ask, sluice.port)
        assert len(engine.requests) == len(scripts)
    return wrong


@pytest.mark.parametrize(("recorded", "step"), [(LLAMACPP, 1), (VLLM, 7)], ids=str)
async def test_may_be_cut_in_two_at_any_byte(recorded: Recording, step: int) -> None:
    raw = recorded.raw
    positions = range(1, len(raw), step)
    assert await play_cut(recorded, {at: [raw[:at], raw[at:]] for at in positions}) == []


@pytest.mark.parametrize("recorded", [LLAMACPP, VLLM], ids=str)
async def test_may_come_byte_by_byte(recorded: Recording) -> None:
    assert await play_cut(recorded, {0: [recorded.raw[at : at + 1] for at in range(len(recorded.raw))]}) == []
