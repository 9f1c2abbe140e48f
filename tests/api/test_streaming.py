"""Streams: when events leave, with which headers, and that every form of stream arrives as the engine sent it."""

import asyncio
import hashlib
import itertools
import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.client import RawClient, Reply, post_json
from tests.support.engine import Connection, Request, ScriptedEngine, Step
from tests.support.gateway import CHAT, COMPLETIONS, REQ, RunningGateway, gateway
from tests.support.sse import (
    DONE,
    FIN,
    LAST_CHUNK,
    ROLE,
    SSE_HEAD,
    TC,
    USE,
    R,
    T,
    chunk,
    chunked,
    data,
    delta,
    envelope,
    failed,
    finish_reasons,
    http_ok,
    is_clean,
    joined,
    read_events,
    sse_reply,
)

pytestmark = pytest.mark.anyio

STREAM = REQ | {"stream": True}
BOM = b"\xef\xbb\xbf"
WHOLE = ROLE + T("Hé ") + T("漢🦊") + FIN("stop") + USE(7, 2) + DONE


@dataclass
class Got:
    reply: Reply
    record: dict[str, Any]

    @property
    def body(self) -> bytes:
        return self.reply.body


@dataclass
class Ask:
    """Asks an engine that runs a script of the test; after it, the connection serves the next request."""

    engine: ScriptedEngine
    sluice: RunningGateway
    asked: int = 0

    async def __call__(self, *script: bytes | float, path: str = CHAT, body: object = STREAM, **headers: str) -> Got:
        self.engine.script = script
        reply = await post_json(self.sluice.port, path, body, headers)
        self.asked += 1
        return Got(reply, await self.sluice.record(self.asked - 1))


@pytest.fixture(scope="module")
async def ask() -> AsyncIterator[Ask]:
    async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
        yield Ask(engine, sluice)


class Paced:
    """An engine's script that sends each part only after the client has all parts before it."""

    def __init__(self, head: bytes, parts: list[tuple[bytes, bytes]]) -> None:
        self.head = head
        self.parts = parts
        """What goes over the wire, and what the client is then to have."""
        self.had = b""
        self.arrived = asyncio.Event()

    async def __call__(self, _: Request, connection: Connection) -> None:
        await connection.send(self.head)
        for wire, _plain in self.parts:
            self.arrived.clear()
            await connection.send(wire)
            await self.arrived.wait()
        await connection.send(LAST_CHUNK)

    async def read_by(self, client: RawClient) -> None:
        """Reads the stream. Whatever is kept back makes both sides wait for one another."""
        expected = b""
        for _, plain in self.parts:
            expected += plain
            async with asyncio.timeout(10):
                while client.reply.body != expected:
                    assert await client.read()
            self.arrived.set()


class TestArrival:
    @pytest.mark.parametrize("accepted", ["identity", "gzip, br"])
    async def test_each_event_leaves_before_the_next_one_comes(self, accepted: str) -> None:
        texts = [T("a") for _ in range(20)]
        events = [ROLE + texts[0], *texts[1:], FIN("stop"), DONE]
        script = Paced(SSE_HEAD, [(chunk(event), event) for event in events])
        async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
            await client.request("POST", CHAT, STREAM, {"Accept-Encoding": accepted})
            await script.read_by(client)
            reply = await client.finish()
        assert reply.complete
        assert reply.headers.get("content-encoding") is None

    @pytest.mark.parametrize(("encoding", "window"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
    async def test_compressed_events_leave_so_too_decoded(self, encoding: str, window: int) -> None:
        packer = zlib.compressobj(wbits=window)
        events = [ROLE + T("a"), T("b"), FIN("stop"), DONE]
        wire = [chunk(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)) for event in events]
        head = http_ok(f"Content-Encoding: {encoding}", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        script = Paced(head, list(zip(wire, events, strict=True)))
        async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
            await client.request("POST", CHAT, STREAM, {"Accept-Encoding": encoding})
            await script.read_by(client)
            reply = await client.finish()
            assert engine.requests[0].headers.get("accept-encoding") == "identity"
        assert reply.complete
        assert reply.headers.get("content-encoding") is None

    async def test_nothing_leaves_before_the_first_output(self) -> None:
        async with (
            ScriptedEngine([SSE_HEAD, chunk(b": busy\n\n"), chunk(ROLE), 0.3, chunk(T("a")), Step.HANG]) as engine,
            gateway(engine.url) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, STREAM)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.read()
            await client.read_until(b"\n\n", 3)
        assert client.reply.body == b": busy\n\n" + ROLE + T("a")

    async def test_events_of_one_read_leave_together_and_all(self, ask: Ask) -> None:
        body = ROLE + 300 * T("a") + FIN("stop") + DONE
        got = await ask(SSE_HEAD + chunked(body))
        assert got.body == body
        assert got.record["events"] == 302

    @pytest.mark.parametrize("letter", ["a", "漢"])
    async def test_an_event_of_12_mb_arrives_whole(self, ask: Ask, letter: str) -> None:
        body = ROLE + T(letter * (12_000_000 // len(letter.encode()))) + FIN("stop") + DONE
        wire = [chunk(body[at : at + 8192]) for at in range(0, len(body), 8192)]
        got = await ask(SSE_HEAD, *wire, LAST_CHUNK)
        assert hashlib.sha256(got.body).digest() == hashlib.sha256(body).digest()
        assert got.reply.complete


class TestHead:
    async def test_is_the_engines_type_and_the_gateways_headers(self, ask: Ask) -> None:
        head = http_ok(
            "Content-Type: text/event-stream; charset=utf-8",
            "Transfer-Encoding: chunked",
            "Server: uvicorn",
            "Set-Cookie: a=b",
            "X-Engine-Secret: s",
        )
        got = await ask(head + chunked(WHOLE))
        headers = dict(got.reply.headers)
        timing = headers.pop("server-timing")
        assert re.fullmatch(r"gateway;dur=\d+\.\d\d, ttft;dur=\d+\.\d\d", timing)
        assert headers.pop("x-request-id") == got.record["request_id"]
        assert headers == {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-sluice-engine": "a",
            "x-sluice-model": "m",
            "x-sluice-attempt": "1",
            "transfer-encoding": "chunked",
        }

    async def test_times_are_those_of_the_log(self, ask: Ask) -> None:
        got = await ask(SSE_HEAD, 0.05, chunk(ROLE), 0.05, chunk(T("a")), 0.05, chunk(FIN("stop")), LAST_CHUNK)
        ttft = re.search(r"ttft;dur=([\d.]+)", got.reply.headers.get("server-timing") or "")
        assert ttft
        assert float(ttft[1]) / 1000 == pytest.approx(got.record["ttft"], abs=0.001)
        moments = ("routed", "dispatched", "first_frame", "ttft", "first_delivered", "duration")
        assert all(got.record[a] <= got.record[b] for a, b in itertools.pairwise(moments))
        assert got.record["ttft"] - got.record["first_frame"] > 0.03


SPLIT = WHOLE.replace(b',"choices"', b',\ndata: "choices"')
NAN = b'data: {"choices":[{"delta":{"content":"\xe6\xbc\xa2"},"logprobs":{"content":[{"logprob":-Infinity}]}}]}\n\n'
SURROGATE = b'data: {"choices":[{"index":0,"delta":{"content":"bad \\ud83e"}}]}\n\n'
LOGPROB = {"token": "a", "logprob": -0.25, "bytes": [240, 159], "top_logprobs": []}
WITH_LOGPROBS = {
    "index": 0,
    "delta": {"content": "a"},
    "logprobs": {"content": [LOGPROB]},
    "finish_reason": "stop",
    "stop_reason": None,
    "token_ids": [5],
}

FORMS = {
    "as usual": WHOLE,
    "CRLF": WHOLE.replace(b"\n", b"\r\n"),
    "CR": WHOLE.replace(b"\n", b"\r"),
    "a byte order mark": BOM + WHOLE,
    "a byte order mark and CRLF": BOM + WHOLE.replace(b"\n", b"\r\n"),
    "no space after data": WHOLE.replace(b"data: ", b"data:"),
    "data in two lines": SPLIT,
    "data in two lines, CRLF": SPLIT.replace(b"\n", b"\r\n"),
    "other fields": WHOLE.replace(b"data: {", b"event: message\nid: 9\nretry: 5\ndata: {"),
    "comments": b":\n\n" * 3 + WHOLE.replace(FIN("stop"), b": busy\n\n" + FIN("stop") + b": bye\n\n"),
    "a comment glued to data": WHOLE.replace(T("漢🦊"), b":x\n" + T("漢🦊")),
    "more blank lines than needed": WHOLE.replace(b"\n\n", b"\n\n\n")[:-1],
    "names without data": b"event: ping\n\n" + WHOLE,
    "objects that are no chunks": ROLE + b'data: {"choices":null}\n\n' + b'data: {"id":"q"}\n\n' + WHOLE,
}


class TestForms:
    @pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
    @pytest.mark.parametrize("size", [None, 1, 7, 1000])
    async def test_arrives_as_it_was_sent(self, ask: Ask, body: bytes, size: int | None) -> None:
        size = size or len(body)
        got = await ask(SSE_HEAD, *(chunk(body[at : at + size]) for at in range(0, len(body), size)), LAST_CHUNK)
        assert got.reply.complete
        assert got.body == body
        assert joined(got.body) == "Hé 漢🦊"
        assert (got.record["prompt_tokens"], got.record["completion_tokens"]) == (7, 2)
        assert got.record["outcome"] == "ok"
        assert "dropped_events" not in got.record

    async def test_a_pause_inside_a_crlf_makes_no_blank_line(self, ask: Ask) -> None:
        body = FORMS["CRLF"]
        cuts = [0, *(at + 1 for at in range(len(body)) if body[at : at + 2] == b"\r\n"), len(body)]
        steps = [step for start, end in itertools.pairwise(cuts) for step in (chunk(body[start:end]), 0.001)]
        got = await ask(SSE_HEAD, *steps, LAST_CHUNK)
        assert got.body == body


CONTENT = {
    "usage with empty choices": (ROLE, T("ok"), FIN("stop"), USE(7, 2), DONE),
    "usage with the finish": (
        ROLE,
        T("ok"),
        delta({}, "stop", usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}),
        DONE,
    ),
    "empty choices on the way": (ROLE, data(envelope()), T("ok"), data(envelope()), FIN("stop"), USE(7, 2), DONE),
    "null usage in every chunk": (
        delta({"role": "assistant"}, usage=None),
        delta({"content": "ok"}, usage=None),
        delta({}, "stop", usage=None),
        USE(7, 2),
        DONE,
    ),
    "usage in every chunk": (ROLE, T("ok"), USE(7, 1), FIN("stop"), USE(7, 2), DONE),
    "reasoning": (ROLE, R("reasoning", "th"), R("reasoning", "ink"), T("ok"), FIN("stop"), USE(7, 2), DONE),
    "reasoning_content": (ROLE, R("reasoning_content", "think"), T("ok"), FIN("stop"), USE(7, 2), DONE),
    "tool calls": (
        ROLE,
        TC(0, "call_a", "rd", '{"p"'),
        TC(0, None, None, ":1}"),
        TC(1, "call_b", "rd", '{"p":2}'),
        FIN("tool_calls"),
        USE(7, 2),
        DONE,
    ),
    "NaN and Infinity": (ROLE, NAN, FIN("stop"), USE(7, 2), DONE),
    "a lone surrogate": (ROLE, SURROGATE, FIN("stop"), USE(7, 2)),
    "logprobs": (ROLE, data(envelope(WITH_LOGPROBS)), USE(7, 2), DONE),
}


class TestContent:
    @pytest.mark.parametrize("events", CONTENT.values(), ids=CONTENT)
    async def test_arrives_untouched_and_is_counted(self, ask: Ask, events: tuple[bytes, ...]) -> None:
        got = await ask(sse_reply(*events))
        sent = b"".join(events)
        assert got.body == sent + (b"" if sent.endswith(DONE) else DONE)
        assert is_clean(got.body)
        assert (got.record["prompt_tokens"], got.record["completion_tokens"]) == (7, 2)

    async def test_a_count_of_zero_stays_zero_and_one_that_nobody_told_is_absent(self, ask: Ask) -> None:
        told = await ask(sse_reply(ROLE, T("a"), FIN("stop"), USE(0, 0), DONE))
        untold = await ask(sse_reply(ROLE, T("a"), FIN("stop"), DONE))
        assert (told.record["prompt_tokens"], told.record["completion_tokens"]) == (0, 0)
        assert not {"prompt_tokens", "completion_tokens", "cached_tokens"} & set(untold.record)

    async def test_reasoning_and_tool_calls_are_output(self, ask: Ask) -> None:
        for event in (R("reasoning", "hm"), R("reasoning_content", "hm"), TC(0, "c", "f", "")):
            got = await ask(SSE_HEAD, chunk(ROLE + event), 0.1, chunk(T("a") + FIN("stop")), LAST_CHUNK)
            assert got.record["last_output"] - got.record["ttft"] > 0.05


def text(index: int, piece: str, finish: str | None = None) -> bytes:
    part = {"index": index, "text": piece, "logprobs": None, "finish_reason": finish}
    return data({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [part]})


def choice(index: int, piece: str, finish: str | None = None) -> bytes:
    return data(envelope({"index": index, "delta": {"content": piece}, "finish_reason": finish}))


TWO = {"model": "m", "prompt": ["a", "b"], "stream": True}
SEVERAL = {
    "n of 2": (CHAT, STREAM | {"n": 2}, choice),
    "two prompts": (COMPLETIONS, TWO, text),
    "two prompts of token ids": (COMPLETIONS, TWO | {"prompt": [[1, 2], [3]]}, text),
    "one prompt, n of 2": (COMPLETIONS, TWO | {"prompt": [1, 2], "n": 2}, text),
}


class TestSeveralChoices:
    @pytest.mark.parametrize(("path", "body", "piece"), SEVERAL.values(), ids=SEVERAL)
    async def test_are_whole_when_all_have_finished(self, ask: Ask, path: str, body: object, piece: Any) -> None:
        events = piece(0, "x") + piece(1, "y") + piece(1, "", "length") + piece(0, "z", "stop")
        got = await ask(sse_reply(events), path=path, body=body)
        assert got.body == events + DONE
        assert got.record["outcome"] == "ok"

    @pytest.mark.parametrize(("path", "body", "piece"), SEVERAL.values(), ids=SEVERAL)
    async def test_are_not_whole_while_one_has_not(self, ask: Ask, path: str, body: object, piece: Any) -> None:
        first = piece(0, "x") + piece(1, "y")
        got = await ask(SSE_HEAD, chunk(first), 0.05, chunk(piece(0, "z", "stop")), LAST_CHUNK, path=path, body=body)
        assert failed(got.body)
        assert got.body.startswith(first)

    async def test_an_engine_that_knows_only_one_says_so_by_its_end_mark(self, ask: Ask) -> None:
        got = await ask(sse_reply(ROLE, T("a"), FIN("stop"), DONE), body=STREAM | {"n": 2})
        assert got.body == ROLE + T("a") + FIN("stop") + DONE


ENDS = {
    "no end mark": b"",
    "one": DONE,
    "two": DONE + DONE,
    "one without a space": b"data:[DONE]\n\n",
    "one with CRLF": b"data: [DONE]\r\n\r\n",
    "text after it": DONE + T("zz"),
    "an error after it": DONE + data({"error": {"message": "late"}}),
    "half an event in place of it": USE(7, 2)[:-9],
    "half an event after it": DONE + b"data: {",
    "no blank line after it": b"data: [DONE]",
    "a comment before it": b": bye\n\n" + DONE,
}


class TestEnd:
    @pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
    @pytest.mark.parametrize("glued", [False, True], ids=["apart", "glued"])
    async def test_has_one_end_mark_and_nothing_after_it(self, ask: Ask, end: bytes, glued: bool) -> None:
        answer = ROLE + T("a") + FIN("stop")
        steps = [chunk(answer + end)] if glued else [chunk(answer), 0.01, *([chunk(end)] if end else [])]
        got = await ask(SSE_HEAD, *steps, LAST_CHUNK)
        assert got.reply.complete
        assert got.body.startswith(answer)
        assert [event.done for event in read_events(got.body)] == [False, False, False, True]
        assert b"zz" not in got.body
        assert got.record["outcome"] == "ok"

    @pytest.mark.parametrize("missing", [1, 2])
    async def test_the_last_event_may_lack_its_blank_line(self, ask: Ask, missing: int) -> None:
        last = delta({}, "stop", usage={"prompt_tokens": 7, "completion_tokens": 2})
        got = await ask(SSE_HEAD + chunked(ROLE + T("a") + last[:-missing]))
        assert read_events(got.body) == read_events(ROLE + T("a") + last + DONE)
        assert got.record["completion_tokens"] == 2

    @pytest.mark.parametrize(("after", "connections"), [(LAST_CHUNK, 1), (Step.HANG, 2)], ids=["ends", "hangs"])
    async def test_the_connection_serves_again_if_its_reply_ends(self, after: bytes | Step, connections: int) -> None:
        async with ScriptedEngine([SSE_HEAD, chunk(WHOLE), after]) as engine, gateway(engine.url) as sluice:
            for number in range(2):
                assert (await post_json(sluice.port, CHAT, STREAM)).body == WHOLE
                await sluice.record(number)
            assert len(engine.generating) == connections


class TestBadEvents:
    async def test_are_left_out_counted_and_harm_nothing(self, ask: Ask) -> None:
        bad = [b'data: {"choices":[{"delta":{"content":"tru\n\n', b"event: ping\ndata:\n\n", b"data: 7\n\n"]
        good = [b'data: {"choices":null}\n\n', b'data: {"id":"q"}\n\n', T("b"), FIN("stop"), DONE]
        got = await ask(sse_reply(ROLE, T("a"), *bad, *good))
        assert got.body == ROLE + T("a") + b"".join(good)
        assert finish_reasons(got.body) == ["stop"]
        assert got.record["dropped_events"] == 2
