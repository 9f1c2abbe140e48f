"""The gateway in front of TGI, played by recordings of its real router."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import openai
import pytest

from gateway.config import schema
from gateway.engines.base import EngineModel, Health, Load, State
from gateway.engines.tgi import TgiEngine
from gateway.upstream.http import httpx
from tests.support.answers import error_of
from tests.support.client import RawClient, get, post_json
from tests.support.engine import AnyScript, ScriptedEngine, Step
from tests.support.gateway import CHAT, COMPLETIONS, RunningGateway, gateway
from tests.support.sse import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    chunk,
    data,
    failed,
    finish_reasons,
    is_clean,
    joined,
    json_reply,
    read_events,
    reply,
)
from tests.support.waiting import eventually
from tests.support.wire import recording

pytestmark = pytest.mark.anyio

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
HI = [{"role": "user", "content": "Say hello."}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}}
WELL = {"/health": recording("tgi", "health").raw, "/info": recording("tgi", "info").raw}


class Setup(NamedTuple):
    engine: ScriptedEngine
    sluice: RunningGateway

    async def ask(self, path: str = CHAT, /, **fields: Any) -> Any:
        given = {"messages": HI} if path == CHAT else {"prompt": "Once upon a time"}
        return await post_json(self.sluice.port, path, {"model": "chat", **given, **fields})


@asynccontextmanager
async def tgi(
    script: AnyScript = (), probes: Mapping[str, bytes] = WELL, models: Sequence[str] = ()
) -> AsyncIterator[Setup]:
    """A gateway whose model `chat` is that of a TGI server which follows `script`."""
    async with ScriptedEngine(script, probes=probes) as engine:
        config = {"kind": "tgi", "url": engine.url, "models": list(models), "probe": {"interval": 60}}
        async with gateway(engines={"a": config}, models={"chat": [{"engine": "a"}]}) as sluice:
            yield Setup(engine, sluice)


@asynccontextmanager
async def replay(name: str) -> AsyncIterator[Setup]:
    """TGI as it was when `name` was recorded."""
    async with tgi(recording("tgi", name).script()) as setup:
        yield setup


def token(text: str) -> bytes:
    """One event of a stream, as an HTTP chunk."""
    return chunk(data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}], "usage": None}))


async def probe(engine: ScriptedEngine) -> Health:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await TgiEngine(engine.url, schema.Engine(kind="tgi", url=engine.url)).probe(client)


class TestHealth:
    async def test_it_is_read_without_generating_anything(self) -> None:
        async with ScriptedEngine(probes=WELL) as engine:
            model = EngineModel(MODEL, 4096, version="3.3.6-dev0")
            assert await probe(engine) == Health(State.READY, models=(model,), slots=128)
            assert [request.path for request in engine.probes] == ["/health", "/info"]
            assert engine.requests == []

    @pytest.mark.parametrize(
        ("path", "answer", "reason"),
        [
            ("/health", recording("tgi", "dead-health").raw, "its shard is dead"),
            ("/health", reply(b"", status=500), "its health endpoint answers HTTP 500"),
            ("/info", reply(b"", status=404), "its /info answers HTTP 404"),
            ("/info", json_reply([]), "its /info is not in TGI's form"),
        ],
    )
    async def test_why_an_engine_is_down(self, path: str, answer: bytes, reason: str) -> None:
        async with ScriptedEngine(probes={**WELL, path: answer}) as engine:
            assert await probe(engine) == Health(State.DOWN, reason)

    @pytest.mark.parametrize(
        ("name", "load"),
        [
            ("queue-metrics", Load(running=1, waiting=1)),
            ("overload-metrics", Load(running=1, waiting=0)),
            ("metrics", Load(running=0, waiting=0)),
            ("metrics-cold", Load()),
            ("dead-health", None),
        ],
    )
    async def test_its_load_is_its_own_count_of_batch_and_queue(self, name: str, load: Load | None) -> None:
        page = recording("tgi", name).raw
        async with ScriptedEngine(probes={"/metrics": page}) as engine, httpx.AsyncClient(trust_env=False) as client:
            config = schema.Engine(kind="tgi", url=engine.url)
            assert await TgiEngine(engine.url, config).read_load(client) == load

    async def test_a_dead_shard_gets_no_requests(self) -> None:
        async with tgi(probes={**WELL, "/health": recording("tgi", "dead-health").raw}, models=[MODEL]) as setup:
            answer = await setup.ask()
            assert (answer.status, "its shard is dead" in error_of(answer)["message"]) == (503, True)
            assert setup.engine.requests == []

    async def test_the_model_is_known_by_its_id(self) -> None:
        async with tgi() as setup:
            listed = (await get(setup.sluice.port, "/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == [MODEL, "chat"]

    async def test_the_limit_of_stop_strings_is_the_engines_own(self) -> None:
        info = {"model_id": MODEL, "max_stop_sequences": 1}
        async with tgi(probes={**WELL, "/info": json_reply(info)}) as setup:
            error = error_of(await setup.ask(stop=["a", "b"]))
            assert (error["param"], "at most 1" in error["message"]) == ("stop", True)
            assert setup.engine.requests == []

    async def test_there_are_no_embeddings(self) -> None:
        async with tgi() as setup:
            answer = await post_json(setup.sluice.port, "/v1/embeddings", {"model": "chat", "input": "a"})
            assert (answer.status, error_of(answer)["code"]) == (501, "unsupported_endpoint")


class TestWhatTheEngineGets:
    async def test_a_request_in_its_own_form(self) -> None:
        async with replay("chat-stop") as setup:
            await setup.ask(stop="END", max_completion_tokens=40, top_p=1.0, tools=[], user=None, response_format=None)
            (request,) = setup.engine.requests
            assert request.path == CHAT
            assert request.json() == {"model": "tgi", "messages": HI, "stop": ["END"], "max_tokens": 40}

    async def test_a_text_completion_of_several_prompts(self) -> None:
        async with replay("completion-batch-stream") as setup:
            await setup.ask(COMPLETIONS, prompt=["a", "b"], max_tokens=8, stream=True, echo=False)
            (request,) = setup.engine.requests
            assert request.path == COMPLETIONS
            assert request.json() == {"model": "tgi", "prompt": ["a", "b"], "max_tokens": 8, "stream": True}

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"n": 2}, "n"),
            ({"logit_bias": {"50": -100}}, "logit_bias"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages"),
        ],
        ids=str,
    )
    async def test_nothing_of_what_it_would_misread(self, fields: dict[str, Any], param: str) -> None:
        async with tgi() as setup:
            answer = await setup.ask(**fields)
            assert (answer.status, error_of(answer)["param"]) == (400, param)
            assert setup.engine.requests == []

    async def test_no_address_to_fetch(self) -> None:
        async with replay("chat") as setup:
            await setup.ask(messages=[{"role": "user", "content": "![](http://127.0.0.1:9/b.png)"}])
            assert b"![](" not in setup.engine.requests[0].body


class TestAnswers:
    async def test_a_stream(self) -> None:
        async with replay("chat-stream-usage") as setup:
            answer = await setup.ask(stream=True, stream_options={"include_usage": True})
            assert is_clean(answer.body)
            assert joined(answer.body) == "Hello! I'm here to help you"
            assert finish_reasons(answer.body) == ["length"]
            *_, counts, _done = read_events(answer.body)
            assert counts.json["usage"] == {"prompt_tokens": 33, "completion_tokens": 8, "total_tokens": 41}
            events = [event.json for event in read_events(answer.body) if not event.done]
            ((identity, model),) = {(event["id"], event["model"]) for event in events}
            assert identity
            assert model == MODEL

    async def test_a_whole_reply_has_the_same_name(self) -> None:
        async with replay("chat") as setup:
            answer = (await setup.ask()).json()
            assert (bool(answer["id"]), answer["model"]) == (True, MODEL)

    async def test_the_log_has_its_counts(self) -> None:
        async with replay("completion-batch-stream") as setup:
            await setup.ask(COMPLETIONS, prompt=["a", "b"], stream=True)
            record = await setup.sluice.record()
            assert (record["outcome"], record["prompt_tokens"], record["completion_tokens"]) == ("ok", 11, 8)

    async def test_the_stop_string_is_cut_off(self) -> None:
        async with replay("chat-stop-stream") as setup:
            answer = await setup.ask(stop=["END"], stream=True)
            said = joined(answer.body), finish_reasons(answer.body)
            assert said == ("1. apples\n2. pears\n3. plums\n", ["stop"])

    async def test_a_stream_that_keeps_no_limit_is_ended_and_its_engine_let_go(self) -> None:
        async with tgi([SSE_HEAD, *[token("x")] * 1030, token("one too many"), Step.HANG]) as setup:
            answer = await setup.ask(max_tokens=1030, stream=True)
            assert is_clean(answer.body)
            assert (len(joined(answer.body)), finish_reasons(answer.body)) == (1030, ["length"])
            await setup.engine.gone(2)

    async def test_a_whole_reply_above_1024_tokens_is_gathered_and_cut(self) -> None:
        tokens = [token("x")] * 2047
        last = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2048, "total_tokens": 2051}
        end = [data(last), data({"choices": [], "usage": usage}), DONE]
        async with tgi([SSE_HEAD, *tokens, *map(chunk, end), LAST_CHUNK]) as setup:
            answer = (await setup.ask(max_tokens=1030)).json()
            assert setup.engine.requests[0].json()["stream"] is True
            assert answer["object"] == "chat.completion"
            assert answer["choices"][0]["message"]["content"] == "x" * 1030
            assert answer["usage"]["completion_tokens"] == 1030


class TestTools:
    @pytest.mark.parametrize("name", ["chat-tools-stream", "chat-tools"])
    async def test_a_call_in_one_piece(self, name: str) -> None:
        """Asked for as a stream; a server that sends it in one piece all the same is understood."""
        async with replay(name) as setup:
            (choice,) = (await setup.ask(tools=[TOOL])).json()["choices"]
            (call,) = choice["message"]["tool_calls"]
            assert (choice["finish_reason"], json.loads(call["function"]["arguments"])) == (
                "tool_calls",
                {"city": "Paris"},
            )
            assert setup.engine.requests[0].json()["tools"] == [TOOL]

    async def test_a_reply_without_a_call_has_the_counts_of_what_was_sent(self) -> None:
        async with replay("chat-tools-no-tool-stream") as setup:
            answer = (await setup.ask(tools=[TOOL])).json()
            assert answer["choices"][0]["message"]["content"].startswith("Hello!")
            assert answer["usage"]["completion_tokens"] == 25

    async def test_a_stream(self) -> None:
        async with replay("chat-tools-required-stream") as setup:
            answer = await setup.ask(tools=[TOOL], tool_choice="required", stream=True)
            assert is_clean(answer.body)
            assert finish_reasons(answer.body) == ["tool_calls"]

    async def test_a_call_that_broke_off_is_a_failure(self) -> None:
        whole = recording("tgi", "chat-tools-required-stream").body
        body, _, _ = whole.rpartition(b'data: {"object"')
        async with tgi([SSE_HEAD, chunk(body), 0.05, chunk(DONE), LAST_CHUNK]) as setup:
            assert failed((await setup.ask(tools=[TOOL], stream=True)).body)


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "status", "kind", "code", "text"),
        [
            ("overload-chat", 429, "rate_limit_error", "engine_overloaded", "Model is overloaded"),
            ("chat-context-overflow", 422, "invalid_request_error", "context_length_exceeded", "must be <= 4096"),
            ("chat-seed-negative", 422, "invalid_request_error", "engine_error", "expected u64"),
            ("small-chat-body-too-large", 413, "invalid_request_error", "engine_error", "length limit exceeded"),
            ("chat-content-type-text", 415, "invalid_request_error", "engine_error", "application/json"),
            ("strict-template-system", 422, "invalid_request_error", "engine_error", "roles must alternate"),
            ("dead-chat", 502, "engine_error", "engine_error", "Connection refused"),
            ("chat-error-decode", 502, "engine_error", "engine_error", "illegal memory access"),
            ("auth-wrong-chat", 502, "engine_error", "engine_credentials", "`api_key`"),
        ],
    )
    async def test_whose_fault_it_is(self, name: str, status: int, kind: str, code: str, text: str) -> None:
        async with replay(name) as setup:
            answer = await setup.ask()
            error = error_of(answer)
            assert (answer.status, error["type"], error["code"]) == (status, kind, code)
            assert text in error["message"]

    async def test_overload_before_any_output_leaves_no_stream(self) -> None:
        async with replay("overload-chat-stream") as setup:
            answer = await setup.ask(stream=True)
            assert answer.status in (429, 502)
            assert error_of(answer)["message"] == "Model is overloaded"

    async def test_overload_where_a_stream_was_gathered(self) -> None:
        async with replay("overload-chat-stream") as setup:
            answer = await setup.ask(tools=[TOOL])
            assert (answer.status, error_of(answer)["code"]) == (429, "engine_overloaded")

    @pytest.mark.parametrize("name", ["chat-error-decode-stream", "died-mid-chat-stream"])
    async def test_an_error_after_output_ends_the_stream_without_done(self, name: str) -> None:
        async with replay(name) as setup:
            answer = await setup.ask(stream=True)
            assert answer.status == 200
            assert failed(answer.body)
            assert finish_reasons(answer.body) == []

    async def test_one_prompt_that_fails_fails_the_stream(self) -> None:
        async with replay("completion-batch-error-stream") as setup:
            assert failed((await setup.ask(COMPLETIONS, prompt=["a", "b"], stream=True)).body)

    @pytest.mark.parametrize("fields", [{"stream": True}, {}, {"tools": [TOOL]}], ids=str)
    async def test_a_client_that_leaves_lets_the_engine_go(self, fields: dict[str, Any]) -> None:
        async with tgi([SSE_HEAD, token("a"), Step.HANG]) as setup:
            async with RawClient(setup.sluice.port) as client:
                await client.request("POST", CHAT, {"model": "chat", "messages": HI, **fields})
                await eventually(lambda: setup.engine.running)
                client.close()
            await setup.engine.gone(1)


class TestOpenAiLibrary:
    @pytest.fixture
    async def sdk(self) -> AsyncIterator[Any]:
        """A function that makes a client of a gateway."""
        async with AsyncExitStack() as stack:

            async def connect(sluice: RunningGateway) -> openai.AsyncOpenAI:
                http = openai.DefaultAsyncHttpxClient(trust_env=False)
                client = openai.AsyncOpenAI(base_url=f"{sluice.url}/v1", api_key="x", http_client=http, max_retries=0)
                return await stack.enter_async_context(client)

            yield connect

    async def test_a_whole_answer(self, sdk: Any) -> None:
        async with replay("chat-stop") as setup:
            client = await sdk(setup.sluice)
            reply = await client.chat.completions.create(model="chat", messages=HI, stop="END")
            assert reply.choices[0].message.content == "1. apples\n2. pears\n3. plums\n"
            assert (reply.choices[0].finish_reason, reply.usage.total_tokens) == ("stop", 50)

    async def test_a_streamed_tool_call(self, sdk: Any) -> None:
        async with replay("chat-tools-stream") as setup:
            client = await sdk(setup.sluice)
            async with client.chat.completions.stream(model="chat", messages=HI, tools=[TOOL]) as stream:
                final = await stream.get_final_completion()
            (call,) = final.choices[0].message.tool_calls
            assert (final.choices[0].finish_reason, call.function.name) == ("tool_calls", "get_weather")
            assert json.loads(call.function.arguments) == {"city": "Paris"}

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("overload-chat", openai.RateLimitError),
            ("chat-context-overflow", openai.UnprocessableEntityError),
            ("dead-chat", openai.InternalServerError),
        ],
    )
    async def test_errors_by_their_class(self, sdk: Any, name: str, error: type[Exception]) -> None:
        async with replay(name) as setup:
            client = await sdk(setup.sluice)
            with pytest.raises(error):
                await client.chat.completions.create(model="chat", messages=HI)
