"""What every transport does with connections: reuse, failures, limits, cancellation, flow control, TLS."""

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import pytest
import trustme

from gateway.upstream.http import httpx
from tests.support.engine import AnyScript, Close, Connection, Request, ScriptedEngine, Step
from tests.support.sse import LAST_CHUNK, SSE_HEAD, chunk, chunked, http_ok, reply, sse_reply
from tests.support.transports import TRANSPORTS, ask, fetch, make_transport, take
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

Transport = httpx.AsyncBaseTransport
OK = reply(b"ok")
NATIVE = pytest.mark.parametrize("transport", ["native"], indirect=True)
"""For what the stock transport does not do: send a request again, close idle connections by itself."""


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
            OK + b"more",
            OK + OK,
            SSE_HEAD + chunked(b"ok") + b"\r\n",
        ],
        ids=["close", "Close", "1.0", "more", "another", "line"],
    )
    async def test_one_that_may_not_be_reused_is_not(self, transport: Transport, raw: bytes) -> None:
        async with ScriptedEngine([[raw], [OK]]) as engine:
            got = [(await fetch(transport, engine.url)).body for _ in range(2)]
            async with asyncio.timeout(2):
                await engine.connections[0].wait_closed()
        assert got == [b"ok", b"ok"]
        assert len(engine.connections) == 2

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
            await asyncio.sleep(random.uniform(0, 0.05))  # noqa: RUF100, S311
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

    @NATIVE
    async def test_an_idle_one_is_closed_after_a_while(self, transport: Transport) -> None:
        from gateway.upstream.transport import NativeTransport

        async with ScriptedEngine([OK]) as engine, NativeTransport(keepalive_expiry=0.1) as brief:
            await fetch(brief, engine.url)
            assert engine.connections[0].open
            await engine.gone(1)

    async def test_closing_the_transport_closes_all(self, transport: Transport) -> None:
        async with ScriptedEngine([[OK], [SSE_HEAD, Step.HANG]]) as engine:
            await fetch(transport, engine.url)
            response = await ask(transport, engine.url)
            idle = await asyncio.gather(
                ask(transport, engine.url), fetch(transport, f"{engine.url}/x", read=0.2), return_exceptions=True
            )
            await transport.aclose()
            await engine.gone(1)
            for left in (response, idle[0]):
                assert isinstance(left, httpx.Response)
                with pytest.raises(httpx.TransportError):
                    await take(left)


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


GARBAGE = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n",
    "HTML": b"<html><body>hello</body></html>\r\n\r\n",
    "line ends": b"\r\n\r\n\r\n\r\n" * 100,
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "another version": b"HTTP/3.7 200 OK\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n",
    "a length that is no number": http_ok("Content-Length: many") + b"a",
    "a negative length": http_ok("Content-Length: -1") + b"a",
    "two lengths": http_ok("Content-Length: 1", "Content-Length: 2") + b"ab",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
    "a large header": http_ok("X-Large: " + 100_000 * "a"),
    "many headers": http_ok(*(f"X-{n}: {n}" for n in range(20_000))),
    "an endless header": b"HTTP/1.1 200 OK\r\nX-Endless: " + 2_000_000 * b"a",
    "endless interim heads": b"HTTP/1.1 102 Processing\r\n\r\n" * 50_000,
}
CUT = {
    "in a chunk": SSE_HEAD + chunk(b"ab") + b"ff\r\ncd",
    "between chunks": SSE_HEAD + chunk(b"ab") + chunk(b"cd"),
    "before a chunk's line end": SSE_HEAD + chunk(b"ab") + b"2\r\ncd",
    "before the last line end": SSE_HEAD + chunk(b"abcd") + b"0\r\n",
    "before its length": http_ok("Content-Length: 5") + b"abcd",
}
BAD_BODIES = {
    "a size that is no number": SSE_HEAD + chunk(b"abcd") + b"xyz\r\n",
    "a chunk longer than its size": SSE_HEAD + b"4\r\nabcdefg\r\n",
    "a size that is too large": SSE_HEAD + chunk(b"abcd") + b"fffffffffffffffff\r\n",
}


class TestBrokenReplies:
    @pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE)
    async def test_what_is_no_reply_is_an_error(self, transport: Transport, raw: bytes) -> None:
        async with ScriptedEngine([[raw, Step.HANG], [OK]]) as engine:
            with pytest.raises(httpx.RemoteProtocolError):
                await fetch(transport, engine.url, read=3)
            await asyncio.wait_for(engine.connections[0].wait_closed(), 1)
            assert (await fetch(transport, engine.url)).body == b"ok"

    @pytest.mark.parametrize("end", [Step.RESET, Step.FIN])
    @pytest.mark.parametrize("raw", CUT.values(), ids=CUT)
    async def test_a_body_that_is_cut_is_an_error_after_what_came(
        self, transport: Transport, raw: bytes, end: Step
    ) -> None:
        async with ScriptedEngine([[raw, 0.05, end], [OK]]) as engine:
            response = await ask(transport, engine.url)
            pieces: list[bytes] = []
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await take(response, pieces)
            assert (response.status_code, b"".join(pieces)) == (200, b"abcd")
            assert (await fetch(transport, engine.url)).body == b"ok"

    @pytest.mark.parametrize("raw", BAD_BODIES.values(), ids=BAD_BODIES)
    async def test_a_body_that_is_not_framed_is_an_error_after_what_came(
        self, transport: Transport, raw: bytes
    ) -> None:
        async with ScriptedEngine([raw, Step.HANG]) as engine:
            pieces: list[bytes] = []
            with pytest.raises(httpx.RemoteProtocolError):
                await take(await ask(transport, engine.url, read=3), pieces)
            assert b"".join(pieces) == b"abcd"
            await engine.gone(1)

    @pytest.mark.parametrize("raw", [b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"])
    async def test_a_head_that_is_cut_is_an_error(self, transport: Transport, raw: bytes) -> None:
        async with ScriptedEngine([raw, 0.02, Step.FIN]) as engine:
            with pytest.raises(httpx.RemoteProtocolError):
                await fetch(transport, engine.url)
        assert len(engine.requests) == 1


@contextmanager
def full_backlog() -> Iterator[str]:
    """The URL of a listener that lets no further connection in, as an engine does that hangs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()


class TestLimits:
    @pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[::1]:1/", "http://engine.invalid/"])
    async def test_no_connection(self, transport: Transport, url: str) -> None:
        with pytest.raises(httpx.ConnectError):
            await fetch(transport, url)

    async def test_no_connection_in_time(self, transport: Transport) -> None:
        with full_backlog() as url, pytest.raises(httpx.ConnectTimeout):
            async with asyncio.timeout(5):
                await fetch(transport, url, connect=0.2)

    @pytest.mark.parametrize("script", [[Step.HANG], [b"HTTP/1.1 ", Step.HANG], [SSE_HEAD, chunk(b"a"), Step.HANG]])
    async def test_no_byte_in_time(self, transport: Transport, script: AnyScript) -> None:
        async with asyncio.timeout(5), ScriptedEngine(script) as engine:
            with pytest.raises(httpx.ReadTimeout):
                await fetch(transport, engine.url, read=0.2)
            await engine.gone(1)
        assert len(engine.requests) == 1

    async def test_the_read_limit_is_between_reads(self, transport: Transport) -> None:
        script = [0.2, SSE_HEAD, 0.2, chunk(b"a"), 0.2, chunk(b"b"), 0.2, LAST_CHUNK]
        async with ScriptedEngine(script) as engine:
            assert (await fetch(transport, engine.url, read=0.5)).body == b"ab"

    async def test_without_limits_a_reply_may_take_its_time(self, transport: Transport) -> None:
        async with ScriptedEngine([0.3, OK]) as engine:
            assert (await fetch(transport, engine.url, connect=None, read=None)).body == b"ok"


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
        with full_backlog() as url, anyio.move_on_after(0.1) as scope:
            await fetch(transport, url)
        assert scope.cancelled_caught

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


class TestAddresses:
    @pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"])
    async def test_proxies_of_the_environment_are_not_used(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        async with ScriptedEngine([OK]) as engine:
            assert (await fetch(transport, engine.url)).body == b"ok"
            client = httpx.AsyncClient(transport=transport)
            assert (await client.post(engine.url, json={})).text == "ok"

    async def test_localhost_when_the_engine_listens_on_ipv4_only(self, transport: Transport) -> None:
        async with ScriptedEngine([OK]) as engine:
            assert (await fetch(transport, f"http://localhost:{engine.port}/")).body == b"ok"
        assert engine.requests[0].headers.all("host") == [f"localhost:{engine.port}"]

    async def test_ipv6(self, transport: Transport) -> None:
        try:
            engine = await ScriptedEngine([OK], host="::1").__aenter__()
        except OSError:
            return  # a machine without IPv6
        async with engine:
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert engine.requests[0].headers.all("host") == [f"[::1]:{engine.port}"]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("name", TRANSPORTS)
class TestTls:
    async def test_a_trusted_engine(self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
        body = b"x" * 500_000
        async with (
            make_transport(name, verify=trusting(authority)) as transport,
            ScriptedEngine([[reply(body)], [sse_reply(b"a")]], tls=server_tls) as engine,
        ):
            assert (await fetch(transport, engine.url, body)).body == body
            assert (await fetch(transport, engine.url)).body == b"a"
        assert len(engine.connections) == 1
        assert engine.requests[0].body == body

    async def test_a_reply_that_is_cut(self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
        async with (
            make_transport(name, verify=trusting(authority)) as transport,
            ScriptedEngine([SSE_HEAD, chunk(b"a"), 0.02, Step.FIN], tls=server_tls) as engine,
        ):
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await fetch(transport, engine.url)

    async def test_an_engine_of_another_authority(
        self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext
    ) -> None:
        async with (
            make_transport(name, verify=trusting(trustme.CA())) as transport,
            ScriptedEngine([OK], tls=server_tls) as engine,
        ):
            with pytest.raises(httpx.ConnectError):
                await fetch(transport, engine.url)
        assert engine.requests == []

    async def test_an_engine_of_another_name(
        self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext
    ) -> None:
        async with (
            make_transport(name, verify=trusting(authority)) as transport,
            ScriptedEngine([OK], tls=server_tls) as engine,
        ):
            with pytest.raises(httpx.ConnectError):
                await fetch(transport, f"https://localhost:{engine.port}")
        assert engine.requests == []

    async def test_an_engine_that_is_not_checked(self, name: str, server_tls: ssl.SSLContext) -> None:
        async with make_transport(name, verify=False) as transport, ScriptedEngine([OK], tls=server_tls) as engine:
            assert (await fetch(transport, engine.url)).body == b"ok"

    async def test_an_engine_without_tls(self, name: str, authority: trustme.CA) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            asyncio.get_running_loop().call_later(0.1, listener.close)
            async with make_transport(name, verify=trusting(authority)) as transport:
                with pytest.raises(httpx.ConnectError):
                    await fetch(transport, f"https://127.0.0.1:{listener.getsockname()[1]}")
