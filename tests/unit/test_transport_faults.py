"""What every transport makes of replies that are not HTTP, are cut, or do not come."""

import asyncio

import pytest

from gateway.upstream.http import httpx
from tests.support.backlog import full_backlog
from tests.support.engine import AnyScript, ScriptedEngine, Step
from tests.support.sse import LAST_CHUNK, SSE_HEAD, chunk, http_ok, reply
from tests.support.transports import ask, fetch, take

pytestmark = pytest.mark.anyio

Transport = httpx.AsyncBaseTransport
OK = reply(b"ok")

GARBAGE = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n",
    "HTML": b"<html><body>hello</body></html>\r\n\r\n",
    "line ends": b"\r\n" * 50_000,
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status below all": b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n",
    "a length that is no number": http_ok("Content-Length: many") + b"a",
    "a negative length": http_ok("Content-Length: -1") + b"a",
    "two lengths": http_ok("Content-Length: 1", "Content-Length: 2") + b"ab",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
    "a large header": http_ok("X-Large: " + 300_000 * "a"),
    "many headers": http_ok(*(f"X-{n}: {n}" for n in range(20_000))),
    "an endless header": b"HTTP/1.1 200 OK\r\nX-Endless: " + 2_000_000 * b"a",
}
GARBAGE_TO_NATIVE = {
    "another version": b"HTTP/3.7 200 OK\r\n\r\n",
    "a head above the limit": http_ok("X-Large: " + 70_000 * "a"),
    "endless interim heads": b"HTTP/1.1 102 Processing\r\n\r\n" * 50_000,
}
"""What the stock transport lets through."""
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
    "a size that is too large": SSE_HEAD + chunk(b"abcd") + b"fffffffffffffffffffffffff\r\n",
}


class TestBrokenReplies:
    @pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE)
    async def test_what_is_no_reply_is_an_error(self, transport: Transport, raw: bytes) -> None:
        async with ScriptedEngine([[raw, Step.HANG], [OK]]) as engine:
            with pytest.raises(httpx.RemoteProtocolError):
                await fetch(transport, engine.url, read=3)
            await asyncio.wait_for(engine.connections[0].wait_closed(), 1)
            assert (await fetch(transport, engine.url)).body == b"ok"

    @pytest.mark.parametrize("transport", ["native"], indirect=True)
    @pytest.mark.parametrize("raw", GARBAGE_TO_NATIVE.values(), ids=GARBAGE_TO_NATIVE)
    async def test_what_only_the_native_one_refuses(self, transport: Transport, raw: bytes) -> None:
        await self.test_what_is_no_reply_is_an_error(transport, raw)

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

    async def test_a_reset_is_not_the_end_of_a_body(self, transport: Transport) -> None:
        async with ScriptedEngine([http_ok() + b"abcd", 0.05, Step.RESET]) as engine:
            pieces: list[bytes] = []
            with pytest.raises(httpx.ReadError):
                await take(await ask(transport, engine.url), pieces)
        assert b"".join(pieces) == b"abcd"

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
