"""The rulers are measured first: what the other tests rely on does what it says."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from tests.support.client import RawClient, encode_request, get, post_json
from tests.support.engine import Close, Connection, Request, ScriptedEngine, Step
from tests.support.http1 import read_reply
from tests.support.sse import (
    DONE,
    ERROR,
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
    failed,
    finish_reasons,
    http_ok,
    is_clean,
    joined,
    json_reply,
    read_events,
    reply,
    sse_reply,
)
from tests.support.waiting import eventually
from tests.support.wire import Recording, recording, recordings

pytestmark = pytest.mark.anyio

OK = json_reply({"ok": True})
CHAT = "/v1/chat/completions"


class TestScriptedEngine:
    async def test_sends_the_bytes_of_its_script_and_records_the_request(self) -> None:
        async with ScriptedEngine([OK]) as engine:
            got = await post_json(engine.port, CHAT, {"a": [1, "é"]}, {"X-Mixed-Case": "1"})
        assert got.raw == OK
        (request,) = engine.requests
        assert (request.method, request.path, request.json()) == ("POST", CHAT, {"a": [1, "é"]})
        assert request.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert b"\r\nX-Mixed-Case: 1\r\n" in request.head
        assert request.headers.get("x-mixed-case") == "1"
        assert [data for _, data in request.sent] == [OK]

    async def test_understands_a_chunked_request(self) -> None:
        async with ScriptedEngine([OK]) as engine, RawClient(engine.port) as client:
            await client.send(
                b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"ab", b"c")
            )
            assert (await client.finish()).complete
        assert engine.requests[0].body == b"abc"

    async def test_serves_further_requests_on_a_connection_even_when_they_were_sent_together(self) -> None:
        async with ScriptedEngine([[reply(b"1")], [reply(b"2")]]) as engine, RawClient(engine.port) as client:
            await client.send(2 * encode_request("POST", CHAT, {}, {}))
            while client.reply.raw != reply(b"1") + reply(b"2"):
                assert await client.read()
        assert len(engine.connections) == 1
        assert [request.body for request in engine.requests] == [b"{}", b"{}"]

    async def test_a_list_of_scripts_serves_one_request_each_and_its_last_one_the_rest(self) -> None:
        async with ScriptedEngine([[reply(b"1")], [reply(b"2")]]) as engine:
            got = [(await post_json(engine.port, CHAT, {})).body for _ in range(3)]
        assert got == [b"1", b"2", b"2"]

    async def test_a_function_may_do_anything(self) -> None:
        async def echo(request: Request, connection: Connection) -> None:
            await connection.send(reply(request.body))
            await connection.fin()

        async with ScriptedEngine(echo) as engine:
            assert (await post_json(engine.port, CHAT, b"hello")).body == b"hello"

    async def test_pauses_between_writes(self) -> None:
        async with ScriptedEngine([SSE_HEAD, 0.1, chunk(b"a"), 0.1, chunk(b"b"), LAST_CHUNK]) as engine:
            got = await post_json(engine.port, CHAT, {})
        (start, head), (middle, a), (end, _) = got.reads[:3]
        assert (head, a, got.body) == (SSE_HEAD, chunk(b"a"), b"ab")
        assert middle - start > 0.08
        assert end - middle > 0.08

    @pytest.mark.parametrize(
        ("step", "error"),
        [(Step.FIN, "peer closed connection without sending complete message body"), (Step.RESET, "reset")],
    )
    async def test_ends_a_connection_as_told(self, step: Step, error: str) -> None:
        async with ScriptedEngine([SSE_HEAD, chunk(b"a"), 0.05, step]) as engine:
            got = await post_json(engine.port, CHAT, {})
            await engine.gone(1)
        assert got.body == b"a"
        assert not got.complete
        assert got.error is not None
        assert error in got.error
        assert engine.connections[0].closed is None  # the peer did not do it

    @pytest.mark.parametrize("script", [[Step.HANG], [SSE_HEAD, Step.HANG], [SSE_HEAD, 30.0], []])
    @pytest.mark.parametrize(("leave", "kind"), [(RawClient.close, Close.FIN), (RawClient.reset, Close.RESET)])
    async def test_tells_how_and_when_the_peer_left(
        self, script: list[bytes | float | Step], leave: Callable[[RawClient], None], kind: Close
    ) -> None:
        async with ScriptedEngine(script) as engine, RawClient(engine.port) as client:
            await client.request("POST", CHAT, {})
            await eventually(lambda: engine.requests)
            with pytest.raises(TimeoutError):
                await engine.gone(0.1)
            left = time.monotonic()
            leave(client)
            await engine.gone(1)
            connection = engine.connections[0]
            assert connection.closed is kind
            assert connection.closed_at is not None
            assert left <= connection.closed_at < left + 0.5

    async def test_gone_needs_a_request_to_speak_of(self) -> None:
        async with ScriptedEngine() as engine:
            await get(engine.port, "/health")
            with pytest.raises(AssertionError, match="no generation request"):
                await engine.gone(1)

    async def test_answers_probes_apart_from_requests(self) -> None:
        async with ScriptedEngine([OK], model="tiny", probes={"/info": json_reply({"n": 1})}) as engine:
            paths = ["/health", "/v1/models", "/props", "/slots", "/metrics", "/info", "/nope"]
            got = {path: await get(engine.port, path) for path in paths}
        assert [got[path].status for path in paths] == [200, 200, 200, 200, 200, 200, 404]
        assert [entry["id"] for entry in got["/v1/models"].json()["data"]] == ["tiny"]
        assert got["/info"].json() == {"n": 1}
        assert engine.requests == []
        assert [probe.path for probe in engine.probes] == paths

    async def test_counts_requests_that_run_at_the_same_time(self) -> None:
        async with ScriptedEngine([0.1, OK]) as engine:
            await asyncio.gather(*(post_json(engine.port, CHAT, {}) for _ in range(3)))
            await post_json(engine.port, CHAT, {})
        assert (engine.max_parallel, engine.running) == (3, 0)

    async def test_counts_only_what_the_kernel_took(self) -> None:
        script = [http_ok("Content-Length: 50000000"), b"x" * 50_000_000]
        async with ScriptedEngine(script) as engine, RawClient(engine.port, receive_buffer=4096) as client:
            await client.request("POST", CHAT, {})
            await client.read()
            await asyncio.sleep(0.2)
            assert 0 < engine.connections[0].sent_bytes < 20_000_000

    async def test_comes_back_on_the_same_port(self) -> None:
        async with ScriptedEngine([OK]) as first:
            assert (await post_json(first.port, CHAT, {})).complete
        with pytest.raises(ConnectionRefusedError):
            await post_json(first.port, CHAT, {})
        async with ScriptedEngine([OK], port=first.port):
            assert (await post_json(first.port, CHAT, {})).complete

    async def test_fails_the_test_when_the_peer_sends_what_is_no_request(self) -> None:
        async def send_two_hosts() -> None:
            async with ScriptedEngine([OK]) as engine, RawClient(engine.port) as client:
                await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
                await client.finish()

        with pytest.raises(AssertionError, match="no request"):
            await send_two_hosts()

    async def test_fails_the_test_when_its_script_fails(self) -> None:
        async def script(request: Request, connection: Connection) -> None:
            await connection.send(OK)
            assert request.body == b"expected"

        async def send_other() -> None:
            async with ScriptedEngine(script) as engine:
                await post_json(engine.port, CHAT, b"other")

        with pytest.raises(AssertionError, match="expected"):
            await send_other()


class TestRawClient:
    async def test_reads_only_when_told_to(self) -> None:
        async with ScriptedEngine([OK]) as engine, RawClient(engine.port) as client:
            await client.request("POST", CHAT, {})
            await asyncio.sleep(0.05)
            assert client.reply.reads == []
            assert (await client.finish()).json() == {"ok": True}

    async def test_reads_until_some_of_the_body_is_there(self) -> None:
        script = [SSE_HEAD, *(step for text in "abcd" for step in (chunk(T(text)), 0.02)), LAST_CHUNK]
        async with ScriptedEngine(script) as engine, RawClient(engine.port) as client:
            await client.request("POST", CHAT, {})
            await client.read_until(b"\n\n", count=2)
            assert joined(client.reply.body) == "ab"
            with pytest.raises(TimeoutError):
                await client.read_until(b"never", timeout=0.2)

    async def test_an_early_end_is_no_token(self) -> None:
        async with ScriptedEngine([SSE_HEAD, Step.FIN]) as engine, RawClient(engine.port) as client:
            await client.request("POST", CHAT, {})
            with pytest.raises(EOFError):
                await client.read_until(b"x")


class TestReadReply:
    @pytest.mark.parametrize(
        ("raw", "body", "complete"),
        [
            (reply(b"abc"), b"abc", True),
            (http_ok() + b"abc", b"abc", True),
            (SSE_HEAD + chunked(b"ab", b"c"), b"abc", True),
            (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"abc"), b"abc", True),
            (reply(b"abc")[:-1], b"ab", False),
            (SSE_HEAD + chunk(b"ab"), b"ab", False),
            (SSE_HEAD + chunk(b"ab") + b"c\r\nxy", b"abxy", False),
            (b"HTTP/1.1 200 OK\r\nContent-Len", b"", False),
            (b"SSH-2.0-OpenSSH\r\n\r\n", b"", False),
            (b"", b"", False),
        ],
    )
    def test_tells_whole_replies_from_parts(self, raw: bytes, body: bytes, complete: bool) -> None:
        got = read_reply(raw)
        assert (got.body, got.complete, got.error is None) == (body, complete, complete)

    def test_keeps_what_follows(self) -> None:
        assert read_reply(reply(b"abc") + b"HTTP/1.1").rest == b"HTTP/1.1"


class TestEvents:
    def test_builders_write_what_engines_send(self) -> None:
        assert ROLE == (
            b'data: {"id":"r1","object":"chat.completion.chunk","created":1,"model":"M",'
            b'"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n'
        )
        assert '"delta":{"content":"漢"}'.encode() in T("漢")
        assert b'"delta":{"reasoning":"th"}' in R("reasoning", "th")
        assert b'"delta":{},"finish_reason":"stop"' in FIN("stop")
        assert b'"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}' in USE(7, 2)
        assert (
            b'"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]'
        ) in TC(0, "c", "f", "{}")
        assert b'"tool_calls":[{"index":0,"type":"function","function":{"arguments":"1"}}]' in TC(0, args="1")

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
    def test_events_are_read_by_the_standard(self, end: bytes) -> None:
        lines = [b": hello", b"event: a", b"data: 1", b"data:2", b"", b"id: 3", b"", b"data: cut"]
        assert [(event.name, event.data) for event in read_events(end.join(lines))] == [("a", "1\n2")]

    @pytest.mark.parametrize("body", [b"hello\n\n", b"<html>\n", b"data: \xff\n\n", b'{"error":1}\n'])
    def test_what_is_no_event_stream_is_an_error(self, body: bytes) -> None:
        with pytest.raises(ValueError):
            read_events(body)

    def test_text_and_finish_reasons_are_collected(self) -> None:
        body = ROLE + T("a") + R("reasoning", "x") + T("b") + FIN("stop") + USE(1, 2) + DONE
        assert (joined(body), finish_reasons(body)) == ("ab", ["stop"])

    @pytest.mark.parametrize(
        ("body", "clean"),
        [
            (ROLE + T("a") + FIN("stop") + DONE, True),
            (b": wait\n\n" + ROLE + b":x\n" + T("a") + DONE, True),
            (DONE, True),
            ((T("a") + DONE).replace(b"\n", b"\r\n"), True),
            (T("a"), False),
            (b"", False),
            (T("a") + DONE + DONE, False),
            (T("a") + DONE + b": bye\n\n", False),
            (T("a") + DONE + T("b"), False),
            (DONE + T("b"), False),
            (T("a") + DONE.rstrip(), False),
            (T("a") + b"data:\n\n" + DONE, False),
            (b"data: : wait\n\n" + DONE, False),
            (b"data: 1\n\n" + DONE, False),
            (b'data: {"a":\n\n' + DONE, False),
            (b"event: x\n" + DONE, False),
            (b"data:[DONE]\n\n", False),
        ],
    )
    def test_clean_streams(self, body: bytes, clean: bool) -> None:
        assert is_clean(body) is clean

    @pytest.mark.parametrize(
        ("body", "is_failure"),
        [
            (T("a") + ERROR("broke"), True),
            (ERROR("broke"), True),
            (T("a") + ERROR("broke") + DONE, False),
            (T("a") + FIN("stop") + DONE, False),
            (T("a"), False),
            (T("a") + ERROR("broke").rstrip(), False),
        ],
    )
    def test_failed_streams(self, body: bytes, is_failure: bool) -> None:
        assert failed(body) is is_failure


class TestRecordings:
    def test_every_engine_is_there(self) -> None:
        assert {one.engine for one in recordings()} == {"llamacpp", "ollama", "tgi", "vllm"}

    @pytest.mark.parametrize("one", recordings(), ids=str)
    def test_each_is_a_reply_or_is_known_to_have_none(self, one: Recording) -> None:
        unanswered = {"ollama/chat-max-completion-tokens", "tgi/hung-health"}
        assert (one.status == 0) is (str(one) in unanswered)
        assert one.reply.complete is (str(one) not in unanswered | {"tgi/hung-chat-stream"})

    def test_they_are_found_by_engine_and_path(self) -> None:
        found = recordings("vllm", "/v1/models")
        assert [str(one) for one in found] == ["vllm/models"]
        assert found == [recording("vllm", "models")]

    async def test_a_recording_can_be_played_back(self) -> None:
        one = recording("llamacpp", "chat-stream")
        async with ScriptedEngine(one.script()) as engine:
            got = await post_json(engine.port, one.path, one.request_body)
        assert (got.raw, got.complete, is_clean(got.body)) == (one.raw, True, True)
        assert len(engine.requests[0].sent) == len(one.reads)


async def test_a_client_that_leaves_before_it_asks_is_no_request() -> None:
    async with ScriptedEngine([OK]) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)):
            await eventually(lambda: engine.connections)
        await engine.connections[0].wait_closed()
        assert engine.connections[0].closed is Close.FIN
    assert (engine.requests, engine.probes) == ([], [])


def test_a_streamed_reply_is_whole() -> None:
    got = read_reply(sse_reply(ROLE, T("a"), DONE))
    assert got.complete
    assert is_clean(got.body)
