"""Ollama's dialect at the front door, as programs that know nothing else use it, before engines that never heard of it.

What is translated how is in `tests/unit/test_ollama_openai*.py`.
"""

import asyncio
import json
from typing import Any

import pytest

from tests.api.ollama_errors import error_of
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.engine import Request, ScriptedEngine, Step
from tests.support.gateway import engine_config, gateway
from tests.support.ollama import END, N, Ollama, ndjson_reply
from tests.support.sse import (
    DONE,
    ERROR,
    FIN,
    LAST_CHUNK,
    ROLE,
    SSE_HEAD,
    TC,
    USE,
    T,
    chunk,
    data,
    json_reply,
    sse_reply,
)
from tests.support.wire import recording

pytestmark = pytest.mark.anyio

CHAT, GENERATE, EMBED, EMBEDDINGS = "/api/chat", "/api/generate", "/api/embed", "/api/embeddings"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = sse_reply(ROLE, T("Hé "), T("🦊"), FIN("stop"), USE(7, 2), DONE)
WHOLE = json_reply(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hé 🦊"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }
)
TEXT = json_reply({"choices": [{"index": 0, "text": "1)", "finish_reason": "length"}]})
VECTORS = json_reply({"data": [{"index": 0, "embedding": [0.5, -1]}], "usage": {"prompt_tokens": 3}})
CALL = {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
OLLAMA: dict[str, Any] = {"kind": "ollama", "models": []}
MODELS_OF_4096 = {"/v1/models": json_reply({"data": [{"id": "m", "max_model_len": 4096}]})}


def lines(reply: Reply) -> list[dict[str, Any]]:
    assert reply.headers.all("content-type") == ["application/x-ndjson"]
    assert reply.body.endswith(b"\n")
    return [json.loads(line) for line in reply.body.splitlines()]


class TestAnswers:
    async def test_a_chat_streams_as_lines_and_under_the_name_asked_for(self) -> None:
        async with ScriptedEngine([STREAM]) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, ASK | {"model": "m:latest"})
            record = await sluice.record()
        first, second, last = lines(reply)
        assert [line["message"] for line in (first, second)] == [
            {"role": "assistant", "content": "Hé "},
            {"role": "assistant", "content": "🦊"},
        ]
        assert {line["model"] for line in (first, second, last)} == {"m:latest"}
        assert (last["done"], last["done_reason"]) == (True, "stop")
        assert (last["prompt_eval_count"], last["eval_count"]) == (7, 2)
        assert reply.headers.all("x-sluice-engine") == ["a"]
        assert (record["path"], record["outcome"], record["model"]) == (CHAT, "ok", "m")
        assert (record["prompt_tokens"], record["completion_tokens"]) == (7, 2)
        [asked] = engine.requests
        assert asked.path == "/v1/chat/completions"
        assert asked.json() == {**ASK, "stream": True, "stream_options": {"include_usage": True}}

    async def test_lines_leave_as_they_come(self) -> None:
        go_on = asyncio.Event()

        async def script(asked: Request, connection: Any) -> None:
            await connection.send(SSE_HEAD + chunk(ROLE + T("a")))
            await go_on.wait()
            await connection.send(chunk(T("b") + FIN("stop") + DONE) + LAST_CHUNK)

        async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
            await client.request("POST", CHAT, ASK)
            await client.read_until(b"\n")
            assert json.loads(client.reply.body)["message"]["content"] == "a"
            go_on.set()
            assert [line["done"] for line in lines(await client.finish())] == [False, False, True]

    async def test_a_chat_in_one_piece(self) -> None:
        async with ScriptedEngine([WHOLE]) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, ASK | {"stream": False})
        assert reply.headers.all("content-type") == ["application/json"]
        answer = reply.json()
        assert answer["message"] == {"role": "assistant", "content": "Hé 🦊"}
        assert (answer["done"], answer["done_reason"], answer["eval_count"]) == (True, "stop", 2)
        assert "stream" not in engine.requests[0].json()

    async def test_tool_calls_come_whole_and_as_objects(self) -> None:
        parts = [TC(0, "c1", "f", '{"a"'), TC(0, None, None, ":1}"), FIN("tool_calls"), DONE]
        tools = [{"type": "function", "function": {"name": "f"}}]
        async with ScriptedEngine([sse_reply(ROLE, *parts)]) as engine, gateway(engine.url) as sluice:
            call, last = lines(await post_json(sluice.port, CHAT, ASK | {"tools": tools}))
        assert call["message"]["tool_calls"] == [
            {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
        ]
        assert last["done_reason"] == "stop"
        assert engine.requests[0].json()["tools"] == tools

    async def test_a_generation_is_asked_as_a_chat(self) -> None:
        async with ScriptedEngine([STREAM]) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, GENERATE, {"model": "m", "prompt": "hi", "system": "Be brief."})
        assert [line["response"] for line in lines(reply)] == ["Hé ", "🦊", ""]
        assert engine.requests[0].path == "/v1/chat/completions"
        assert [message["role"] for message in engine.requests[0].json()["messages"]] == ["system", "user"]

    @pytest.mark.parametrize("fields", [{"raw": True}, {"suffix": "return x"}], ids=str)
    async def test_a_raw_prompt_is_asked_as_a_completion(self, fields: dict[str, Any]) -> None:
        async with ScriptedEngine([TEXT]) as engine, gateway(engine.url) as sluice:
            asked = {"model": "m", "prompt": "f(x, ", "stream": False, **fields}
            answer = (await post_json(sluice.port, GENERATE, asked)).json()
        assert (answer["response"], answer["done_reason"]) == ("1)", "length")
        assert engine.requests[0].path == "/v1/completions"
        assert engine.requests[0].json()["prompt"] == "f(x, "

    async def test_embeddings(self) -> None:
        async with ScriptedEngine([VECTORS]) as engine, gateway(engine.url) as sluice:
            new = (await post_json(sluice.port, EMBED, {"model": "m", "input": ["a"]})).json()
            old = (await post_json(sluice.port, EMBEDDINGS, {"model": "m", "prompt": "a"})).json()
        assert (new["model"], new["embeddings"], new["prompt_eval_count"]) == ("m", [[0.5, -1]], 3)
        assert old == {"embedding": [0.5, -1]}
        assert [asked.path for asked in engine.requests] == ["/v1/embeddings"] * 2
        assert engine.requests[0].json() == {"model": "m", "input": ["a"], "encoding_format": "float"}

    async def test_an_ollama_behind_the_gateway_says_the_same_to_both(self) -> None:
        """Both translations, one after the other, leave what a real Ollama would have said."""
        said = [N(thinking="t"), N("a"), N(tool_calls=[CALL]), END("stop", 9, 3, prompt_eval_duration=21_480_000)]
        async with (
            Ollama([ndjson_reply(*said)]) as engine,
            gateway(engines={"a": engine_config(engine.url, **OLLAMA)}) as sluice,
        ):
            reply = await post_json(sluice.port, CHAT, ASK | {"model": "smollm2"})
        got = lines(reply)
        assert [line["message"] for line in got] == [json.loads(line)["message"] for line in said]
        assert (got[-1]["prompt_eval_count"], got[-1]["eval_count"]) == (9, 3)
        assert got[-1]["prompt_eval_duration"] == 21_480_000


class TestRequestsForNothing:
    @pytest.mark.parametrize(
        ("path", "name"),
        [
            (CHAT, "native-chat-empty-messages"),
            (CHAT, "native-chat-unload"),
            (GENERATE, "native-generate-preload"),
            (GENERATE, "native-generate-unload"),
        ],
    )
    async def test_they_are_answered_here(self, path: str, name: str) -> None:
        recorded = recording("ollama", name)
        asked = json.loads(recorded.request_body) | {"model": "m", "stream": True}
        async with ScriptedEngine([Step.HANG]) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, path, asked)
            record = await sluice.record()
        assert (reply.status, reply.headers.all("content-type")) == (200, ["application/json"])
        real = json.loads(recorded.body)
        assert {**reply.json(), "created_at": ""} == {**real, "model": "m", "created_at": ""}
        assert (record["outcome"], record["level"]) == (real["done_reason"], "info")
        assert not engine.requests

    async def test_an_empty_text_has_no_embedding(self) -> None:
        async with ScriptedEngine([Step.HANG]) as engine, gateway(engine.url) as sluice:
            assert (await post_json(sluice.port, EMBED, {"model": "m", "input": ""})).json()["embeddings"] == []
            assert (await post_json(sluice.port, EMBEDDINGS, {"model": "m"})).json() == {"embedding": []}

    async def test_a_model_that_is_not_there_is_not_loaded(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, {"model": "other"})
            assert (reply.status, error_of(reply).split(".")[0]) == (404, "The model `other` does not exist")

    async def test_nor_one_whose_engine_is_away(self) -> None:
        async with gateway("http://127.0.0.1:9") as sluice:
            assert (await post_json(sluice.port, CHAT, {"model": "m"})).status == 503
            assert (await post_json(sluice.port, CHAT, {"model": "m", "keep_alive": 0})).status == 200


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "body", "status", "message"),
        [
            (CHAT, b'{"model": "m", ', 400, "not valid JSON"),
            (CHAT, ASK | {"model": "q"}, 404, "The model `q` does not exist"),
            (CHAT, {"messages": ASK["messages"]}, 400, "missing required field `model`"),
            (CHAT, ASK | {"options": {"temprature": 1}}, 400, "unknown field `temprature`"),
            (CHAT, ASK | {"options": {"num_ctx": 4097}}, 400, "4097 tokens are more than the 4096"),
            *(
                (path, b'{"model":"m","options":{"stop":"a"},"odd":' + b"[" * 100_000, 400, "nested too deeply")
                for path in (CHAT, GENERATE, EMBED, "/api/embeddings", "/api/show")
            ),
            (CHAT, b'{"model":"m","messages":[],"format":' + b"[" * 5000, 400, "nested too deeply"),
            (GENERATE, {"model": "m", "prompt": "a", "context": [1]}, 400, "`context`"),
            (EMBED, {"model": "m"}, 400, "missing required field `input`"),
        ],
        ids=range(13),
    )
    async def test_requests_that_no_engine_sees(self, path: str, body: object, status: int, message: str) -> None:
        async with ScriptedEngine(probes=MODELS_OF_4096) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, path, body)
            assert reply.status == status
            assert message in error_of(reply)
            assert not engine.requests

    async def test_a_context_that_fits_is_not_sent_on(self) -> None:
        async with ScriptedEngine([WHOLE], probes=MODELS_OF_4096) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, ASK | {"stream": False, "options": {"num_ctx": 4096}})
            assert reply.status == 200
            assert engine.requests[0].json() == ASK

    async def test_any_method_but_post(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            reply = await get(sluice.port, CHAT)
            assert (reply.status, reply.headers.all("allow")) == (405, ["POST"])
            assert "POST" in error_of(reply)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_an_engines_refusal_keeps_its_status_and_message(self, stream: bool) -> None:
        refusal = json_reply({"error": {"message": "too long", "type": "t", "code": 400}}, 400)
        async with ScriptedEngine([refusal]) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, ASK | {"stream": stream})
            assert (reply.status, error_of(reply)) == (400, "too long")

    @pytest.mark.parametrize("answer", [{"choices": []}, {"choices": [{"message": {"content": 5}}]}], ids=str)
    async def test_an_answer_that_cannot_be_translated(self, answer: dict[str, Any]) -> None:
        async with ScriptedEngine([json_reply(answer)]) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, ASK | {"stream": False})
            assert reply.status == 502
            assert error_of(reply).startswith("The engine's answer")

    @pytest.mark.parametrize(
        ("broken", "message", "outcome"),
        [
            ([chunk(ERROR("boom"))], "boom", "engine_error"),
            ([Step.RESET], "Engine `a` broke off its answer.", "engine_failed"),
            ([LAST_CHUNK], "Engine `a` ended its stream before its answer was whole.", "engine_failed"),
            (
                [chunk(TC(0, "c1", "f", "{") + FIN("tool_calls") + DONE), LAST_CHUNK],
                "The engine called a tool with arguments that are not a JSON object.",
                "engine_failed",
            ),
            (
                [0.05, chunk(data({"choices": [{"delta": {"content": 5}}]}) + FIN("stop") + DONE), LAST_CHUNK],
                "The engine's answer is not in OpenAI's form and cannot be translated.",
                "engine_failed",
            ),
        ],
        ids=["error", "reset", "end", "tool call", "form"],
    )
    async def test_a_stream_that_fails_ends_with_an_error_and_without_done(
        self, broken: list[Any], message: str, outcome: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """And its body breaks off, as some programs overlook the error and would take the answer for whole."""
        script = [SSE_HEAD, chunk(ROLE + T("par")), 0.05, *broken]
        async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, ASK)
            record = await sluice.record()
        first, last = lines(reply)
        assert not reply.complete
        assert not caplog.records
        assert (first["message"]["content"], first["done"]) == ("par", False)
        assert last == {"error": message}
        assert record["outcome"] == outcome

    async def test_an_engine_that_fails_before_its_first_word_has_a_status(self) -> None:
        async with ScriptedEngine([sse_reply(ROLE, ERROR("boom"))]) as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, CHAT, ASK)
            assert (reply.status, error_of(reply)) == (502, "boom")


class TestLeaving:
    async def test_the_engine_is_let_go_in_the_middle_of_a_stream(self) -> None:
        script = [SSE_HEAD, chunk(ROLE + T("a")), Step.HANG]
        async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice:
            async with RawClient(sluice.port) as client:
                await client.request("POST", CHAT, ASK)
                await client.read_until(b"\n")
            await engine.gone(1)
            assert (await sluice.record())["outcome"] == "cancelled"

    async def test_and_while_nothing_came_yet(self) -> None:
        async with ScriptedEngine([Step.HANG]) as engine, gateway(engine.url) as sluice:
            async with RawClient(sluice.port) as client:
                await client.request("POST", GENERATE, {"model": "m", "prompt": "hi", "stream": False})
                while not engine.requests:
                    await asyncio.sleep(0.005)
            await engine.gone(1)
            assert (await sluice.record())["outcome"] == "cancelled"
