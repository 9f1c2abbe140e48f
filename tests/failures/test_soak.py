"""Many slow streams at once, and then all their clients vanish: what the gateway holds, and what is left in it."""

import asyncio
import json
import random
import resource
import socket
import struct
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import pytest
import yaml

from gateway.engines.managed import free_port
from tests.support.client import encode_request, get, post_json
from tests.support.gateway import CHAT, REQ, engine_config, gateway
from tests.support.http1 import RequestMessage
from tests.support.processes import open_files, own_memory
from tests.support.sse import ROLE, SSE_HEAD, T, chunk, json_reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

STREAMS = 2000
MAX_BYTES_A_STREAM = 100_000
PACE = 1.0
"""Seconds from one token of a stream to the next."""
SPREAD = 3.0
"""Seconds over which the clients vanish."""
TOKEN = b'"content":"tick"'
SLUICE = Path(sysconfig.get_path("scripts"), "sluice")


# An engine and clients that cost so little that the gateway is what is measured


class TickingEngine:
    """Streams a token now and then to everybody, without end; what is not a stream is answered at once."""

    def __init__(self) -> None:
        self.connections: set[EngineConnection] = set()
        self.random = random.Random(1)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: EngineConnection(self), "127.0.0.1", 0, backlog=4096)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        await eventually(lambda: not self.connections)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def streams(self) -> int:
        return sum(connection.ticks is not None for connection in self.connections)


class EngineConnection(asyncio.Protocol):
    """One connection to the engine; `ticks` is its timer while it streams."""

    def __init__(self, engine: TickingEngine) -> None:
        self.engine = engine
        self.ticks: asyncio.TimerHandle | None = None
        self._request = RequestMessage()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.engine.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._request.feed(data)
        if self._request.complete:
            request, self._request = self._request, RequestMessage()
            self._answer(request)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        if self.ticks is not None:
            self.ticks.cancel()

    def _answer(self, request: RequestMessage) -> None:
        if request.method == "GET":
            self.transport.write(json_reply({"object": "list", "data": [{"id": "m", "object": "model"}]}))
        elif request.json().get("stream"):
            self.transport.write(SSE_HEAD + chunk(ROLE))
            self._tick(PACE * self.engine.random.random())
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}
            self.transport.write(json_reply({"id": "r", "object": "chat.completion", "choices": [choice]}))

    def _tick(self, after: float) -> None:
        self.ticks = asyncio.get_running_loop().call_later(after, self._send)

    def _send(self) -> None:
        self.transport.write(chunk(T("tick")))
        self._tick(PACE)


class StreamingClient(asyncio.Protocol):
    """Asks for a stream and counts the tokens that come."""

    def __init__(self) -> None:
        self.tokens = 0
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(encode_request("POST", CHAT, {**REQ, "stream": True}, {}))

    def data_received(self, data: bytes) -> None:
        self.tokens += data.count(TOKEN)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def vanish(self, reset: bool) -> None:
        if reset:
            sock = cast("socket.socket", self._transport.get_extra_info("socket"))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


async def connect(port: int, count: int) -> list[StreamingClient]:
    """Clients that stream, connected a hundred at a time."""
    loop = asyncio.get_running_loop()
    clients: list[StreamingClient] = []
    while len(clients) < count:
        some = range(min(100, count - len(clients)))
        made = await asyncio.gather(*(loop.create_connection(StreamingClient, "127.0.0.1", port) for _ in some))
        clients += [client for _, client in made]
    return clients


async def all_stream(clients: list[StreamingClient], tokens: int) -> None:
    await eventually(lambda: all(client.tokens >= tokens for client in clients), timeout=60)
    assert not any(client.lost for client in clients)


async def vanish(clients: list[StreamingClient], seconds: float) -> None:
    """All clients leave, each at a moment of its own; every other one by a reset."""
    loop = asyncio.get_running_loop()
    dice = random.Random(2)
    for number, client in enumerate(clients):
        loop.call_later(seconds * dice.random(), client.vanish, number % 2 == 0)
    await eventually(lambda: all(client.lost for client in clients), timeout=seconds + 30)


async def settled(read: Callable[[], int], quiet: float = 1.0, timeout: float = 30.0) -> int:
    """A number once it has stayed the same for a while."""
    async with asyncio.timeout(timeout):
        while True:
            before = read()
            await asyncio.sleep(quiet)
            if read() == before:
                return before


@pytest.fixture
def many_files() -> Iterator[None]:
    """Every stream takes two sockets here and two in the gateway, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * STREAMS + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} open files, and {hard} are allowed")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class GatewayProcess:
    """`sluice serve` as a process of its own."""

    port: int
    pid: int
    log: Path

    def outcomes(self) -> dict[str, int]:
        records = [json.loads(line) for line in self.log.read_text().splitlines()]
        found = [record["outcome"] for record in records if record["event"] == "request"]
        return {outcome: found.count(outcome) for outcome in set(found)}


@asynccontextmanager
async def sluice_serve(folder: Path, engine_url: str) -> AsyncIterator[GatewayProcess]:
    port, log = free_port(), folder / "log"
    config = {"server": {"port": port}, "engines": {"a": engine_config(engine_url)}}
    (folder / "sluice.yaml").write_text(yaml.safe_dump(config))
    with log.open("w") as stderr, subprocess.Popen([SLUICE, "serve"], cwd=folder, stderr=stderr) as process:
        try:
            await answers(lambda: get(port, "/health/ready"), timeout=30)
            yield GatewayProcess(port, process.pid, log)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 30) == 0
        finally:
            process.kill()


async def answers(ask: Callable[[], Awaitable[object]], timeout: float) -> None:
    async with asyncio.timeout(timeout):
        while True:
            try:
                await ask()
            except ConnectionError:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
@pytest.mark.usefixtures("many_files")
async def test_two_thousand_streams_are_served_and_leave_nothing_behind(tmp_path: Path) -> None:
    async with TickingEngine() as engine, sluice_serve(tmp_path, engine.url) as sluice:
        await vanish(await connect(sluice.port, 50), 0.1)  # what the first requests need once is not to count
        await eventually(lambda: not engine.streams, timeout=30)
        files = await settled(lambda: open_files(sluice.pid), quiet=4.0)
        memory = own_memory(sluice.pid)

        clients = await connect(sluice.port, STREAMS)
        await all_stream(clients, tokens=3)
        assert engine.streams == STREAMS
        a_stream = (own_memory(sluice.pid) - memory) / STREAMS
        print(f"{STREAMS} streams: {a_stream / 1000:.1f} kB of memory each")
        assert 0 < a_stream < MAX_BYTES_A_STREAM
        assert open_files(sluice.pid) >= files + 2 * STREAMS

        await vanish(clients, SPREAD)
        await eventually(lambda: not engine.streams, timeout=30)
        await eventually(lambda: open_files(sluice.pid) <= files + 10, timeout=30)
        assert (await post_json(sluice.port, CHAT, REQ)).json()["choices"][0]["message"]["content"] == "well"
        await eventually(lambda: sluice.outcomes() == {"cancelled": STREAMS + 50, "ok": 1}, timeout=30)


async def test_no_task_outlives_its_client() -> None:
    async with TickingEngine() as engine, gateway(engine.url) as sluice:
        await vanish(await connect(sluice.port, 10), 0.1)
        await eventually(lambda: not engine.streams, timeout=30)
        before = asyncio.all_tasks()

        clients = await connect(sluice.port, 200)
        await all_stream(clients, tokens=2)
        assert len(asyncio.all_tasks()) >= len(before) + 200
        await vanish(clients, 1.0)

        await eventually(lambda: asyncio.all_tasks() <= before, timeout=30)
        await eventually(lambda: not engine.streams, timeout=30)
        assert [record["outcome"] for record in sluice.records()] == ["cancelled"] * 210
        assert (await post_json(sluice.port, CHAT, REQ)).status == 200
