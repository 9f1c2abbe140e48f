"""The gateway in front of an Ollama that answers as real ones were recorded to."""

import json
from typing import Any

import pytest

from gateway.config.schema import Engine
from gateway.engines.base import Health, State
from gateway.engines.ollama import OllamaEngine
from gateway.errors import InvalidRequest
from gateway.request import Endpoint, InferenceRequest
from gateway.upstream.http import httpx
from tests.support.answers import error_of
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import CHAT, COMPLETIONS
from tests.support.ollama import DIGEST, END, NDJSON_HEAD, VECTORS, N, Ollama, ndjson_reply, sluice
from tests.support.sse import (
    LAST_CHUNK,
    chunk,
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

EMBEDDINGS = "/v1/embeddings"
ASK = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


async def replayed(name: str, body: object = ASK, path: str = CHAT) -> Reply:
    """What a client gets when the engine answers as it is recorded."""
    async with Ollama(recording("ollama", name).script()) as engine, sluice(engine) as running:
        return await post_json(running.port, path, body)


async def health(engine: ScriptedEngine) -> Health:
    """What a probe finds."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return await OllamaEngine(engine.url, Engine(kind="ollama")).probe(client)


ENGINE = OllamaEngine("http://127.0.0.1:11434", Engine(kind="ollama"))


class TestChat:
    async def test_a_whole_answer(self) -> None:
        async with Ollama(recording("ollama", "native-chat-warm").script()) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, {**ASK, "model": "alias", "max_tokens": 8, "temperature": 0})
            record = await running.record()
        (request,) = engine.requests
        assert (request.path, request.json()) == (
            "/api/chat",
            {
                **ASK,
                "stream": False,
                "truncate": False,
                "shift": False,
                "options": {"num_predict": 8, "temperature": 0},
            },
        )
        assert got.headers.all("content-type") == ["application/json"]
        answer = got.json()
        assert (answer["model"], answer["choices"][0]["message"]["content"]) == ("smollm2", "I'm so glad you're here.")
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", 20)
        assert (record["outcome"], record["prompt_tokens"], record["completion_tokens"]) == ("ok", 12, 8)
        assert record["engine_prefill"] == pytest.approx(0.023762)
        assert "cached_tokens" not in record

    async def test_a_stream(self) -> None:
        async with Ollama(recording("ollama", "native-chat-stream").script()) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, {**ASK, "stream": True})
            record = await running.record()
        assert engine.requests[0].json()["stream"] is True
        assert got.headers.all("content-type") == ["text/event-stream"]
        assert (got.complete, is_clean(got.body)) == (True, True)
        assert (joined(got.body), finish_reasons(got.body)) == ("I'm so glad you're here.", ["length"])
        assert not any(event.json.get("usage") for event in read_events(got.body) if not event.done)
        assert (record["prompt_tokens"], record["completion_tokens"], record["events"]) == (12, 8, 9)
        assert record["engine_decode"] == pytest.approx(0.203168)

    async def test_pieces_go_on_as_they_come(self) -> None:
        script = [NDJSON_HEAD, chunk(N("a")), Step.HANG]
        async with Ollama(script) as engine, sluice(engine) as running, RawClient(running.port) as client:
            await client.request("POST", CHAT, {**ASK, "stream": True})
            await client.read_until(b'"content":"a"')

    async def test_usage_comes_where_it_is_asked_for(self) -> None:
        body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
        got = await replayed("native-chat-stream", body)
        assert is_clean(got.body)
        usage = read_events(got.body)[-2].json
        assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 20)

    async def test_emoji_arrive_as_they_are(self) -> None:
        got = await replayed("native-chat-emoji-stream", {**ASK, "stream": True})
        lines = map(json.loads, recording("ollama", "native-chat-emoji-stream").body.splitlines())
        assert joined(got.body) == "".join(line["message"]["content"] for line in lines)

    async def test_a_tool_call(self) -> None:
        async with (
            Ollama(recording("ollama", "native-chat-tools-stream").script()) as engine,
            sluice(engine) as running,
        ):
            got = await post_json(running.port, CHAT, {**ASK, "stream": True, "tools": [TOOL]})
        assert engine.requests[0].json()["tools"] == [TOOL]
        (call,) = read_events(got.body)[0].choice["delta"]["tool_calls"]
        assert (call["index"], call["id"], json.loads(call["function"]["arguments"])) == (
            0,
            "call_ctsqtf63",
            {"city": "Paris"},
        )
        assert finish_reasons(got.body) == ["tool_calls"]

    async def test_thoughts(self) -> None:
        async with (
            Ollama(recording("ollama", "native-chat-think-stream").script()) as engine,
            sluice(engine) as running,
        ):
            got = await post_json(running.port, CHAT, {**ASK, "stream": True, "reasoning_effort": "low"})
        assert engine.requests[0].json()["think"] == "low"
        thoughts = [event.choice["delta"].get("reasoning_content") for event in read_events(got.body)[:-1]]
        assert "".join(filter(None, thoughts)) == "Two plus two is eight.\n"
        assert joined(got.body) == "8"

    async def test_context_and_keep_alive_are_those_of_the_config_on_every_endpoint(self) -> None:
        scripts = [[ndjson_reply(N("a"), END())], [json_reply({"response": "a", "done": True})], [VECTORS]]
        async with Ollama(scripts) as engine, sluice(engine, context=2048, keep_alive="-1") as running:
            await post_json(running.port, CHAT, {**ASK, "stream": True})
            await post_json(running.port, COMPLETIONS, {"model": "smollm2", "prompt": "a"})
            await post_json(running.port, EMBEDDINGS, {"model": "smollm2", "input": "a"})
        sent = [request.json() for request in engine.requests]
        assert [(body["options"]["num_ctx"], body["keep_alive"]) for body in sent] == [(2048, -1)] * 3
        assert [body["truncate"] for body in sent] == [False] * 3

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            (CHAT, {**ASK, "n": 2}, "n"),
            (CHAT, {**ASK, "options": {"num_ctx": 8192}}, "options"),
            (CHAT, {**ASK, "tool_choice": "required", "tools": [TOOL]}, "tool_choice"),
            (COMPLETIONS, {"model": "smollm2", "prompt": ["a", "b"]}, "prompt"),
            (EMBEDDINGS, {"model": "smollm2", "input": [1, 2]}, "input"),
        ],
    )
    async def test_what_cannot_be_carried_never_reaches_the_engine(self, path: str, body: object, param: str) -> None:
        async with Ollama([Step.HANG]) as engine, sluice(engine) as running:
            got = await post_json(running.port, path, body)
        assert (got.status, error_of(got)["param"], engine.requests) == (400, param, [])

    async def test_an_image_is_never_fetched(self) -> None:
        async with ScriptedEngine() as elsewhere, Ollama([Step.HANG]) as engine, sluice(engine) as running:
            picture = {"type": "image_url", "image_url": {"url": f"{elsewhere.url}/x.png"}}
            got = await post_json(
                running.port, CHAT, {"model": "smollm2", "messages": [{"role": "user", "content": [picture]}]}
            )
        assert (got.status, error_of(got)["code"]) == (400, "unsupported_content")
        assert (elsewhere.connections, engine.requests) == ([], [])

    @pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS])
    def test_a_body_nested_beyond_reason(self, endpoint: Endpoint) -> None:
        nested = '{"a":' * 100_000 + "1" + "}" * 100_000
        body = f'{{"model":"m","messages":[],"prompt":{nested},"input":{nested},"response_format":{nested}}}'
        with pytest.raises(InvalidRequest) as refused:
            ENGINE.call(InferenceRequest(endpoint, body.encode(), "m", False, 1), "m")
        assert refused.value.code == "invalid_json"


class TestFailures:
    @pytest.mark.parametrize(
        ("name", "status", "code", "param", "message"),
        [
            ("busy", 503, "engine_error", None, "server busy, please try again.  maximum pending requests exceeded"),
            ("load-failed", 500, "engine_error", None, "llama-server process has terminated: exit status 1"),
            ("runner-killed", 500, "engine_error", None, "an error was encountered while running the model"),
            ("unknown-model", 404, "model_not_found", "model", "model 'nope' not found"),
            ("bad-option-type", 400, "invalid_type", "max_tokens", 'option "num_predict" must be of type integer'),
            ("think-no-capability", 400, "engine_error", None, '"smollm2" does not support thinking'),
            ("tools-no-capability", 400, "engine_error", None, "does not support tools"),
            ("image", 400, "engine_error", None, "Multimodal data provided, but model does not support"),
            ("keep-alive-bad", 502, "engine_failed", None, "Engine `local` cannot read the `keep_alive`"),
            (
                "overflow-no-truncate",
                400,
                "context_length_exceeded",
                None,
                "The prompt has 9010 tokens, and the context holds 4096.",
            ),
        ],
    )
    async def test_an_error_answer(self, name: str, status: int, code: str, param: str | None, message: str) -> None:
        got = await replayed(f"native-chat-{name}", {**ASK, "stream": True})
        error = error_of(got)
        assert (got.status, error["code"], error["param"]) == (status, code, param)
        assert message in error["message"]
        assert (error["type"] == "engine_error") is (status >= 500)

    async def test_an_overflow_in_chunks(self) -> None:
        got = await replayed("native-chat-overflow-no-truncate-stream", {**ASK, "stream": True})
        assert (got.status, error_of(got)["code"]) == (400, "context_length_exceeded")

    async def test_an_embedding_that_is_too_long(self) -> None:
        got = await replayed("native-embed-truncate-false", {"model": "smollm2", "input": "a"}, EMBEDDINGS)
        error = error_of(got)
        assert (got.status, error["code"]) == (400, "context_length_exceeded")
        assert error["message"] == "the input length exceeds the context length"

    async def test_an_embedding_of_a_model_that_has_none(self) -> None:
        got = await replayed("native-embed", {"model": "smollm2", "input": "a"}, EMBEDDINGS)
        assert (got.status, "does not support embeddings" in error_of(got)["message"]) == (501, True)

    async def test_a_suffix_for_a_model_that_cannot_insert(self) -> None:
        body = {"model": "smollm2", "prompt": "def a(", "suffix": "return 1"}
        got = await replayed("native-generate-suffix", body, COMPLETIONS)
        assert (got.status, "does not support insert" in error_of(got)["message"]) == (400, True)

    async def test_a_host_that_it_does_not_know(self) -> None:
        async with Ollama([reply(b"", status=403)]) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, ASK)
        error = error_of(got)
        assert (got.status, error["code"]) == (502, "engine_forbidden")
        assert "OLLAMA_HOST" in error["message"]

    async def test_credentials_that_a_proxy_before_it_refuses(self) -> None:
        async with Ollama([json_reply({"error": "unauthorized"}, 401)]) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, ASK)
        assert (got.status, error_of(got)["code"]) == (502, "engine_credentials")

    async def test_a_proxy_before_it_that_finds_nobody(self) -> None:
        answer = reply(b"<html>Bad Gateway</html>", "Content-Type: text/html", status=502)
        async with Ollama([answer]) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, ASK)
        assert (got.status, error_of(got)["message"]) == (
            502,
            "Engine `local` answered with HTTP 502 and no explanation.",
        )

    async def test_the_model_process_is_killed_in_the_middle(self) -> None:
        script = recording("ollama", "native-chat-runner-killed-stream").script()
        async with Ollama(script) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, {**ASK, "stream": True})
            record = await running.record()
        assert (failed(got.body), finish_reasons(got.body)) == (True, [])
        assert joined(got.body).endswith(" inventor who had")
        error = read_events(got.body)[-1].error
        assert error is not None
        assert error["message"] == "an error was encountered while running the model: unexpected EOF"
        assert (record["outcome"], record["level"]) == ("engine_error", "warning")

    @pytest.mark.parametrize(
        "end", [Step.FIN, Step.RESET, LAST_CHUNK], ids=["closed", "reset", "without its last line"]
    )
    async def test_the_server_is_killed_in_the_middle(self, end: bytes | Step) -> None:
        reads = [data for _, data in recording("ollama", "native-chat-stream").reads[:4]]
        async with Ollama([*reads, 0.05, end]) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, {**ASK, "stream": True})
        assert (failed(got.body), finish_reasons(got.body)) == (True, [])
        assert "I'm so glad".startswith(joined(got.body)[:5])

    async def test_an_error_before_any_output_has_a_status(self) -> None:
        async with Ollama([ndjson_reply(b'{"error":"runner died"}\n')]) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, {**ASK, "stream": True})
        assert (got.status, error_of(got)["message"]) == (502, "runner died")

    @pytest.mark.parametrize("body", [b"{}", b"not json", N("a"), b'{"error":"boom"}'])
    async def test_a_whole_answer_that_is_none(self, body: bytes) -> None:
        async with Ollama([reply(body, "Content-Type: application/json")]) as engine, sluice(engine) as running:
            got = await post_json(running.port, CHAT, ASK)
        assert (got.status, error_of(got)["code"]) == (502, "engine_failed")

    async def test_a_number_in_a_vector_that_is_none(self) -> None:
        answer = reply(b'{"embeddings":[[NaN]]}', "Content-Type: application/json")
        async with Ollama([answer]) as engine, sluice(engine) as running:
            got = await post_json(running.port, EMBEDDINGS, {"model": "smollm2", "input": "a"})
        assert (got.status, error_of(got)["code"]) == (502, "engine_failed")

    @pytest.mark.parametrize("script", [[NDJSON_HEAD, chunk(N("a")), Step.HANG], [Step.HANG]], ids=["midway", "before"])
    async def test_a_client_that_leaves_takes_its_request_with_it(self, script: list[Any]) -> None:
        async with Ollama(script) as engine, sluice(engine) as running, RawClient(running.port) as client:
            await client.request("POST", CHAT, {**ASK, "stream": True})
            if len(script) > 1:
                await client.read_until(b'"content":"a"')
            else:
                await eventually(lambda: engine.requests)
            client.close()
            await engine.gone(1)

    async def test_what_it_has_no_endpoint_for(self) -> None:
        async with Ollama([Step.HANG]) as engine, sluice(engine) as running:
            got = await post_json(running.port, "/v1/rerank", {"model": "smollm2", "query": "a", "documents": ["b"]})
        assert (got.status, error_of(got)["code"], engine.requests) == (501, "unsupported_endpoint", [])


class TestModels:
    async def names(self, engine: ScriptedEngine, **fields: Any) -> dict[str, Any]:
        async with sluice(engine, **fields) as running:
            listed = (await get(running.port, "/v1/models")).json()["data"]
        return {model["id"]: model.get("max_model_len") for model in listed if model["id"] != "alias"}

    async def test_the_tag_latest_may_be_left_out(self) -> None:
        script = [json_reply({"message": {"content": "a"}, "done": True})]
        async with Ollama(script, models=["qwen:latest", "qwen:7b"]) as engine, sluice(engine) as running:
            asked = ["qwen", "qwen:latest", "qwen:7b", "qwen:1b", "QWEN"]
            got = [await post_json(running.port, CHAT, {**ASK, "model": name}) for name in asked]
        assert [one.status for one in got] == [200, 200, 200, 404, 404]
        assert [request.json()["model"] for request in engine.requests] == ["qwen", "qwen:latest", "qwen:7b"]

    @pytest.mark.parametrize(
        ("loaded", "trained", "configured", "context"),
        [
            ({}, 8192, None, 8192),
            ({"smollm2:latest": 4096}, 8192, None, 4096),
            ({"other:latest": 4096}, 8192, None, 8192),
            ({"smollm2:latest": 4096}, 8192, 2048, 2048),
            ({}, 8192, 16_384, 8192),
            ({}, None, 16_384, 16_384),
            ({}, None, None, None),
        ],
    )
    async def test_the_context(
        self, loaded: dict[str, int], trained: int | None, configured: int | None, context: int | None
    ) -> None:
        fields = {} if configured is None else {"context": configured}
        async with Ollama(loaded=loaded, context=trained) as engine:
            assert await self.names(engine, **fields) == {"smollm2": context, "smollm2:latest": context}

    async def test_probes_load_nothing(self) -> None:
        async with Ollama() as engine, sluice(engine, probe={"interval": 0.05}):
            await eventually(lambda: len(engine.probes) >= 6)
        assert {probe.path for probe in engine.probes} == {"/api/tags", "/api/version", "/api/ps"}
        assert engine.requests == []

    async def test_what_is_known_of_a_model(self) -> None:
        async with Ollama(loaded={"smollm2:latest": 4096}, models=["smollm2:latest", "cold:1b"]) as engine:
            known = {model.name: model for model in (await health(engine)).models}
        assert list(known) == ["smollm2:latest", "smollm2", "cold:1b"]
        assert {(model.digest, model.quantization, model.version) for model in known.values()} == {
            (DIGEST, "Q4_1", "0.33.0")
        }
        assert [model.loaded for model in known.values()] == [True, True, False]

    @pytest.mark.parametrize("answer", [json_reply({"error": "no"}, 404), reply(b"no")], ids=["an error", "no JSON"])
    async def test_a_server_that_does_not_tell_its_version_and_what_is_loaded(self, answer: bytes) -> None:
        async with Ollama(probes={"/api/ps": answer, "/api/version": answer}) as engine:
            models = (await health(engine)).models
        assert [(model.loaded, model.version) for model in models] == [(None, None)] * 2

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (json_reply({"error": "no"}, 500), "its list of models answers HTTP 500"),
            (reply(b"", status=403), "the engine refuses Sluice's credentials or host name (HTTP 403)"),
            (json_reply({"data": []}), "its list of models is not in Ollama's form"),
            (reply(b"<html>"), "its list of models is not in Ollama's form"),
        ],
    )
    async def test_what_is_not_well(self, answer: bytes, reason: str) -> None:
        async with Ollama(probes={"/api/tags": answer}) as engine:
            found = await health(engine)
        assert (found.state, found.reason) == (State.DOWN, reason)
