"""A llama.cpp that Sluice runs dies: its clients are told, and it comes back without anybody doing anything."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.engines.managed import free_port
from tests.real.llamacpp import LONG_ANSWER, MODEL, THREADS, Watcher
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.gateway import CHAT, RunningGateway, gateway
from tests.support.processes import alive, children
from tests.support.sse import failed, joined, read_events

pytestmark = [pytest.mark.anyio, pytest.mark.real]


def question(**fields: Any) -> dict[str, Any]:
    return {"model": "smol", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 4, **fields}


@pytest.fixture
def llamacpp() -> Watcher:
    return Watcher(f"http://127.0.0.1:{free_port()}")


@pytest.fixture
async def sluice(llamacpp: Watcher) -> AsyncIterator[RunningGateway]:
    """Its only engine is a llama.cpp of its own, which has just been started."""
    managed = {"model": MODEL, "context": 2048, "slots": 2, "threads": THREADS, "port": llamacpp.port}
    engine = {"kind": "llamacpp", "managed": managed, "models": ["smol"], "probe": {"interval": 0.2}}
    async with gateway(engines={"own": engine}) as running:
        yield running


State = tuple[int, str, str]
"""The status of `/health/ready`, and the engine's state and reason in it."""
READY: State = (200, "ready", "")


async def states(sluice: RunningGateway, until: Callable[[State], bool]) -> list[State]:
    """What `/health/ready` says, each once, up to what `until` asks for."""
    seen: list[State] = []
    with anyio.fail_after(90):
        while not seen or not until(seen[-1]):
            await anyio.sleep(0.02)
            reply = await get(sluice.port, "/health/ready")
            engine = reply.json()["engines"]["own"]
            now = (reply.status, engine["state"], engine["reason"])
            if not seen or seen[-1] != now:
                seen.append(now)
    return seen


async def until_ready(sluice: RunningGateway) -> list[State]:
    return await states(sluice, lambda state: state == READY)


async def until_unready(sluice: RunningGateway) -> list[State]:
    return await states(sluice, lambda state: state != READY)


def process() -> int:
    """The engine's process: the only one whose parent these tests are, but for the one that all tests share."""
    [pid] = [child for child in children(os.getpid()) if b"--alias=smol\0" in cmdline(child)]
    return pid


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def kill() -> int:
    """Ends the engine's process as the kernel does when memory runs out. Returns its pid."""
    pid = process()
    os.kill(pid, signal.SIGKILL)
    with anyio.fail_after(10):
        while alive(pid):
            await anyio.sleep(0.001)
    return pid


def error(reply: Reply) -> dict[str, Any]:
    return reply.json()["error"]


class TestStarting:
    async def test_requests_are_told_that_it_starts_and_then_served(self, sluice: RunningGateway) -> None:
        early = await post_json(sluice.port, CHAT, question())
        assert early.status == 503
        assert error(early)["code"] == "no_engine_available"
        assert "engine own is starting (its process is starting)" in error(early)["message"]
        assert "retry-after" in early.headers
        *before, _ = await until_ready(sluice)
        assert {(status, state) for status, state, _ in before} <= {(503, "starting"), (503, "loading")}
        assert all(reason for _, _, reason in before)
        assert (await post_json(sluice.port, CHAT, question(), timeout=60)).status == 200


class TestKilled:
    @pytest.fixture(autouse=True)
    async def ready(self, sluice: RunningGateway) -> None:
        await until_ready(sluice)

    async def test_it_is_started_again_and_serves(self, sluice: RunningGateway) -> None:
        first = await kill()
        await until_unready(sluice)
        *meanwhile, _ = await until_ready(sluice)
        assert {status for status, _, _ in meanwhile} == {503}
        assert any(state == "down" and "was killed by signal 9" in reason for _, state, reason in meanwhile)
        assert process() != first
        reply = await post_json(sluice.port, CHAT, question(), timeout=60)
        assert (reply.status, reply.json()["usage"]["completion_tokens"]) == (200, 4)

    async def test_the_next_requests_are_told_why_they_cannot_be_served(self, sluice: RunningGateway) -> None:
        await kill()
        first = await post_json(sluice.port, CHAT, question())
        assert first.status in (502, 503)
        assert "`own`" in error(first)["message"] or "engine own" in error(first)["message"]
        with anyio.fail_after(5):
            while (reply := await post_json(sluice.port, CHAT, question())).status == 502:
                await anyio.sleep(0.01)
        assert reply.status == 503
        assert "No engine can serve the model `smol` now: engine own is" in error(reply)["message"]
        assert "retry-after" in reply.headers

    async def test_an_answer_in_one_piece_becomes_an_error(self, sluice: RunningGateway, llamacpp: Watcher) -> None:
        async with RawClient(sluice.port) as client:
            await client.request("POST", CHAT, question(max_tokens=LONG_ANSWER, ignore_eos=True))
            await llamacpp.until_busy()
            await kill()
            reply = await client.finish()
        assert reply.complete
        assert (reply.status, error(reply)["type"]) == (502, "engine_error")
        assert error(reply)["code"] in ("engine_failed", "engine_unreachable")
        assert (await sluice.record())["outcome"] == error(reply)["code"]

    async def test_a_stream_ends_with_an_error_and_not_as_if_it_were_whole(self, sluice: RunningGateway) -> None:
        async with RawClient(sluice.port) as client:
            await client.request("POST", CHAT, question(max_tokens=LONG_ANSWER, ignore_eos=True, stream=True))
            await client.read_until(b'"content":"', count=5, timeout=60)
            await kill()
            reply = await client.finish()
        assert reply.complete
        assert joined(reply.body)
        assert failed(reply.body)
        assert read_events(reply.body)[-1].error == {
            "message": "Engine `own` broke off its answer.",
            "type": "engine_error",
            "param": None,
            "code": "engine_failed",
        }
        assert (await sluice.record())["outcome"] == "engine_failed"
