"""Replies nobody thought of: the native transport against h11, which shares no code with it."""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.upstream.http import httpx
from gateway.upstream.reply import Reply
from tests.support.engine import Connection, Request, ScriptedEngine
from tests.support.http1 import read_reply
from tests.support.sse import chunked, http_ok
from tests.support.transports import ask, make_transport, take

FRAMING = {"content-length", "transfer-encoding", "connection", "upgrade", "trailer"}
TOKEN = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)

names = st.text(st.sampled_from(TOKEN), min_size=1, max_size=12).filter(lambda name: name.lower() not in FRAMING)
spaces = st.sampled_from(["", " ", "  ", "\t", " \t "])
lines = st.builds("{}:{}{}{}".format, names, spaces, VALUE.map(str.strip), spaces)
reasons = VALUE.map(str.strip)


@st.composite
def heads(draw: st.DrawFn, status: st.SearchStrategy[int], framing: tuple[str, ...] = ()) -> bytes:
    """The framing header stands anywhere among others."""
    fields = draw(st.permutations([*draw(st.lists(lines, max_size=5)), *framing]))
    start = f"HTTP/1.1 {draw(status)} {draw(reasons)}"
    return "\r\n".join([start, *fields, "", ""]).encode("latin-1")


@st.composite
def chunked_bodies(draw: st.DrawFn) -> bytes:
    size = st.sampled_from(["{:x}", "{:X}", "0{:x}", "000{:x}"])
    extension = st.sampled_from(["", "", ";a", ";a=b", ';a="b c"', ";a;b=1"])
    parts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    written = [(draw(size).format(len(part)) + draw(extension)).encode() + b"\r\n" + part + b"\r\n" for part in parts]
    trailers = "".join(f"{line}\r\n" for line in draw(st.lists(lines, max_size=2)))
    return b"".join(written) + b"0" + draw(extension).encode() + b"\r\n" + trailers.encode("latin-1") + b"\r\n"


@st.composite
def replies(draw: st.DrawFn) -> bytes:
    """Whole replies as engines may send them; those without a length end with the connection."""
    interim = b"".join(draw(st.lists(heads(st.sampled_from([100, 102, 103])), max_size=2)))
    status = st.sampled_from([200, 201, 206, 299, 400, 404, 429, 500, 503, 599])
    body = draw(st.binary(max_size=120))
    match draw(st.sampled_from(["length", "chunked", "close", "none"])):
        case "length":
            return interim + draw(heads(status, (f"Content-Length: {len(body)}",))) + body
        case "chunked":
            return interim + draw(heads(status, ("Transfer-Encoding: chunked",))) + draw(chunked_bodies())
        case "close":
            return interim + draw(heads(status)) + body
        case _:
            return interim + draw(heads(st.sampled_from([204, 304])))


SPECIAL = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b"\0", b":", b";", b" ", b"\t", b",", b"0", b"1", b"a", b"-", b"\xff"]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Replies with a few bytes replaced, dropped, added or repeated."""
    raw = draw(replies())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.integers(0, 3)))
        again = draw(st.sampled_from([0, 0, 0, 1, 2]))
        raw = raw[:start] + (raw[start:end] * again or draw(SPECIAL | st.just(b""))) + raw[end:]
    return raw


@st.composite
def pieces(draw: st.DrawFn, raw: st.SearchStrategy[bytes]) -> list[bytes]:
    """The bytes of a reply as the reads of a socket may return them."""
    whole = draw(raw)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True) if start < end]


@dataclass(frozen=True)
class Outcome:
    """What a reader made of a reply that was followed by the end of the connection."""

    complete: bool
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


KNOWN_LENIENCIES = {
    r"no response line received": "empty lines before a status line are skipped, as RFC 9112 (2.2) has servers do",
    r"illegal status line: bytearray\(b.\\r": "the same, for a lone CR",
    r"illegal status line: bytearray\(b.HTTP/1\.\d \d{3} ": "control characters in the reason, which nobody reads",
    r"Only Transfer-Encoding: chunked is supported": "other codings are passed on as they are; only chunks are undone",
    r"multiple Transfer-Encoding headers": "they count as one list, as RFC 9110 (5.3) has it",
}
"""What the native transport takes and h11 does not, by the start of h11's words, with the reason why it may."""


def check(raw: bytes, native: Outcome) -> None:
    """Native may refuse more than h11 does, and it takes no more than is known."""
    oracle = read_reply(raw, "POST")
    if oracle.complete and native.complete:
        assert native == Outcome(True, oracle.status, _comparable(oracle.headers), oracle.body)
    elif native.complete:
        assert oracle.error is not None
        assert any(re.match(known, oracle.error) for known in KNOWN_LENIENCIES), oracle.error


def _comparable(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Without what readers may change: the case of names and of codings, and space around values."""
    fields = ((name.lower(), value.strip(" \t")) for name, value in headers)
    return tuple((name, value.lower() if name == "transfer-encoding" else value) for name, value in fields)


# In memory: thousands of replies, cut into exactly these reads


def in_memory(parts: list[bytes]) -> Outcome:
    reply = Reply("POST", 65536, pause=lambda: None, resume=lambda: None, done=lambda reusable: None)
    for part in parts:
        reply.feed(part)
    reply.feed_eof()
    body: list[bytes] = []
    if not at_once(reply.head()):
        return Outcome(False, 0, (), b"")
    complete = at_once(take(httpx.Response(reply.status, stream=reply), body))
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
    return Outcome(complete, reply.status, _comparable(headers), b"".join(body))


def at_once(steps: Coroutine[Any, Any, object]) -> bool:
    """Runs what must not wait, since all that it could wait for has come; false for an error of the transport."""
    try:
        steps.send(None)
    except StopIteration:
        return True
    except httpx.TransportError:
        return False
    steps.close()
    raise AssertionError("it waits for more after the end of the connection")


@given(parts=pieces(replies()))
@settings(max_examples=400)
def test_what_engines_may_send_is_read(parts: list[bytes]) -> None:
    got = in_memory(parts)
    assert got.complete
    check(b"".join(parts), got)


@given(parts=pieces(mutated()))
@settings(max_examples=800)
@example(parts=[b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"])
@example(parts=[b"HTTP/1.1 200 \0\r\nContent-Length: 1\r\n\r\na"])
@example(parts=[http_ok("Transfer-Encoding: gzip, chunked") + chunked(b"a")])
@example(parts=[http_ok("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + chunked(b"a")])
@example(parts=[http_ok("Transfer-Encoding: chunked", "Content-Length: 1") + chunked(b"a")])
@example(parts=[http_ok("Content-Length: 1", "Content-Length: 2") + b"ab"])
@example(parts=[http_ok("Content-Length: 1, 1") + b"a"])
def test_what_is_taken_was_understood(parts: list[bytes]) -> None:
    check(b"".join(parts), in_memory(parts))


@given(raw=replies(), cut=st.integers(min_value=0, max_value=2000))
@settings(max_examples=400)
def test_a_part_of_a_reply_is_no_reply(raw: bytes, cut: int) -> None:
    part = raw[: cut % (len(raw) + 1)]
    got = in_memory([part])
    assert got.complete is read_reply(part, "POST").complete
    check(part, got)


@given(parts=pieces(replies() | mutated()))
@settings(max_examples=400)
def test_the_reads_do_not_matter(parts: list[bytes]) -> None:
    assert in_memory(parts) == in_memory([b"".join(parts)])


# On a socket: fewer replies, through all of the transport


@dataclass
class Line:
    """An engine that sends what it is told, and the native transport to it."""

    engine: ScriptedEngine
    transport: httpx.AsyncBaseTransport

    async def outcome(self, parts: list[bytes]) -> Outcome:
        async def send(request: Request, connection: Connection) -> None:
            for part in parts:
                await connection.send(part)
                await asyncio.sleep(0)
            await connection.fin()

        self.engine.script = send
        body: list[bytes] = []
        response: httpx.Response | None = None
        try:
            async with asyncio.timeout(5):
                response = await ask(self.transport, self.engine.url)
                await take(response, body)
        except httpx.TransportError:
            complete = False
        else:
            complete = True
        status, headers = (response.status_code, response.headers.raw) if response else (0, [])
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        return Outcome(complete, status, _comparable(fields), b"".join(body))


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    async with ScriptedEngine() as engine, make_transport("native") as transport:
        yield Line(engine, transport)


@pytest.mark.anyio
@given(parts=pieces(replies() | mutated()))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_socket_makes_no_difference(line: Line, parts: list[bytes]) -> None:
    got = await line.outcome(parts)
    check(b"".join(parts), got)
    assert got.complete is in_memory(parts).complete
