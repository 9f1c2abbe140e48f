"""How every transport keeps, leaves and throttles connections."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from gateway.upstream.http import httpx
from tests.support.backlog import full_backlog
from tests.support.engine import AnyScript, Close, Connection, Request, ScriptedEngine, Step
from tests.support.sse import LAST_CHUNK, SSE_HEAD, chunk, chunked, http_ok, reply
from tests.support.transports import ask, fetch, make_transport, take
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

Transport = httpx.AsyncBaseTransport
OK = reply(b"ok")
NATIVE = pytest.mark.parametrize("transport", ["native"], indirect=True)
"""For what the stock transport lacks: it takes surplus bytes for the next reply, and sends nothing twice."""


class TestReuse:
    async def test_a_connection_serves_one_request_after_another(self, transport: Transport) -> None:
        async with ScriptedEngine([[OK], [SSE_HEAD + chunked(b"ab")], [http_ok(status=204)], [OK]]) as engine:
            got = [(await fetch(transport, engine.url)).body for _ in range(4)]
        assert got == [b"ok", b"ab", b"", b"ok"]
        assert len(engine.connections) == 1

    @pytest.mark.parametrize(
        "raw",
        [
            reply(b"ok", "Connection: close"),
            reply(b"ok", "connection: Close"),
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        ],
        ids=["close", "Close", "1.0"],
    )
    async def test_one_that_may_not_be_reused_is_not(self, transport: Transport, raw: bytes) -> None:
        async with ScriptedEngine([[raw], [OK]]) as engine:
            got = [(await fetch(transport, engine.url)).body for _ in range(2)]
            await asyncio.wait_for(engine.connections[0].wait_closed(), 1)
        assert got == [b"ok", b"ok"]
        assert len(engine.connections) == 2

    @NATIVE
    @pytest.mark.parametrize("more", [b"more", OK, b"HTTP/1.1 500 Oh\r\n"], ids=["bytes", "reply", "head"])
    async def test_one_that_said_more_than_its_reply_is_not_reused(self, transport: Transport, more: bytes) -> None:
        async with ScriptedEngine([[OK + more], [OK]]) as engine:
            got = [(await fetch(transport, engine.url)).body for _ in range(2)]
            await asyncio.wait_for(engine.connections[0].wait_closed(), 1)
        assert got == [b"ok", b"ok"]
        assert len(engine.connections) == 2

    @NATIVE
    async def test_an_empty_line_after_a_reply_does_no_harm(self, transport: Transport) -> None:
        async with ScriptedEngine([SSE_HEAD + chunked(b"ok") + b"\r\n"]) as engine:
            got = [(await fetch(transport, engine.url)).body for _ in range(3)]
        assert got == [b"ok"] * 3

    async def test_one_that_speaks_while_it_is_idle_is_not_reused(self, transport: Transport) -> None:
        async with ScriptedEngine([[OK, 0.02, reply(b"not asked for")], [OK]]) as engine:
            assert (await fetch(transport, engine.url)).body == b"ok"
            await asyncio.sleep(0.1)
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert len(engine.connections) == 2

    async def test_one_whose_reply_was_not_read_to_its_end_is_not_reused(self, transport: Transport) -> None:
        async with ScriptedEngine([[SSE_HEAD, chunk(b"a"), Step.HANG], [OK]]) as engine:
            response = await ask(transport, engine.url)
            await response.aclose()
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert len(engine.connections) == 2

    async def test_fifty_at_once(self, transport: Transport) -> None:
        async def echo(request: Request, connection: Connection) -> None:
            await asyncio.sleep(random.uniform(0, 0.05))
            await connection.send(SSE_HEAD + chunk(request.body))
            await asyncio.sleep(random.uniform(0, 0.05))
            await connection.send(chunk(request.path.encode()) + LAST_CHUNK)

        async with ScriptedEngine(echo) as engine:
            for _ in range(2):
                calls = [fetch(transport, f"{engine.url}/{n}", b"%d:" % n) for n in range(50)]
                got = await asyncio.gather(*calls)
                assert [answer.body for answer in got] == [b"%d:/%d" % (n, n) for n in range(50)]
        assert engine.max_parallel > 1
        assert len(engine.connections) <= 50

    async def test_closing_the_transport_closes_all(self, transport: Transport) -> None:
        async def script(request: Request, connection: Connection) -> None:
            await connection.send(SSE_HEAD + chunk(b"a") if request.path == "/busy" else OK)

        async with ScriptedEngine(script) as engine:
            busy = await ask(transport, f"{engine.url}/busy")
            await fetch(transport, engine.url)
            assert [connection.open for connection in engine.connections] == [True, True]
            await transport.aclose()
            await engine.gone(1)
            with pytest.raises(httpx.TransportError):
                await take(busy)


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with ScriptedEngine([OK]) as engine, make_transport("native", keepalive_expiry=0.2) as transport:
        await fetch(transport, engine.url)
        await fetch(transport, engine.url)
        assert engine.connections[0].open
        await engine.gone(2)
    assert len(engine.connections) == 1


class TestStaleConnections:
    async def test_closed_while_idle(self, transport: Transport) -> None:
        async with ScriptedEngine([[OK, Step.FIN], [OK]]) as engine:
            await fetch(transport, engine.url)
            await asyncio.sleep(0.05)
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert len(engine.requests) == len(engine.connections) == 2

    @NATIVE
    async def test_closed_while_the_next_request_is_written(self, transport: Transport) -> None:
        async with ScriptedEngine([OK, Step.FIN]) as engine:
            for _ in range(20):  # which of the two comes first is for the machine to choose
                assert (await fetch(transport, engine.url)).body == b"ok"
        assert len(engine.requests) == 20

    @NATIVE
    @pytest.mark.parametrize("end", [Step.RESET, Step.FIN])
    async def test_closed_when_the_next_request_came(self, transport: Transport, end: Step) -> None:
        async with ScriptedEngine([[OK], [end], [OK]]) as engine:
            got = [(await fetch(transport, engine.url, b"%d" % n)).body for n in range(2)]
        assert got == [b"ok", b"ok"]
        assert [request.body for request in engine.requests] == [b"0", b"1", b"1"]
        assert len(engine.connections) == 2

    @NATIVE
    @pytest.mark.parametrize("end", [Step.RESET, Step.FIN])
    async def test_there_is_one_retry(self, transport: Transport, end: Step) -> None:
        async with ScriptedEngine([[OK], [end]]) as engine:
            await fetch(transport, engine.url)
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await fetch(transport, engine.url)
        assert len(engine.requests) == 3

    @NATIVE
    async def test_the_retry_is_on_a_fresh_connection(self, transport: Transport) -> None:
        first_two = asyncio.Barrier(2)

        async def script(request: Request, connection: Connection) -> None:
            if len(engine.requests) <= 2:
                await first_two.wait()
                await connection.send(OK)
            elif len(connection.requests) > 1:
                await connection.reset()
            else:
                await connection.send(OK)

        async with ScriptedEngine(script) as engine:
            await asyncio.gather(*(fetch(transport, engine.url) for _ in range(2)))
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert len(engine.connections) == 3  # the second idle one was as stale as the first

    @pytest.mark.parametrize("end", [Step.RESET, Step.FIN])
    async def test_a_fresh_one_that_is_closed_is_an_error(self, transport: Transport, end: Step) -> None:
        async with ScriptedEngine([end]) as engine:
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await fetch(transport, engine.url)
        assert len(engine.requests) == 1

    @pytest.mark.parametrize("end", [Step.RESET, Step.FIN])
    async def test_no_retry_once_a_byte_came(self, transport: Transport, end: Step) -> None:
        async with ScriptedEngine([[OK], [b"HTTP/1.1 2", 0.02, end], [OK]]) as engine:
            await fetch(transport, engine.url)
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await fetch(transport, engine.url)
        assert len(engine.requests) == 2

    async def test_no_retry_of_a_body_that_came_in_pieces(self, transport: Transport) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"once"

        async with ScriptedEngine([[OK], [Step.RESET], [OK]]) as engine:
            await fetch(transport, engine.url)
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await fetch(transport, engine.url, pieces())
        assert [request.body for request in engine.requests] == [b"{}", b"once"]


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


class TestLeaving:
    async def test_closing_a_reply_closes_its_connection_at_once(self, transport: Transport) -> None:
        async with ScriptedEngine([SSE_HEAD, chunk(b"a"), Step.HANG]) as engine:
            response = await ask(transport, engine.url)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for piece in response.stream:
                assert piece == b"a"
                break
            await response.stream.aclose()
            await engine.gone(1)
            assert engine.connections[0].closed in (Close.FIN, Close.RESET)

    @pytest.mark.parametrize("script", [[Step.HANG], [SSE_HEAD, chunk(b"a"), Step.HANG]], ids=["head", "body"])
    async def test_cancellation_closes_the_connection(self, transport: Transport, script: AnyScript) -> None:
        async with ScriptedEngine(script) as engine:
            with anyio.move_on_after(0.1) as scope:
                await fetch(transport, engine.url)
            assert scope.cancelled_caught
            await engine.gone(1)
            engine.script = [OK]
            assert (await fetch(transport, engine.url)).body == b"ok"

    async def test_cancellation_while_connecting(self, transport: Transport) -> None:
        async def cancelled(url: str) -> None:
            with anyio.move_on_after(0.1) as scope:
                await fetch(transport, url)
            assert scope.cancelled_caught

        with full_backlog() as url:
            await cancelled(url)  # the event loop opens files of its own the first time
            before = open_files()
            await asyncio.gather(*(cancelled(url) for _ in range(10)))
            await eventually(lambda: open_files() <= before)

    async def test_cancellation_at_any_time_leaves_the_pool_whole(self, transport: Transport) -> None:
        chance = random.Random(1)

        async def cancelled(url: str) -> None:
            with anyio.move_on_after(chance.uniform(0, 0.1)):
                await fetch(transport, url)

        async with ScriptedEngine([0.02, SSE_HEAD, 0.02, chunk(b"a"), 0.02, chunk(b"b") + LAST_CHUNK]) as engine:
            for _ in range(6):
                await asyncio.gather(*(cancelled(engine.url) for _ in range(50)))
            got = [(await fetch(transport, engine.url)).body for _ in range(20)]
            await eventually(lambda: engine.running == 0)
            await transport.aclose()
            await eventually(lambda: not any(connection.open for connection in engine.connections))
        assert got == [b"ab"] * 20


class TestFlow:
    async def test_an_engine_waits_for_a_client_that_does_not_read(self, transport: Transport) -> None:
        part = b"x" * 65536

        async def endless(request: Request, connection: Connection) -> None:
            await connection.send(http_ok(f"Content-Length: {3200 * len(part)}"))
            for _ in range(3200):
                await connection.send(part)

        async with ScriptedEngine(endless) as engine:
            response = await ask(transport, engine.url)
            connection = engine.connections[0]
            await eventually(lambda: connection.sent_bytes > len(part))
            await asyncio.sleep(0.5)
            assert connection.sent_bytes < 16_000_000
            blocked_at = connection.sent_bytes
            read = 0
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for piece in response.stream:
                read += len(piece)
                if read > 2 * blocked_at:
                    break
            await response.stream.aclose()
            await engine.gone(1)

    async def test_a_request_waits_for_an_engine_that_does_not_read(self, transport: Transport) -> None:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 65536
                yield b"x" * 65536

        with socket.create_server(("127.0.0.1", 0)) as listener, anyio.move_on_after(0.5):
            await fetch(transport, f"http://127.0.0.1:{listener.getsockname()[1]}", endless())
        assert 65536 < sent < 16_000_000

    @NATIVE
    async def test_a_reply_that_comes_before_the_request_was_sent(self, transport: Transport) -> None:
        """An engine may refuse a body unread. What it did not read must not hold up the next request."""
        over = asyncio.Event()
        replies = [reply(b"too large", status=413), OK]

        async def answer_unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(replies.pop(0))
            await over.wait()
            writer.transport.abort()

        server = await asyncio.start_server(answer_unread, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server:
            try:
                refused = await fetch(transport, url, b"x" * 64_000_000, read=2)
                assert (refused.status, refused.body) == (413, b"too large")
                assert (await fetch(transport, url, read=2)).body == b"ok"
            finally:
                over.set()
                await asyncio.sleep(0.05)
