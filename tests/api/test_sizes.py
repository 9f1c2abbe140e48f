"""How large a request may be: bodies up to `max_body_bytes`, heads up to `max_header_bytes`, nothing without end."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, encode_request, get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, RunningGateway, gateway
from tests.support.sse import chunk, chunked

pytestmark = pytest.mark.anyio

KB = 1024
MB = 1024 * KB
KEY = {"keys": [{"name": "laptop", "key": "sk-of-a-client"}]}


def body_of(size: int) -> bytes:
    """A chat request of exactly so many bytes, as one with an image in it."""
    empty = json.dumps({**REQ, "image": ""}).encode()
    return empty[:-2] + b"A" * (size - len(empty)) + b'"}'


def head_of(*lines: str) -> bytes:
    return "\r\n".join([f"POST {CHAT} HTTP/1.1", "Host: sluice.test", *lines, "", ""]).encode()


async def cut_off(client: RawClient, piece: bytes, timeout: float = 10.0) -> bool:
    """Whether the gateway ends the connection of a client that sends `piece` over and over."""
    with suppress(TimeoutError):
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await client.send(piece)
                    await asyncio.sleep(0.01)
        except ConnectionError:
            return True
    return False


class TestBodies:
    @pytest.mark.parametrize("size", [10 * KB - 1, 10 * KB])
    async def test_up_to_the_limit_they_pass(self, size: int) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"max_body_bytes": 10 * KB}) as sluice:
            assert (await post_json(sluice.port, CHAT, body_of(size))).status == 200
            async with RawClient(sluice.port) as client:
                await client.send(head_of("Transfer-Encoding: chunked") + chunked(body_of(size)))
                assert (await client.finish()).status == 200
            assert [len(request.body) for request in engine.requests] == [size, size]

    async def test_one_that_announces_more_is_refused_unread(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"max_body_bytes": 10 * KB}) as sluice:
            async with RawClient(sluice.port) as client:
                await client.send(head_of(f"Content-Length: {10 * KB + 1}"))
                reply = await client.finish(timeout=5)
            assert (reply.status, error_of(reply)["code"]) == (413, "request_too_large")
            assert not engine.requests

    async def test_one_that_grows_beyond_it_is_refused_before_its_end(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"max_body_bytes": 10 * KB}) as sluice:
            async with RawClient(sluice.port) as client:
                await client.send(head_of("Transfer-Encoding: chunked"))
                for _ in range(11):
                    await client.send(chunk(b"x" * KB))
                reply = await client.finish(timeout=5)
            assert (reply.status, error_of(reply)["code"]) == (413, "request_too_large")
            assert not engine.requests

    @pytest.mark.parametrize("in_chunks", [False, True])
    async def test_a_client_that_sends_everything_before_it_reads_gets_its_413(self, in_chunks: bool) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"max_body_bytes": 10 * KB}) as sluice:
            body = body_of(4 * MB)
            data = (
                head_of("Transfer-Encoding: chunked") + b"".join(chunk(body[i : i + MB]) for i in range(0, 4 * MB, MB))
                if in_chunks
                else head_of(f"Content-Length: {len(body)}") + body
            )
            async with RawClient(sluice.port) as client:
                await client.send(data)
                await client.send(b"0\r\n\r\n" if in_chunks else b"")
                assert (await client.finish()).status == 413
                await client.request("POST", CHAT, REQ)
                assert (await client.finish()).status == 200
            assert len(engine.requests) == 1

    async def test_40_megabytes_pass_by_default_while_others_are_served(self) -> None:
        body = body_of(40 * MB)
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
            await client.send(head_of(f"Content-Length: {len(body)}"))
            for quarter in range(4):
                await client.send(body[quarter * 10 * MB : (quarter + 1) * 10 * MB])
                assert (await post_json(sluice.port, CHAT, REQ)).status == 200
            assert (await client.finish()).status == 200
            *small, large = engine.requests
            assert len(small) == 4
            assert hashlib.sha256(large.body).digest() == hashlib.sha256(body).digest()

    async def test_12_megabytes_pass_in_chunks_of_odd_sizes(self) -> None:
        body = body_of(12 * MB)
        size = 123_457
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
            await client.send(head_of("Transfer-Encoding: chunked"))
            for at in range(0, len(body), size):
                await client.send(chunk(body[at : at + size]))
            await client.send(b"0\r\n\r\n")
            assert (await client.finish()).status == 200
            assert engine.requests[0].body == body


@dataclass
class Served:
    engine: ScriptedEngine
    sluice: RunningGateway

    async def send(self, data: bytes) -> Reply:
        async with RawClient(self.sluice.port) as client:
            with suppress(ConnectionError):
                await client.send(data)
            return await client.finish()


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
        yield Served(engine, sluice)


BODY = json.dumps(REQ).encode()
LENGTH = f"Content-Length: {len(BODY)}"

HEADS = {
    "a token of 9 KB": (head_of(LENGTH, f"Authorization: Bearer {'t' * 9 * KB}"), 200),
    "a token of 20 KB": (head_of(LENGTH, f"Authorization: Bearer {'t' * 20 * KB}"), 200),
    "a token of 60 KB": (head_of(LENGTH, f"Authorization: Bearer {'t' * 60 * KB}"), 200),
    "a token of 70 KB": (head_of(LENGTH, f"Authorization: Bearer {'t' * 70 * KB}"), 431),
    "a token of 1 MB": (head_of(LENGTH, f"Authorization: Bearer {'t' * MB}"), 431),
    "300 small headers": (head_of(LENGTH, *[f"X-Number-{i}: {i}" for i in range(300)]), 200),
    "10,000 small headers": (head_of(LENGTH, *[f"X-Number-{i}: {i}" for i in range(10_000)]), 431),
    "a name of 9 KB": (head_of(LENGTH, f"{'X' * 9 * KB}: a"), 200),
    "a name of 70 KB": (head_of(LENGTH, f"{'X' * 70 * KB}: a"), 431),
    "a cookie of 16 KB": (head_of(LENGTH, f"Cookie: a={'c' * 16 * KB}"), 200),
    "a query of 9 KB": (head_of(LENGTH).replace(b" HTTP", b"?q=" + b"q" * 9 * KB + b" HTTP"), 200),
    "a query of 70 KB": (head_of(LENGTH).replace(b" HTTP", b"?q=" + b"q" * 70 * KB + b" HTTP"), 431),
    "a path of 70 KB": (head_of(LENGTH).replace(b"/v1", b"/" + b"v" * 70 * KB), 431),
}


class TestHeads:
    @pytest.mark.parametrize(("head", "status"), HEADS.values(), ids=HEADS)
    async def test_up_to_the_limit_they_pass_and_go_nowhere(self, served: Served, head: bytes, status: int) -> None:
        served.engine.requests.clear()
        reply = await served.send(head + BODY)
        assert reply.status == status
        if status == 431:
            assert error_of(reply)["code"] == "headers_too_large"
            assert reply.headers.get("connection") == "close"
            assert not served.engine.requests
        else:
            (request,) = served.engine.requests
            assert len(request.head) < KB

    async def test_after_any_of_them_the_gateway_serves_on(self, served: Served) -> None:
        assert (await served.send(head_of(LENGTH) + BODY)).status == 200

    @pytest.mark.parametrize(("size", "status"), [(3 * KB, 200), (5 * KB, 431)])
    async def test_the_limit_is_the_config_s(self, size: int, status: int) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"max_header_bytes": 4 * KB}) as sluice:
            assert (await get(sluice.port, "/v1/models", {"X-A": "a" * size})).status == status

    async def test_it_counts_for_each_request_alone(self) -> None:
        """However many requests come in one read, and however large the body that comes with a head."""
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server={"max_header_bytes": 4 * KB}) as sluice:
            async with RawClient(sluice.port) as client:
                one = encode_request("GET", "/health/live", None, {"X-A": "a" * KB})
                await client.send(one * 10)
                async with asyncio.timeout(10):
                    while client.reply.raw.count(b"HTTP/1.1 200 OK") < 10:
                        assert await client.read()
                assert client.reply.raw.count(b"HTTP/1.1") == 10
            async with RawClient(sluice.port) as client:
                await client.request("POST", CHAT, body_of(MB), {"X-A": "a" * KB})
                assert (await client.finish()).status == 200


CHUNKS = head_of("Transfer-Encoding: chunked") + chunk(BODY)

ENDLESS = {
    "a method": (b"", b"A" * 8 * KB),
    "a path": (b"GET /", b"a" * 8 * KB),
    "a header's name": (head_of()[:-2] + b"X", b"a" * 8 * KB),
    "a header's value": (head_of("X-A: ")[:-4], b"a" * 8 * KB),
    "headers": (head_of()[:-2], b"X-A: a\r\n" * 1000),
    "headers after an answered request": (head_of(LENGTH) + BODY + b"GET / HTTP/1.1\r\nX-A: ", b"a" * 8 * KB),
    "trailers": (CHUNKS + b"0\r\n", b"X-A: a\r\n" * 1000),
    "a trailer": (CHUNKS + b"0\r\nX-A: ", b"a" * 8 * KB),
    "a chunk's extension": (CHUNKS + b"1;a=", b"a" * 8 * KB),
}


@pytest.mark.parametrize("server", [{}, KEY], ids=["of a request that is wanted", "of one that was refused"])
async def test_what_never_ends_is_cut_off(server: dict[str, object]) -> None:
    async def cut(start: bytes, piece: bytes) -> bool:
        async with RawClient(sluice.port) as client:
            await client.send(start)
            return await cut_off(client, piece)

    async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=server) as sluice:
        found = await asyncio.gather(*[cut(start, piece) for start, piece in ENDLESS.values()])
        assert dict(zip(ENDLESS, found, strict=True)) == dict.fromkeys(ENDLESS, True)
        assert (await get(sluice.port, "/health/live")).status == 200


async def test_a_head_that_follows_the_late_body_of_a_refused_request_is_bounded_too() -> None:
    async with (
        ScriptedEngine([OK]) as engine,
        gateway(engine.url, server=KEY) as sluice,
        RawClient(sluice.port) as client,
    ):
        await client.send(head_of(LENGTH))
        assert (await client.finish()).status == 401
        await client.send(BODY + b"GET / HTTP/1.1\r\nX-A: ")
        assert await cut_off(client, b"a" * 8 * KB)
