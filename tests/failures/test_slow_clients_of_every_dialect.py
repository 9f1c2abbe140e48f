"""Back-pressure and pipelining change when a client gets its answer, never what it gets, in whatever dialect."""

import asyncio
import re

import pytest

from tests.support.client import RawClient, encode_request
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, gateway
from tests.support.sse import DONE, FIN, ROLE, SSE_HEAD, T, chunk, chunked

pytestmark = pytest.mark.anyio

ASK = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
DIALECTS = {
    "OpenAI": (CHAT, REQ | {"stream": True}),
    "Anthropic": ("/v1/messages", ASK),
    "Ollama": ("/api/chat", ASK),
    "Responses": ("/v1/responses", {"model": "m", "stream": True, "input": "hi"}),
}
PIECES = 3000
PADDING = "x" * 1000


def piece(number: int) -> bytes:
    return T(f"<{number}>{PADDING}")


def pieces(body: bytes) -> list[int]:
    """The numbers of the pieces, each as often as it came; Responses repeats the whole text at the end."""
    deltas = b"\n".join(line for line in body.splitlines() if b".done" not in line and b"completed" not in line)
    return [int(number) for number in re.findall(rb"<(\d+)>", deltas)]


@pytest.mark.parametrize(("path", "body"), DIALECTS.values(), ids=DIALECTS)
async def test_a_slow_reader_gets_each_piece_once(path: str, body: object) -> None:
    script = [SSE_HEAD, chunk(ROLE), *(chunk(piece(number)) for number in range(PIECES)), chunked(FIN("stop"), DONE)]
    async with (
        ScriptedEngine([script]) as engine,
        gateway(engine.url) as sluice,
        RawClient(sluice.port, receive_buffer=4096) as client,
    ):
        await client.request("POST", path, body)
        await asyncio.sleep(0.5)  # until every buffer on the way is full
        reply = await client.finish(timeout=60)
    assert reply.complete
    assert pieces(reply.body) == list(range(PIECES))


@pytest.mark.parametrize(("path", "body"), DIALECTS.values(), ids=DIALECTS)
async def test_a_client_that_asks_twice_at_once_gets_each_piece_once(path: str, body: object) -> None:
    script = [SSE_HEAD, chunk(ROLE)]
    for number in range(20):
        script += [chunk(T(f"<{number}>")), 0.005]  # type: ignore[list-item]
    script.append(chunked(FIN("stop"), DONE))
    async with (
        ScriptedEngine([script]) as engine,
        gateway(engine.url) as sluice,
        RawClient(sluice.port) as client,
    ):
        await client.request("POST", path, body)
        await client.send(encode_request("POST", path, body, {}))
        reply = await client.finish()
        assert pieces(reply.body) == list(range(20))
