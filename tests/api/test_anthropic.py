"""Clients that speak Anthropic's Messages dialect, in front of engines that do not."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.answers import OK
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.engine import Close, Connection, Request, ScriptedEngine, Step
from tests.support.gateway import CHAT, gateway
from tests.support.messages import (
    ASK,
    COUNT_TOKENS,
    MESSAGES,
    anthropic_error,
    read_message,
    result,
    text,
    thinking,
    tool_use,
)
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
    json_reply,
    reply,
    sse_reply,
)
from tests.support.wire import Recording, recording

pytestmark = pytest.mark.anyio

STREAM = ASK | {"stream": True}
BEGUN = [SSE_HEAD, chunk(ROLE), chunk(T("one ")), chunk(T("two"))]


async def ask(*script: bytes | float | Step, body: object = ASK, path: str = MESSAGES, **fields: Any) -> Reply:
    """A request to an engine that runs `script`; `fields` are the engine's in the config."""
    async with ScriptedEngine(script) as engine, gateway(engine.url, **fields) as sluice:
        return await post_json(sluice.port, path, body)


async def test_the_request_s_id_is_there_under_the_name_that_anthropic_gives_it() -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
        reply = await post_json(sluice.port, MESSAGES, ASK, {"anthropic-version": "2023-06-01"})
    assert reply.headers.get("request-id") == reply.headers.get("x-request-id") is not None


class TestWhatTheEngineGets:
    async def test_a_chat_under_its_own_name_of_the_model(self) -> None:
        async with ScriptedEngine([OK]) as engine:
            models = {"claude-sonnet-4-5": [{"engine": "a", "model": "m"}]}
            async with gateway(engine.url, models=models) as sluice:
                body = ASK | {"model": "claude-sonnet-4-5", "system": "Be terse.", "stop_sequences": ["."]}
                answer = await post_json(
                    sluice.port, f"{MESSAGES}?beta=true", body, {"anthropic-version": "2023-06-01"}
                )
            [request] = engine.requests
        assert (request.method, request.path) == ("POST", CHAT)
        assert request.json() == {
            "model": "m",
            "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "hi"}],
            "max_tokens": 16,
            "stop": ["."],
        }
        assert not [name for name, _ in request.headers if name.startswith(("anthropic", "x-api-key"))]
        assert answer.json()["model"] == "claude-sonnet-4-5"

    async def test_a_stream_asks_for_its_usage(self) -> None:
        async with (
            ScriptedEngine([sse_reply(ROLE, T("a"), FIN("stop"), DONE)]) as engine,
            gateway(engine.url) as sluice,
        ):
            await post_json(sluice.port, MESSAGES, STREAM)
            asked = engine.requests[0].json()
        assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})

    async def test_the_second_round_of_a_tool(self) -> None:
        turns = [
            ("user", "Weather?"),
            ("assistant", [thinking("Ask."), tool_use("t1", "weather", city="Paris")]),
            ("user", [result("20C")]),
        ]
        messages = [{"role": role, "content": content} for role, content in turns]
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, MESSAGES, ASK | {"messages": messages})
            asked = engine.requests[0].json()["messages"]
        call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
        assert asked[1:] == [
            {"role": "assistant", "reasoning_content": "Ask.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t1", "content": "20C"},
        ]


class TestAnswers:
    async def test_whole(self) -> None:
        answer = await ask(OK)
        assert answer.status == 200
        assert answer.headers.all("content-type") == ["application/json"]
        assert answer.headers.get("x-sluice-engine") == "a"
        assert answer.json()["content"] == [text("hello")]
        assert answer.json()["model"] == "m"

    async def test_streamed(self) -> None:
        events = [ROLE, R("reasoning", "hm"), T("Hé "), T("漢🦊"), TC(0, "c1", "f", "{}"), FIN("tool_calls"), USE(7, 2)]
        answer = await ask(sse_reply(*events, DONE), body=STREAM)
        assert (answer.status, answer.complete) == (200, True)
        assert answer.headers.all("content-type") == ["text/event-stream; charset=utf-8"]
        assert answer.headers.get("cache-control") == "no-cache"
        told = read_message(answer.body)
        assert told.parsed == [thinking("hm"), text("Hé 漢🦊"), tool_use("c1", "f")]
        assert told.stop["stop_reason"] == "tool_use"
        assert (told.usage["input_tokens"], told.usage["output_tokens"]) == (7, 2)

    async def test_thoughts_are_not_told_to_a_client_that_wants_none(self) -> None:
        script = sse_reply(ROLE, R("reasoning", "hm"), T("a"), FIN("stop"), DONE)
        answer = await ask(script, body=STREAM | {"thinking": {"type": "disabled"}})
        assert read_message(answer.body).content == [text("a")]

    async def test_each_event_leaves_before_the_next_one_comes(self) -> None:
        arrived = asyncio.Event()

        async def paced(_: Request, connection: Connection) -> None:
            await connection.send(SSE_HEAD + chunk(ROLE + T("a")))
            for event in [T("a")] * 5:
                await arrived.wait()
                arrived.clear()
                await connection.send(chunk(event))
            await arrived.wait()
            await connection.send(chunk(FIN("stop") + DONE) + LAST_CHUNK)

        async with ScriptedEngine(paced) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
            await client.request("POST", MESSAGES, STREAM)
            for number in range(1, 7):
                await client.read_until(b'"text_delta"', count=number)
                arrived.set()
            answer = await client.finish()
        assert read_message(answer.body).text == "aaaaaa"

    async def test_a_slow_client_gets_all_of_a_long_stream(self) -> None:
        long = [T("x" * 1000) for _ in range(2000)]
        script = [sse_reply(ROLE, *long, FIN("stop"), DONE)]
        async with (
            ScriptedEngine(script) as engine,
            gateway(engine.url) as sluice,
            RawClient(sluice.port, receive_buffer=4096) as client,
        ):
            await client.request("POST", MESSAGES, STREAM)
            await asyncio.sleep(0.3)
            answer = await client.finish()
        assert read_message(answer.body).text == "x" * 2_000_000

    async def test_the_end_of_a_stream_that_lacks_only_its_mark(self) -> None:
        answer = await ask(SSE_HEAD, chunk(ROLE + T("a") + FIN("stop")), LAST_CHUNK, body=STREAM)
        assert read_message(answer.body).stop["stop_reason"] == "end_turn"

    async def test_the_log_knows_what_the_engine_counted(self) -> None:
        script = [sse_reply(ROLE, T("a"), FIN("stop"), USE(7, 2), DONE)]
        async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, MESSAGES, STREAM)
            record = await sluice.record()
        assert (record["path"], record["outcome"], record["model"]) == (MESSAGES, "ok", "m")
        assert (record["prompt_tokens"], record["completion_tokens"], record["events"]) == (7, 2, 3)


OPENAI_ERROR = {"error": {"message": "Too long.", "type": "invalid_request_error", "param": None, "code": "too_long"}}

DEEP = json.dumps(ASK)[:-1].encode() + b', "system": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "status", "kind", "words"),
        [
            (b"{", 400, "invalid_request_error", "not valid JSON"),
            (b"\xff", 400, "invalid_request_error", "UTF-8"),
            (DEEP, 400, "invalid_request_error", "nested too deeply"),
            ({"model": "m", "max_tokens": 5}, 400, "invalid_request_error", "`messages`"),
            (ASK | {"messages": []}, 400, "invalid_request_error", "`messages` is empty"),
            (ASK | {"max_tokens": None}, 400, "invalid_request_error", "`max_tokens`"),
            (ASK | {"container": "c"}, 400, "invalid_request_error", "`container`"),
            (ASK | {"model": "n"}, 404, "not_found_error", "`n`"),
            (ASK | {"metadata": {"user_id": "x" * 2000}}, 413, "request_too_large", "1024 bytes"),
        ],
    )
    async def test_of_the_client(self, body: Any, status: int, kind: str, words: str) -> None:
        limit = 1024 if status == 413 else 1_000_000
        async with ScriptedEngine() as engine, gateway(engine.url, server={"max_body_bytes": limit}) as sluice:
            answer = await post_json(sluice.port, MESSAGES, body)
            assert not engine.requests
        assert answer.status == status
        error = anthropic_error(answer)
        assert error["type"] == kind
        assert words in error["message"]

    @pytest.mark.parametrize("headers", [{}, {"x-api-key": "sk-wrong"}])
    async def test_a_wrong_key(self, headers: dict[str, str]) -> None:
        keys = {"keys": [{"name": "one", "key": "sk-right-key-of-tests"}]}
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=keys) as sluice:
            answer = await post_json(sluice.port, MESSAGES, ASK, headers)
            right = await post_json(sluice.port, MESSAGES, ASK, {"x-api-key": "sk-right-key-of-tests"})
        assert (answer.status, anthropic_error(answer)["type"]) == (401, "authentication_error")
        assert right.status == 200

    async def test_the_wrong_method(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            answer = await get(sluice.port, MESSAGES)
        assert (answer.status, answer.headers.get("allow")) == (405, "POST")

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("script", "status", "kind", "message"),
        [
            ([json_reply(OPENAI_ERROR, 400)], 400, "invalid_request_error", "Too long."),
            ([json_reply(OPENAI_ERROR, 404)], 404, "not_found_error", "Too long."),
            ([json_reply(OPENAI_ERROR, 429, "Retry-After: 7")], 429, "rate_limit_error", "Too long."),
            ([json_reply(OPENAI_ERROR, 500)], 500, "api_error", "Too long."),
            ([json_reply(OPENAI_ERROR, 503)], 503, "overloaded_error", "Too long."),
            ([json_reply({}, 401)], 502, "api_error", "credentials"),
            ([reply(b"oops", "Content-Type: text/plain", status=418)], 418, "invalid_request_error", "oops"),
            ([Step.RESET], 502, "api_error", "closed its connection without an answer"),
            ([5.0], 504, "timeout_error", "sent nothing"),
            ([reply(b"{}", "Content-Type: text/html")], 502, "api_error", ""),
        ],
    )
    async def test_of_the_engine(self, script: Any, stream: bool, status: int, kind: str, message: str) -> None:
        answer = await ask(*script, body=ASK | {"stream": stream}, timeouts={"first_byte": 1.0})
        assert answer.status == status
        error = anthropic_error(answer)
        assert error["type"] == kind
        assert message in error["message"]
        assert answer.headers.get("retry-after") == ("7" if status == 429 else None)

    async def test_before_the_first_output_of_a_stream(self) -> None:
        answer = await ask(SSE_HEAD, chunk(ROLE), chunk(ERROR("out of memory")), LAST_CHUNK, body=STREAM)
        assert answer.status == 502
        assert anthropic_error(answer) == {"type": "api_error", "message": "out of memory"}

    @pytest.mark.parametrize(
        ("rest", "message"),
        [
            ([chunk(ERROR("out of memory")), LAST_CHUNK], "out of memory"),
            ([LAST_CHUNK], "before its answer was whole"),
            ([chunk(DONE), LAST_CHUNK], "before its answer was whole"),
            ([b"ff\r\ndata: {", Step.FIN], "broke off"),
            ([Step.RESET], "broke off"),
            ([Step.HANG], "fell silent"),
        ],
    )
    async def test_in_a_stream(self, rest: list[bytes | float | Step], message: str) -> None:
        answer = await ask(*BEGUN, 0.05, *rest, body=STREAM, timeouts={"idle": 0.3})
        assert (answer.status, answer.complete) == (200, True)
        told = read_message(answer.body)
        assert told.text == "one two"
        assert not told.stop
        assert told.error is not None
        assert told.error["type"] in ("api_error", "timeout_error")
        assert message in told.error["message"]


class TestLeaving:
    @pytest.mark.parametrize(("leave", "how"), [(RawClient.close, Close.FIN), (RawClient.reset, Close.FIN)])
    async def test_in_the_middle_of_a_stream(self, leave: Callable[[RawClient], None], how: Close) -> None:
        async with ScriptedEngine([*BEGUN, Step.HANG]) as engine, gateway(engine.url) as sluice:
            async with RawClient(sluice.port) as client:
                await client.request("POST", MESSAGES, STREAM)
                await client.read_until(b'"text_delta"', count=2)
                leave(client)
                await engine.gone(1)
            record = await sluice.record()
            assert len(engine.requests) == 1
        assert (record["outcome"], record["status"]) == ("cancelled", 200)

    async def test_before_an_answer_in_one_piece(self) -> None:
        async with ScriptedEngine([Step.HANG]) as engine, gateway(engine.url) as sluice:
            async with RawClient(sluice.port) as client:
                await client.request("POST", MESSAGES, ASK)
                while not engine.requests:
                    await asyncio.sleep(0.01)
                client.close()
                await engine.gone(1)
            record = await sluice.record()
        assert (record["outcome"], record["status"]) == ("cancelled", 499)


class TestCountingTokens:
    @pytest.mark.parametrize("recorded", [recording(kind, "count-tokens") for kind in ("llamacpp", "vllm")], ids=str)
    async def test_an_engine_that_can_is_asked_as_the_client_asked(self, recorded: Recording) -> None:
        body = json.loads(recorded.request_body) | {"model": "m", "unknown": [1.0]}
        async with ScriptedEngine([recorded.raw, Step.FIN]) as engine:
            async with gateway(engine.url, kind=recorded.engine) as sluice:
                answer = await post_json(sluice.port, COUNT_TOKENS, body)
            [request] = engine.requests
        assert (request.path, request.json()) == (COUNT_TOKENS, body)
        assert (answer.status, answer.body) == (200, recorded.body)
        assert answer.json()["input_tokens"] == 33

    async def test_of_an_engine_that_cannot_nobody_makes_up_a_number(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, kind="openai") as sluice:
            answer = await post_json(sluice.port, COUNT_TOKENS, ASK)
            assert not engine.requests
        assert answer.status == 501
        error = anthropic_error(answer)
        assert error["type"] == "api_error"
        assert COUNT_TOKENS in error["message"]

    @pytest.mark.parametrize(
        ("body", "status", "kind"),
        [
            ({"model": "m"}, 400, "invalid_request_error"),
            ({"messages": ASK["messages"]}, 400, "invalid_request_error"),
            (ASK | {"model": "n"}, 404, "not_found_error"),
        ],
    )
    async def test_errors(self, body: object, status: int, kind: str) -> None:
        answer = await ask(body=body, path=COUNT_TOKENS)
        assert (answer.status, anthropic_error(answer)["type"]) == (status, kind)

    async def test_an_engine_too_old_for_it(self) -> None:
        old = reply(b'{"detail":"Not Found"}', "Content-Type: application/json", status=404)
        answer = await ask(old, body=ASK, path=COUNT_TOKENS, kind="vllm")
        assert (answer.status, anthropic_error(answer)) == (404, {"type": "not_found_error", "message": "Not Found"})
