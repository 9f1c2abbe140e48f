"""Anthropic's messages and OpenAI's responses, at engines that speak them: bytes pass, checked for being whole."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.request import Endpoint
from gateway.upstream.scan import form_of
from tests.support.answers import OK, error_of
from tests.support.client import Reply, get, post_json
from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import CHAT, engine_config, gateway
from tests.support.messages import ASK, COUNT_TOKENS, MESSAGES, anthropic_error
from tests.support.sse import LAST_CHUNK, SSE_HEAD, chunk, json_reply, reply, sse_reply
from tests.support.wire import Recording, recordings

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
SPEAKS = ["messages", "responses"]
RECORDED = [
    one for path in (MESSAGES, RESPONSES) for one in recordings(path=path) if one.engine in ("llamacpp", "vllm")
]
STREAMS = [one for one in RECORDED if one.name.endswith("-stream")]


def event(**fields: Any) -> bytes:
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n".encode()


START = event(type="message_start", message={"id": "msg_1", "type": "message", "usage": {"input_tokens": 7}})
BLOCK = event(type="content_block_start", index=0, content_block={"type": "text", "text": ""})
TEXT = event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"})
BLOCK_STOP = event(type="content_block_stop", index=0)
STOP = event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
MESSAGE_STOP = event(type="message_stop")
MESSAGE = [START, BLOCK, TEXT, BLOCK_STOP, STOP, MESSAGE_STOP]

CREATED = event(type="response.created", response={"id": "resp_1", "status": "in_progress"})
ADDED = event(type="response.output_item.added", output_index=0, item={"type": "message"})
DELTA = event(type="response.output_text.delta", output_index=0, delta="hi")
COMPLETED = event(
    type="response.completed",
    response={
        "id": "resp_1",
        "status": "completed",
        "usage": {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
    },
)
RESPONSE = [CREATED, ADDED, DELTA, COMPLETED]
CALL = event(type="content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": "f"})
THOUGHT = event(type="content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
CALLED = event(type="response.output_item.added", output_index=0, item={"type": "function_call", "name": "f"})

ASK_RESPONSES = {"model": "m", "input": "hi"}


async def ask(path: str, *script: bytes | float | Step, stream: bool = True, **fields: Any) -> Reply:
    body = (ASK if path == MESSAGES else ASK_RESPONSES) | {"stream": stream}
    async with ScriptedEngine(script) as engine, gateway(engine.url, speaks=SPEAKS, **fields) as sluice:
        return await post_json(sluice.port, path, body)


class TestWhatPasses:
    @pytest.mark.parametrize("recorded", RECORDED, ids=str)
    async def test_a_request_and_its_answer_as_they_are(self, recorded: Recording) -> None:
        model = json.loads(recorded.request_body)["model"]
        async with (
            ScriptedEngine(recorded.script()) as engine,
            gateway(engines={"a": engine_config(engine.url, speaks=SPEAKS, models=[model])}) as sluice,
        ):
            got = await post_json(sluice.port, recorded.path, recorded.request_body)
            record = await sluice.record()
        assert engine.requests[0].path == recorded.path
        assert engine.requests[0].body == recorded.request_body
        assert (got.status, got.body) == (200, recorded.body)
        assert got.complete
        assert record["outcome"] == "ok"
        assert record["prompt_tokens"] > record.get("cached_tokens", 0) >= 0
        assert record["completion_tokens"] > 0

    async def test_only_the_models_name_is_changed_for_an_alias(self) -> None:
        odd = b'{"thinking": {"type":"enabled"},"messages":[{"role":"user","content":"hi"}],"model":"claude","x":1.50}'
        async with ScriptedEngine([json_reply({"type": "message"})]) as engine:
            models = {"claude": [{"engine": "a", "model": "m"}]}
            async with gateway(engine.url, speaks=SPEAKS, models=models) as sluice:
                got = await post_json(sluice.port, MESSAGES, odd)
        assert got.status == 200
        sent = engine.requests[0].body
        assert json.loads(sent) == json.loads(odd) | {"model": "m"}
        assert b'"x":1.50' in sent

    async def test_tokens_are_counted_by_an_engine_that_speaks_messages(self) -> None:
        async with (
            ScriptedEngine([json_reply({"input_tokens": 5})]) as engine,
            gateway(engine.url, speaks=["messages"]) as sluice,
        ):
            got = await post_json(sluice.port, COUNT_TOKENS, ASK)
        assert got.json() == {"input_tokens": 5}
        assert engine.requests[0].path == COUNT_TOKENS

    @pytest.mark.parametrize(
        ("path", "events"),
        [
            (MESSAGES, MESSAGE),
            (MESSAGES, [START, CALL, BLOCK_STOP, STOP, MESSAGE_STOP]),
            (MESSAGES, [START, event(type="ping"), THOUGHT, BLOCK_STOP, STOP, MESSAGE_STOP]),
            (MESSAGES, [START, event(type="of_next_year", message=3), TEXT, STOP, MESSAGE_STOP]),
            (RESPONSES, RESPONSE),
            (RESPONSES, [CREATED, CALLED, COMPLETED]),
            (RESPONSES, [CREATED, DELTA, COMPLETED.replace(b"completed", b"incomplete")]),
        ],
    )
    async def test_streams_of_every_kind(self, path: str, events: Sequence[bytes]) -> None:
        got = await ask(path, sse_reply(*events))
        assert (got.status, got.body) == (200, b"".join(events))
        assert got.complete

    async def test_nothing_is_sent_before_the_first_output(self) -> None:
        async with (
            ScriptedEngine([SSE_HEAD, chunk(START), chunk(BLOCK), Step.RESET]) as engine,
            gateway(engine.url, speaks=SPEAKS) as sluice,
        ):
            got = await post_json(sluice.port, MESSAGES, ASK | {"stream": True})
        assert got.status == 502
        assert anthropic_error(got)["type"] == "api_error"

    async def test_events_that_are_no_json_are_left_out(self) -> None:
        got = await ask(MESSAGES, sse_reply(START, b"event: x\ndata: {broken\n\n", *MESSAGE[1:]))
        assert got.body == b"".join(MESSAGE)


class TestTheEnd:
    async def test_an_engine_that_leaves_out_the_end_mark(self) -> None:
        got = await ask(MESSAGES, sse_reply(*MESSAGE[:-1]))
        assert got.complete
        assert got.body == b"".join(MESSAGE[:-1]) + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    @pytest.mark.parametrize(
        ("path", "events"),
        [(MESSAGES, MESSAGE[:4]), (MESSAGES, [*MESSAGE[:4], MESSAGE_STOP]), (RESPONSES, RESPONSE[:3])],
    )
    async def test_a_stream_that_ends_too_early_fails(self, path: str, events: Sequence[bytes]) -> None:
        got = await ask(path, SSE_HEAD, *map(chunk, events[:3]), 0.05, *map(chunk, events[3:]), LAST_CHUNK)
        begun = b"".join(one for one in events if one != MESSAGE_STOP)
        assert got.body.startswith(begun)
        told = json.loads(got.body.removeprefix(begun).split(b"data: ")[1])
        assert told["type"] == "error"
        assert "before its answer was whole" in json.dumps(told)

    @pytest.mark.parametrize(("path", "events"), [(MESSAGES, MESSAGE[:3]), (RESPONSES, RESPONSE[:3])])
    async def test_a_stream_that_breaks_off_fails(self, path: str, events: Sequence[bytes]) -> None:
        got = await ask(path, SSE_HEAD, *map(chunk, events), 0.05, Step.RESET)
        assert b"broke off" in got.body
        assert b"event: error" in got.body

    async def test_what_follows_the_end_mark_is_ignored(self) -> None:
        got = await ask(MESSAGES, sse_reply(*MESSAGE, TEXT))
        assert got.body == b"".join(MESSAGE)


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "failure"),
        [
            (MESSAGES, event(type="error", error={"type": "overloaded_error", "message": "too much"})),
            (RESPONSES, event(type="error", code="server_error", message="too much", param=None)),
            (RESPONSES, event(type="response.failed", response={"error": {"code": "x", "message": "too much"}})),
            (RESPONSES, event(type="response.cancelled", response={"error": {"code": "x", "message": "too much"}})),
        ],
    )
    @pytest.mark.parametrize("begun", [True, False])
    async def test_an_error_event_is_an_error_of_the_dialect(self, path: str, failure: bytes, begun: bool) -> None:
        events = (MESSAGE[:3] if path == MESSAGES else RESPONSE[:3]) if begun else []
        got = await ask(path, SSE_HEAD, *map(chunk, events), 0.05, chunk(failure), LAST_CHUNK)
        assert b"too much" in got.body
        assert got.status == (200 if begun else 502)
        if begun:
            assert got.body.startswith(b"".join(events))
            assert got.body.count(b"event: error") == 1
        elif path == MESSAGES:
            assert anthropic_error(got)["message"] == "too much"
        else:
            assert error_of(got)["message"] == "too much"

    async def test_a_refusal_keeps_its_status_and_words(self) -> None:
        body = {"type": "error", "error": {"type": "BadRequestError", "message": "max_tokens is too large"}}
        got = await ask(MESSAGES, json_reply(body, 400), stream=False)
        assert got.status == 400
        told = anthropic_error(got)
        assert (told["type"], told["message"]) == ("invalid_request_error", "max_tokens is too large")

    @pytest.mark.parametrize(
        ("path", "answer"),
        [
            (MESSAGES, {"type": "error", "error": {"message": "x"}}),
            (MESSAGES, {"choices": []}),
            (RESPONSES, {"object": "response", "status": "failed", "error": {"message": "x"}}),
            (RESPONSES, {"object": "list"}),
        ],
    )
    async def test_what_is_no_answer_is_a_failure(self, path: str, answer: dict[str, Any]) -> None:
        got = await ask(path, json_reply(answer), stream=False)
        assert got.status == 502

    @pytest.mark.parametrize(
        ("path", "body"), [(MESSAGES, b'{"model": "m"}'), (MESSAGES, b"{"), (RESPONSES, b"{}"), (RESPONSES, b"[")]
    )
    async def test_bad_requests_are_refused_here(self, path: str, body: bytes) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, speaks=SPEAKS) as sluice:
            got = await post_json(sluice.port, path, body)
        assert got.status == 400
        assert not engine.requests


class TestWhoSpeaksWhat:
    async def test_an_engine_that_does_not_speak_it_gets_a_chat(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, MESSAGES, ASK)
            await post_json(sluice.port, RESPONSES, ASK_RESPONSES)
        assert [one.path for one in engine.requests] == [CHAT, CHAT]

    @pytest.mark.parametrize(
        ("paths", "asked"),
        [
            ([MESSAGES, COUNT_TOKENS, RESPONSES, CHAT], [MESSAGES, RESPONSES]),
            ([MESSAGES, CHAT], [MESSAGES, CHAT]),
            ([CHAT], [CHAT, CHAT]),
            (None, [CHAT, CHAT]),
        ],
    )
    async def test_vllm_is_asked_what_it_has(self, paths: list[str] | None, asked: list[str]) -> None:
        listed = json_reply({"openapi": "3.1.0", "paths": {path: {"post": {}} for path in paths or []}})
        hidden = reply(b"{}", status=404)
        async with (
            ScriptedEngine([OK], probes={"/openapi.json": listed if paths else hidden}) as engine,
            gateway(engine.url, kind="vllm") as sluice,
        ):
            for path, body in ((MESSAGES, ASK), (RESPONSES, ASK_RESPONSES)):
                await post_json(sluice.port, path, body)
        assert [one.path for one in engine.requests] == asked

    async def test_vllm_is_asked_again_when_it_has_been_away(self) -> None:
        has = json_reply({"paths": {MESSAGES: {}, CHAT: {}}})
        async with (
            ScriptedEngine([OK], probes={"/openapi.json": has}) as engine,
            gateway(engine.url, kind="vllm", probe={"interval": 0.05}) as sluice,
        ):
            await post_json(sluice.port, MESSAGES, ASK)
            engine.probe_replies["/openapi.json"] = json_reply({"paths": {CHAT: {}}})
            engine.probe_replies["/health"] = reply(b"", status=503)
            await down(sluice.port)
            engine.probe_replies["/health"] = reply(b"")
            await down(sluice.port, 200)
            await post_json(sluice.port, MESSAGES, ASK)
        assert [one.path for one in engine.requests] == [MESSAGES, CHAT]
        assert sum(one.path == "/openapi.json" for one in engine.probes) == 2

    async def test_what_the_config_says_is_not_asked_for(self) -> None:
        has = json_reply({"paths": {MESSAGES: {}, CHAT: {}}})
        async with (
            ScriptedEngine([OK], probes={"/openapi.json": has}) as engine,
            gateway(engine.url, kind="vllm", speaks=[]) as sluice,
        ):
            await post_json(sluice.port, MESSAGES, ASK)
        assert engine.requests[0].path == CHAT
        assert not any(one.path == "/openapi.json" for one in engine.probes)


async def down(port: int, status: int = 503) -> None:
    """Waits until the gateway's readiness has `status`."""
    while (await get(port, "/health/ready")).status != status:
        pass


class TestTheScanners:
    @pytest.mark.parametrize("recorded", STREAMS, ids=str)
    def test_a_stream_may_be_cut_anywhere(self, recorded: Recording) -> None:
        form = form_of(Endpoint(recorded.path))
        for size in (1, 2, 3, 7, 64, 1000):
            scanner = form.scanner()
            parts = [recorded.body[at : at + size] for at in range(0, len(recorded.body), size)]
            passed = b"".join(map(scanner.feed, parts)) + scanner.flush()
            assert passed + scanner.done == recorded.body
            assert scanner.whole
            assert scanner.started

    @pytest.mark.parametrize("recorded", STREAMS, ids=str)
    def test_no_part_of_a_stream_is_whole(self, recorded: Recording) -> None:
        form = form_of(Endpoint(recorded.path))
        ends = [at for at in range(len(recorded.body)) if recorded.body[:at].endswith(b"\n\n")]
        wholes = []
        for end in ends:
            scanner = form.scanner()
            scanner.feed(recorded.body[:end])
            wholes.append(scanner.whole)
        assert wholes == sorted(wholes)
        assert not any(wholes[:-2])
