"""What every transport does with requests and replies; the files beside this one have the rest."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from gateway.upstream.http import httpx
from tests.support.engine import Connection, Request, ScriptedEngine, Step
from tests.support.sse import LAST_CHUNK, SSE_HEAD, chunk, chunked, http_ok, json_reply, reply
from tests.support.transports import ask, fetch
from tests.support.wire import Recording, recordings

pytestmark = pytest.mark.anyio

Transport = httpx.AsyncBaseTransport
OK = reply(b"ok")
CHUNKED = http_ok("Transfer-Encoding: chunked")


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class TestRequests:
    async def test_get(self, transport: Transport) -> None:
        async with ScriptedEngine(model="tiny") as engine:
            got = await fetch(transport, f"{engine.url}/v1/models", None, method="GET", headers={"Accept": "a/b"})
        assert (got.status, b'"id":"tiny"' in got.body) == (200, True)
        (request,) = engine.probes
        assert request.head.startswith(b"GET /v1/models HTTP/1.1\r\n")
        assert sorted(request.headers) == [("accept", "a/b"), ("host", f"127.0.0.1:{engine.port}")]
        assert request.body == b""

    @pytest.mark.parametrize("body", [b"", b"{}", '{"a":"漢"}'.encode(), b"\0\r\n\r\n" * 500_000], ids=len)
    async def test_a_body_of_bytes_goes_with_its_length(self, transport: Transport, body: bytes) -> None:
        async with ScriptedEngine([OK]) as engine:
            assert (await fetch(transport, f"{engine.url}/v1/chat/completions", body)).body == b"ok"
        (request,) = engine.requests
        assert request.body == body
        assert request.headers.all("content-length") == [str(len(body))]
        assert request.headers.all("host") == [f"127.0.0.1:{engine.port}"]
        assert "transfer-encoding" not in request.headers

    async def test_a_body_in_pieces_goes_in_chunks(self, transport: Transport) -> None:
        async with ScriptedEngine([OK]) as engine:
            await fetch(transport, engine.url, pieces(b"one ", b"", b"two"))
        (request,) = engine.requests
        assert request.body == b"one two"
        assert request.headers.all("transfer-encoding") == ["chunked"]
        assert "content-length" not in request.headers

    async def test_a_body_in_pieces_of_known_length_goes_as_it_is(self, transport: Transport) -> None:
        async with ScriptedEngine([OK]) as engine:
            await fetch(transport, engine.url, pieces(b"one ", b"two"), headers={"Content-Length": "7"})
        (request,) = engine.requests
        assert request.body == b"one two"
        assert "transfer-encoding" not in request.headers

    @pytest.mark.parametrize(
        ("url", "target"),
        [
            ("", "/"),
            ("/", "/"),
            ("/a/b?c=d&e", "/a/b?c=d&e"),
            ("/a%2Fb%20c?q=%E6%BC%A2", "/a%2Fb%20c?q=%E6%BC%A2"),
            ("/a?b#c", "/a?b"),
        ],
    )
    async def test_the_target_is_that_of_the_url(self, transport: Transport, url: str, target: str) -> None:
        async with ScriptedEngine([OK]) as engine:
            await fetch(transport, engine.url + url)
        assert engine.requests[0].path == target

    async def test_headers_keep_their_case_order_and_repetition(self, transport: Transport) -> None:
        async with ScriptedEngine([OK]) as engine:
            await fetch(transport, engine.url, headers=[("X-Bb", "1"), ("x-aa", "2"), ("X-bB", "3")])
        assert b"\r\nX-Bb: 1\r\nx-aa: 2\r\nX-bB: 3\r\n" in engine.requests[0].head

    @pytest.mark.parametrize("value", ["a\r\nX-More: b", "a\nb", "a\0b"])
    async def test_a_header_cannot_smuggle_another(self, transport: Transport, value: str) -> None:
        async with ScriptedEngine([OK]) as engine:
            with pytest.raises(httpx.LocalProtocolError):
                await fetch(transport, engine.url, headers={"X-One": value})
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert len(engine.requests) == 1

    async def test_a_body_that_fails_ends_the_request(self, transport: Transport) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"a"
            raise RuntimeError("no more")

        async with ScriptedEngine([OK]) as engine:
            with pytest.raises(RuntimeError, match="no more"):
                await fetch(transport, engine.url, broken())
            async with asyncio.timeout(1):
                await engine.connections[0].wait_closed()
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert len(engine.requests) == 1

    async def test_only_http_and_https_are_reached(self, transport: Transport) -> None:
        with pytest.raises(httpx.UnsupportedProtocol):
            await fetch(transport, "ftp://127.0.0.1/")


REPLIES: dict[str, tuple[bytes, int, bytes]] = {
    "with its length": (reply(b"abc", "X-A: b"), 200, b"abc"),
    "with an empty body": (reply(b""), 200, b""),
    "in chunks": (CHUNKED + chunked(b"a", b"bc"), 200, b"abc"),
    "in no chunks": (CHUNKED + LAST_CHUNK, 200, b""),
    "in chunks with extensions and trailers": (
        CHUNKED + b'1;x\r\na\r\n002;y="z;"\r\nbc\r\n0;last\r\nX-T: 1\r\nX-U: 2\r\n\r\n',
        200,
        b"abc",
    ),
    "in chunks with sizes in both cases": (
        CHUNKED + b"A\r\n0123456789\r\n00b\r\nabcdefghijk\r\n0\r\n\r\n",
        200,
        b"0123456789abcdefghijk",
    ),
    "in chunks spelt otherwise": (http_ok("transfer-encoding:Chunked") + chunked(b"abc"), 200, b"abc"),
    "until the connection is closed": (http_ok("Content-Type: a/b") + b"abc", 200, b"abc"),
    "until the connection is closed and empty": (http_ok(), 200, b""),
    "of HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nabc", 200, b"abc"),
    "of HTTP/1.0 with its length": (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc"),
    "without content": (http_ok(status=204), 204, b""),
    "not modified": (http_ok('ETag: "a"', status=304), 304, b""),
    "after a 100": (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"abc"), 200, b"abc"),
    "after a 102 and a 103": (
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + reply(b"abc"),
        200,
        b"abc",
    ),
    "without a reason": (b"HTTP/1.1 200 \r\nContent-Length: 3\r\n\r\nabc", 200, b"abc"),
    "with an odd reason": (b"HTTP/1.1 299 \xc3\xa9t\xc3\xa9 OK\r\nContent-Length: 3\r\n\r\nabc", 299, b"abc"),
    "with spaces around values": (b"HTTP/1.1 200 OK\r\nContent-Length: \t 3 \t\r\nX-A:\r\n\r\nabc", 200, b"abc"),
    "with an error": (json_reply({"error": "no"}, 503), 503, b'{"error":"no"}'),
    "compressed": (reply(gzip.compress(b"abc"), "Content-Encoding: gzip"), 200, gzip.compress(b"abc")),
    "with line ends in its body": (reply(b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), 200, b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
}


def needs_close(raw: bytes) -> bool:
    head = raw.lower()
    return b"content-length" not in head and b"chunked" not in head and b" 204 " not in head and b" 304 " not in head


@pytest.mark.parametrize(("raw", "status", "body"), REPLIES.values(), ids=REPLIES)
class TestReplies:
    async def test_in_one_write(self, transport: Transport, raw: bytes, status: int, body: bytes) -> None:
        async with ScriptedEngine([raw, *([Step.FIN] if needs_close(raw) else [])]) as engine:
            got = await fetch(transport, engine.url)
        assert (got.status, got.body) == (status, body)

    async def test_byte_by_byte(self, transport: Transport, raw: bytes, status: int, body: bytes) -> None:
        steps = [step for byte in raw for step in (bytes([byte]), 0.0)]
        async with ScriptedEngine([*steps, *([Step.FIN] if needs_close(raw) else [])]) as engine:
            got = await fetch(transport, engine.url)
        assert (got.status, got.body) == (status, body)


class TestHeads:
    async def test_headers_come_as_they_were_sent(self, transport: Transport) -> None:
        lines = ["X-A: 1", "Set-Cookie: a=b", "x-a: 2", "Set-Cookie: c=d", "X-Text: caf\xe9", "X-Empty:"]
        async with ScriptedEngine([reply(b"", *lines)]) as engine:
            got = await fetch(transport, engine.url)
        assert got.headers.get_list("set-cookie") == ["a=b", "c=d"]
        assert got.headers.get_list("x-a") == ["1", "2"]
        assert (b"X-Text", b"caf\xe9") in got.headers.raw
        assert got.headers["x-empty"] == ""
        assert len(got.headers.raw) == len(lines) + 1

    async def test_interim_heads_and_trailers_are_no_headers(self, transport: Transport) -> None:
        interim = b"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n"
        raw = interim + http_ok("X-Head: 1", "Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\nX-Trailer: 1\r\n\r\n"
        async with ScriptedEngine([raw]) as engine:
            got = await fetch(transport, engine.url)
        assert [name.lower() for name in got.headers] == ["x-head", "transfer-encoding"]

    @pytest.mark.parametrize(
        "raw", [reply(b"abcdef", "X-A: b"), CHUNKED + chunked(b"ab", b"cdef")], ids=["length", "chunked"]
    )
    async def test_any_split_makes_the_same_reply(self, transport: Transport, raw: bytes) -> None:
        splits = iter(range(1, len(raw)))

        async def in_two(request: Request, connection: Connection) -> None:
            split = next(splits)
            await connection.send(raw[:split])
            await asyncio.sleep(0.001)
            await connection.send(raw[split:])

        async with ScriptedEngine(in_two) as engine:
            got = [await fetch(transport, engine.url) for _ in range(1, len(raw))]
        assert {(answer.status, answer.body) for answer in got} == {(200, b"abcdef")}
        assert len(engine.connections) == 1


class TestBodies:
    async def test_each_piece_comes_when_it_was_sent(self, transport: Transport) -> None:
        taken = asyncio.Queue[bytes]()

        async def in_step(request: Request, connection: Connection) -> None:
            await connection.send(SSE_HEAD)
            assert await taken.get() == b"head"
            for part in (b"one", b"two", b"three"):
                await connection.send(chunk(part))
                assert await taken.get() == part
            await connection.send(LAST_CHUNK)

        async with asyncio.timeout(5), ScriptedEngine(in_step) as engine:
            response = await ask(transport, engine.url)
            taken.put_nowait(b"head")
            assert isinstance(response.stream, httpx.AsyncByteStream)
            async for piece in response.stream:
                taken.put_nowait(piece)
            await response.stream.aclose()

    async def test_many_chunks_in_one_write(self, transport: Transport) -> None:
        parts = [b"%d," % number for number in range(5_000)]
        async with ScriptedEngine([CHUNKED + chunked(*parts)]) as engine:
            assert (await fetch(transport, engine.url)).body == b"".join(parts)

    @pytest.mark.parametrize("framing", ["length", "chunked", "close"])
    async def test_a_large_body(self, transport: Transport, framing: str) -> None:
        body = bytes(range(256)) * 8192
        raw = {"length": reply(body), "chunked": CHUNKED + chunked(body[:1], body[1:]), "close": http_ok() + body}
        script = [raw[framing], *([Step.FIN] if framing == "close" else [])]
        async with ScriptedEngine(script) as engine:
            assert (await fetch(transport, engine.url)).body == body

    async def test_a_client_decodes_what_was_compressed(self, transport: Transport) -> None:
        raw = json_reply({"a": 1})
        body = gzip.compress(raw[raw.index(b"{") :])
        async with ScriptedEngine([reply(body, "Content-Encoding: gzip")]) as engine:
            response = await httpx.AsyncClient(transport=transport).post(engine.url, json={})
        assert response.json() == {"a": 1}


@pytest.mark.parametrize(
    "recorded", [one for one in recordings() if one.reply.complete and one.method != "HEAD"], ids=str
)
async def test_what_real_engines_send(transport: Transport, recorded: Recording) -> None:
    async with ScriptedEngine(recorded.script()) as engine:
        got = await fetch(transport, engine.url)
    assert (got.status, got.body) == (recorded.status, recorded.body)
    assert [(name.lower(), value) for name, value in got.headers.multi_items()] == recorded.headers
