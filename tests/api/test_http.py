"""HTTP as clients speak it, well and badly: framing, keep-alive, pipelining, `Expect`, offers of other protocols."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, encode_request, get, post_json
from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, RunningGateway, gateway
from tests.support.sse import DONE, FIN, LAST_CHUNK, ROLE, SSE_HEAD, T, chunk, chunked, is_clean, joined
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

BODY = json.dumps(REQ).encode()
CHUNKED = {"Transfer-Encoding": "chunked"}
KEY = {"keys": [{"name": "laptop", "key": "sk-of-a-client"}]}
AUTH = {"Authorization": "Bearer sk-of-a-client"}


def post(*lines: str, body: bytes = BODY, version: str = "1.1") -> bytes:
    """A chat request with exactly these header lines after `Host`."""
    head = "\r\n".join([f"POST {CHAT} HTTP/{version}", "Host: sluice.test", *lines, "", ""])
    return head.encode("latin-1") + body


LENGTH = f"Content-Length: {len(BODY)}"


@dataclass
class Served:
    engine: ScriptedEngine
    sluice: RunningGateway

    @property
    def port(self) -> int:
        return self.sluice.port


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
        yield Served(engine, sluice)


@pytest.fixture(autouse=True)
def nothing_asked_yet(served: Served) -> None:
    served.engine.requests.clear()


async def next_reply(client: RawClient, method: str = "GET") -> Reply:
    """The reply after the last one on a connection."""
    rest = client.reply.rest if client.reply.complete else b""
    client.reply = Reply(method)
    if rest:
        client.reply.read(rest)
    return await client.finish()


async def ended(client: RawClient, timeout: float = 5.0) -> bool:
    """Whether the gateway ends the connection without a further byte."""
    async with asyncio.timeout(timeout):
        try:
            return not client.reply.rest and not await client.read()
        except ConnectionResetError:
            return True


NOT_HTTP = {
    **{f"a length of {value!r}": post(f"Content-Length: {value}") for value in ("abc", "-5", "+5", "0x39", "5e1", "")},
    "a length beyond all numbers": post(f"Content-Length: {'9' * 20}"),
    "two lengths in one line": post("Content-Length: 57, 57"),
    "two different lengths": post(LENGTH, "Content-Length: 3"),
    "the same length twice": post(LENGTH, LENGTH),
    "a length and chunks": post(LENGTH, "Transfer-Encoding: chunked", body=chunked(BODY)),
    "chunks and a length": post("Transfer-Encoding: chunked", LENGTH, body=chunked(BODY)),
    "chunked not at the end": post("Transfer-Encoding: chunked, identity", body=chunked(BODY)),
    "another encoding": post("Transfer-Encoding: xchunked", body=chunked(BODY)),
    "a chunk size that is no number": post("Transfer-Encoding: chunked", body=b"zz\r\n" + BODY),
    "a negative chunk size": post("Transfer-Encoding: chunked", body=b"-1\r\n" + BODY),
    "a chunk size beyond all numbers": post("Transfer-Encoding: chunked", body=b"f" * 17 + b"\r\n" + BODY),
    "a chunk longer than its size": post("Transfer-Encoding: chunked", body=b"2\r\nabcd\r\n0\r\n\r\n"),
    "a folded header": post("X-A: b\r\n folded", LENGTH),
    "a NUL in a header": post("X-A: b\0c", LENGTH),
    "a bare CR in a header": post("X-A: b\rX-Inject: c", LENGTH),
    "a bare LF in a header": post("X-A: b\nX-Inject: c", LENGTH),
    "a blank before the colon": post("X-A : b", LENGTH),
    "a blank in a name": post("X A: b", LENGTH),
    "a line without a colon": post("X-A", LENGTH),
    "a name of nothing": post(": b", LENGTH),
    "a name in another alphabet": post("X-\xe9: b", LENGTH),
    "line ends without CR": post(LENGTH).replace(b"\r\n", b"\n"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50,
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a greeting": b"hello\r\n\r\n",
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_what_is_not_http_gets_a_400(served: Served, data: bytes) -> None:
    async with RawClient(served.port) as client:
        await client.send(data)
        reply = await client.finish()
    assert (reply.status, error_of(reply)["code"]) == (400, "invalid_http")
    assert reply.headers.get("connection") == "close"
    assert not served.engine.requests


async def test_what_is_not_http_gets_no_second_answer(served: Served) -> None:
    async def talk(data: bytes) -> bool:
        async with RawClient(served.port) as client:
            await client.send(data)
            await client.finish()
            return await ended(client)

    assert await asyncio.gather(*map(talk, NOT_HTTP.values())) == [True] * len(NOT_HTTP)
    assert not served.engine.requests
    assert (await post_json(served.port, CHAT, REQ)).status == 200


class TestChunkedUploads:
    @pytest.mark.parametrize(
        "body",
        [
            chunked(BODY),
            chunked(BODY[:1], BODY[1:]),
            b"".join(chunk(BODY[i : i + 1]) for i in range(len(BODY))) + LAST_CHUNK,
            b"%X;name=value\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
            b"0000%x\r\n%b\r\n0\r\nX-Trailer: a\r\nAuthorization: Bearer b\r\n\r\n" % (len(BODY), BODY),
        ],
        ids=["one", "two", "byte by byte", "with an extension", "with trailers"],
    )
    async def test_reach_the_engine_as_one_body_with_a_length(self, served: Served, body: bytes) -> None:
        async with RawClient(served.port) as client:
            await client.send(post("Transfer-Encoding: chunked", body=body))
            assert (await client.finish()).status == 200
            assert (await again(client)).status == 200
        request = served.engine.requests[0]
        assert request.body == BODY
        assert request.headers.all("content-length") == [str(len(BODY))]
        assert not {"transfer-encoding", "x-trailer", "trailer", "authorization"} & {
            name for name, _ in request.headers
        }

    async def test_may_come_in_any_pieces(self, served: Served) -> None:
        data = post("Transfer-Encoding: chunked", body=chunked(BODY[:20], BODY[20:]))
        async with RawClient(served.port) as client:
            for i in range(0, len(data), 3):
                await client.send(data[i : i + 3])
                await asyncio.sleep(0)
            assert (await client.finish()).status == 200
        assert [request.body for request in served.engine.requests] == [BODY]


class TestBodiesThatStop:
    async def test_a_body_that_stops_coming_is_a_408(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"body_timeout": 0.2}) as sluice:
            for data in (post("Content-Length: 500"), post("Transfer-Encoding: chunked", body=chunk(BODY))):
                async with RawClient(sluice.port) as client:
                    await client.send(data)
                    reply = await client.finish()
                    assert (reply.status, error_of(reply)["code"]) == (408, "request_timeout")
            assert not engine.requests
            assert (await post_json(sluice.port, CHAT, REQ)).status == 200

    async def test_a_slow_body_that_keeps_coming_is_taken(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"body_timeout": 0.5}) as sluice:
            async with RawClient(sluice.port) as client:
                await client.send(post(LENGTH, body=b""))
                for i in range(0, len(BODY), 8):
                    await client.send(BODY[i : i + 8])
                    await asyncio.sleep(0.1)
                assert (await client.finish()).status == 200
            assert [request.body for request in engine.requests] == [BODY]

    @pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["FIN", "RST"])
    async def test_a_client_that_leaves_in_its_body_is_no_error(self, leave: object) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            async with RawClient(sluice.port) as client:
                await client.send(post("Content-Length: 500"))
                await asyncio.sleep(0.05)
                leave(client)  # type: ignore[operator]
                record = await sluice.record()
            assert (record["outcome"], record["status"], record["level"]) == ("cancelled", 499, "info")
            assert not engine.requests


async def test_header_values_in_other_alphabets_are_no_problem_and_go_nowhere(served: Served) -> None:
    data = post(LENGTH).replace(b"Host:", "X-User: Zoë 漢\r\nX-Latin: ".encode() + b"\xe9\r\nHost:")
    async with RawClient(served.port) as client:
        await client.send(data)
        assert (await client.finish()).status == 200
    (request,) = served.engine.requests
    assert request.head.isascii()


class TestExpect:
    async def test_100_comes_at_once_when_the_body_is_wanted(self) -> None:
        body = json.dumps({**REQ, "padding": "x" * 5_000_000}).encode()
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEY) as sluice:
            async with RawClient(sluice.port) as client:
                headers = {**AUTH, "Expect": "100-continue", "Content-Length": str(len(body))}
                await client.send(encode_request("POST", CHAT, b"", headers))
                async with asyncio.timeout(5):
                    assert await client.read() == b"HTTP/1.1 100 Continue\r\n\r\n"
                await client.send(body)
                assert (await client.finish()).status == 200
            (request,) = engine.requests
            assert request.body == body
            assert "expect" not in request.headers

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Authorization": "Bearer sk-of-nobody"}, 401),
            ({}, 401),
            ({**AUTH, "Content-Length": "100000000"}, 413),
            ({**AUTH, "Content-Encoding": "gzip"}, 415),
        ],
    )
    async def test_no_100_when_it_is_not(self, headers: dict[str, str], status: int) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEY) as sluice:
            async with RawClient(sluice.port) as client:
                expecting = {"Expect": "100-continue", "Content-Length": "500", **headers}
                await client.send(encode_request("POST", CHAT, b"", expecting))
                reply = await client.finish()
            assert reply.status == status
            assert reply.raw.startswith(b"HTTP/1.1 %d " % status)
            assert not engine.requests


class TestVersions:
    async def test_http_1_0_is_answered_and_the_connection_ends(self, served: Served) -> None:
        async with RawClient(served.port) as client:
            await client.send(post(LENGTH, version="1.0"))
            reply = await client.finish()
            assert reply.status == 200
            assert "transfer-encoding" not in reply.headers
            assert await ended(client)

    async def test_http_1_0_needs_no_host(self, served: Served) -> None:
        async with RawClient(served.port) as client:
            await client.send(b"GET /health/live HTTP/1.0\r\n\r\n")
            assert (await client.finish()).status == 200

    @pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0, HTTP/2.0"])
    async def test_an_offer_to_speak_another_protocol_is_passed_over(self, served: Served, offer: str) -> None:
        """Java's HttpClient makes one with its first request on each connection."""
        upgrade = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {offer}", "HTTP2-Settings: AAEAAEAAAAIAAAAA")
        async with RawClient(served.port) as client:
            await client.send(post(*upgrade, LENGTH, body=BODY[:9]))
            await asyncio.sleep(0.05)
            await client.send(BODY[9:])
            assert (await client.finish()).status == 200
            await client.send(post(*upgrade, LENGTH) + post(*upgrade, "Transfer-Encoding: chunked", body=chunked(BODY)))
            assert (await next_reply(client)).status == 200
            assert (await next_reply(client)).status == 200
            assert (await again(client)).status == 200
        assert [request.body for request in served.engine.requests] == [BODY] * 4
        assert not any("upgrade" in request.headers for request in served.engine.requests)

    async def test_closing_when_the_client_asks_for_it(self, served: Served) -> None:
        async with RawClient(served.port) as client:
            await client.request("POST", CHAT, REQ, {"Connection": "close"})
            assert (await client.finish()).headers.get("connection") == "close"
            assert await ended(client)


class TestPipelining:
    async def test_answers_come_in_the_order_of_the_requests(self) -> None:
        async with ScriptedEngine([[0.3, OK], [OK]]) as engine, gateway(engine.url) as sluice:
            async with RawClient(sluice.port) as client:
                models = encode_request("GET", "/v1/models", None, {})
                await client.send(post(LENGTH) + models + post(LENGTH))
                replies = [await client.finish(), await next_reply(client), await next_reply(client)]
            assert [reply.status for reply in replies] == [200, 200, 200]
            assert ["choices" in reply.json() for reply in replies] == [True, False, True]
            assert len(engine.requests) == 2

    async def test_nonsense_behind_a_request_does_not_spoil_its_answer(self) -> None:
        stream = [SSE_HEAD, chunk(ROLE + T("a")), 0.3, chunk(T("b") + FIN("stop") + DONE), LAST_CHUNK]
        async with ScriptedEngine(stream) as engine, gateway(engine.url) as sluice:
            for script, body in ((stream, {**REQ, "stream": True}), ([0.3, OK], REQ)):
                engine.script = script
                async with RawClient(sluice.port) as client:
                    await client.send(encode_request("POST", CHAT, body, {}) + b"hello\r\n\r\n")
                    reply = await client.finish()
                    assert reply.status == 200
                    assert joined(reply.body) == "ab" if script is stream else "choices" in reply.json()
                    assert await ended(client)


class TestKeepAlive:
    async def test_a_refused_request_s_body_is_not_taken_for_the_next_request(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEY) as sluice:
            hidden = encode_request("POST", CHAT, REQ, AUTH)
            async with RawClient(sluice.port) as client:
                await client.send(post(f"Content-Length: {len(hidden)}", body=b""))
                assert (await client.finish()).status == 401
                await client.send(hidden + encode_request("GET", "/v1/models", None, AUTH))
                assert "data" in (await next_reply(client)).json()
                assert not client.reply.rest
            assert not engine.requests

    async def test_a_broken_rest_of_a_refused_request_gets_no_second_answer(self) -> None:
        async with (
            ScriptedEngine() as engine,
            gateway(engine.url, server=KEY) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.send(post("Transfer-Encoding: chunked", body=b""))
            assert (await client.finish()).status == 401
            await client.send(b"zz\r\n")
            assert await ended(client)

    async def test_leaving_is_noticed_while_the_request_before_is_being_wound_up(self) -> None:
        """After `[DONE]` the engine has a moment to end its reply; the client may be at its next request by then."""
        first = [SSE_HEAD, chunk(ROLE + T("a") + FIN("stop") + DONE), 0.3, LAST_CHUNK]
        async with (
            ScriptedEngine([first, [Step.HANG]]) as engine,
            gateway(engine.url) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, {**REQ, "stream": True})
            assert is_clean((await client.finish()).body)
            await client.request("POST", CHAT, REQ)
            await eventually(lambda: len(engine.requests) == 2)
            await asyncio.sleep(0.5)
            client.close()
            last = engine.requests[1].connection
            await eventually(lambda: last.closed is not None)

    async def test_many_requests_on_one_connection(self, served: Served) -> None:
        async with RawClient(served.port) as client:
            for _ in range(100):
                assert (await again(client)).status == 200
        assert len(served.engine.requests) == 100


async def test_clients_that_linger_hold_nobody_up(served: Served) -> None:
    beginnings = [b"", b"P", b"GET /v1/mod", post(LENGTH)[:60], post(LENGTH, body=b""), post(LENGTH)[:-1]]
    async with AsyncExitStack() as stack:
        for number in range(60):
            client = await stack.enter_async_context(RawClient(served.port))
            await client.send(beginnings[number % len(beginnings)])
        assert (await get(served.port, "/health/live", timeout=5)).status == 200
        assert (await post_json(served.port, CHAT, REQ, timeout=5)).status == 200
    assert len(served.engine.requests) == 1


async def again(client: RawClient) -> Reply:
    """An ordinary request on a connection that has been used."""
    await client.request("POST", CHAT, REQ)
    return await client.finish()
