"""The `ollama` library as its users have it, before engines that speak OpenAI's dialect only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ollama
import pytest
from anyio import to_thread

from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import RunningGateway, engine_config, gateway
from tests.support.sse import (
    DONE,
    ERROR,
    FIN,
    ROLE,
    SSE_HEAD,
    TC,
    USE,
    R,
    T,
    chunk,
    json_reply,
    sse_reply,
)

pytestmark = pytest.mark.anyio

KEY = "sk-of-a-client"
HI = [{"role": "user", "content": "hi"}]
PROBES = {"/v1/models": json_reply({"data": [{"id": "m", "max_model_len": 4096}]})}
STREAM = sse_reply(ROLE, R("reasoning", "t"), T("Hé "), T("🦊"), FIN("stop"), USE(7, 2), DONE)
TIMINGS = {"prompt_n": 7, "prompt_ms": 20.5, "predicted_n": 2, "predicted_ms": 40.0}


def answer(**message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "", **message}, "finish_reason": "stop"}
    return json_reply({"object": "chat.completion", "choices": [choice], "timings": TIMINGS})


class Sdk:
    """A client whose gateway is before `engine`."""

    def __init__(self, client: ollama.AsyncClient, engine: ScriptedEngine, sluice: RunningGateway) -> None:
        self.client = client
        self.engine = engine
        self.sluice = sluice

    @property
    def sent(self) -> Any:
        """What the engine was last asked."""
        return self.engine.requests[-1].json()


@asynccontextmanager
async def sdk(*script: Any, key: str = KEY) -> AsyncIterator[Sdk]:
    async with (
        ScriptedEngine(script, probes=PROBES) as engine,
        gateway(engines={"a": engine_config(engine.url)}, server={"keys": [{"name": "laptop", "key": KEY}]}) as sluice,
        ollama.AsyncClient(sluice.url, headers={"Authorization": f"Bearer {key}"}, trust_env=False) as client,
    ):
        yield Sdk(client, engine, sluice)


async def streamed(it: Sdk, into: list[str | None], model: str = "m") -> None:
    async for part in await it.client.chat(model, HI, stream=True):
        into.append(part.message.content)  # noqa: PERF401 - what came before an error is kept


def weather(city: str) -> str:
    """Says what the weather is.

    Args:
        city: where.
    """
    return f"sunny in {city}"


class TestChat:
    async def test_whole(self) -> None:
        async with sdk(answer(content="Hé 🦊", reasoning_content="t")) as it:
            reply = await it.client.chat("m", HI, think=True, options={"num_predict": 5, "seed": 1, "num_ctx": 2048})
        assert (reply.message.content, reply.message.thinking) == ("Hé 🦊", "t")
        assert (reply.model, reply.done, reply.done_reason) == ("m", True, "stop")
        assert (reply.prompt_eval_count, reply.prompt_eval_duration) == (7, 20_500_000)
        assert (reply.eval_count, reply.eval_duration) == (2, 40_000_000)
        assert it.sent == {"model": "m", "messages": HI, "max_tokens": 5, "seed": 1, "reasoning_effort": "medium"}

    async def test_streamed(self) -> None:
        async with sdk(STREAM) as it:
            *parts, last = [part async for part in await it.client.chat("m", HI, stream=True)]
        assert [(part.message.thinking, part.message.content) for part in parts] == [
            ("t", ""),
            (None, "Hé "),
            (None, "🦊"),
        ]
        assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("stop", 7, 2)

    async def test_by_the_client_that_blocks(self) -> None:
        async with sdk(STREAM) as it:

            def ask() -> str:
                with ollama.Client(it.sluice.url, headers={"x-api-key": KEY}, trust_env=False) as client:
                    return "".join(part.message.content or "" for part in client.chat("m", HI, stream=True))

            assert await to_thread.run_sync(ask) == "Hé 🦊"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_tools_there_and_back(self, stream: bool) -> None:
        """The library makes a tool of a function, and sends calls back as they came, but without their ids."""
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Zürich"}'}}
        called = sse_reply(ROLE, TC(0, "c1", "weather", '{"city":'), TC(0, args='"Zürich"}'), FIN("tool_calls"), DONE)
        async with sdk([called if stream else answer(tool_calls=[call])], [answer(content="sunny")]) as it:
            if stream:
                [first, _] = [part async for part in await it.client.chat("m", HI, tools=[weather], stream=True)]
            else:
                first = await it.client.chat("m", HI, tools=[weather])
            [tool] = it.sent["tools"]
            [made] = first.message.tool_calls or []
            result = {"role": "tool", "content": weather(**made.function.arguments), "tool_name": made.function.name}
            last = await it.client.chat("m", [*HI, first.message, result])
        assert last.message.content == "sunny"
        assert tool["type"] == "function"
        assert tool["function"]["name"] == "weather"
        assert tool["function"]["parameters"]["required"] == ["city"]
        _, asked, answered = it.sent["messages"]
        assert asked["tool_calls"][0]["function"] == call["function"]
        assert answered["tool_call_id"] == asked["tool_calls"][0]["id"]
        assert answered["content"] == "sunny in Zürich"

    async def test_a_schema_and_an_image(self) -> None:
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        image = ollama.Image(value="iVBORw0KGgo=")
        async with sdk(answer(content='{"ok":true}')) as it:
            await it.client.chat("m", [ollama.Message(role="user", content="hi", images=[image])], format=schema)
        assert it.sent["response_format"]["json_schema"]["schema"] == schema
        assert it.sent["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="

    async def test_log_probabilities(self) -> None:
        token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1.5}]}
        choice = {"message": {"content": "a"}, "logprobs": {"content": [token]}, "finish_reason": "stop"}
        async with sdk(json_reply({"choices": [choice]})) as it:
            reply = await it.client.chat("m", HI, logprobs=True, top_logprobs=1)
        [told] = reply.logprobs or []
        assert (told.token, told.logprob, told.top_logprobs[0].token) == ("a", -0.5, "b")


class TestOtherAnswers:
    async def test_generate(self) -> None:
        async with sdk(answer(content="a")) as it:
            reply = await it.client.generate("m", "hi", system="Be brief.", format="json")
        assert (reply.response, reply.done_reason) == ("a", "stop")
        assert it.sent["response_format"] == {"type": "json_object"}

    async def test_generate_streamed(self) -> None:
        async with sdk(STREAM) as it:
            parts = [part async for part in await it.client.generate("m", "hi", stream=True)]
        assert "".join(part.response or "" for part in parts) == "Hé 🦊"
        assert "".join(part.thinking or "" for part in parts) == "t"
        assert [part.done for part in parts] == [False, False, False, True]

    async def test_generate_raw(self) -> None:
        async with sdk(json_reply({"choices": [{"text": "a", "finish_reason": "stop"}]})) as it:
            assert (await it.client.generate("m", "<s>hi", raw=True)).response == "a"
        assert it.sent == {"model": "m", "prompt": "<s>hi"}

    async def test_loading_a_model(self) -> None:
        async with sdk(Step.HANG) as it:
            assert (await it.client.generate("m")).done_reason == "load"
            assert (await it.client.generate("m", keep_alive=0)).done_reason == "unload"

    async def test_embed(self) -> None:
        vectors = {"data": [{"index": at, "embedding": [0.5, at]} for at in (1, 0)], "usage": {"prompt_tokens": 4}}
        async with sdk(json_reply(vectors)) as it:
            new = await it.client.embed("m", ["a", "b"])
            old = await it.client.embeddings("m", "a")
        assert new.embeddings == [[0.5, 0], [0.5, 1]]
        assert new.prompt_eval_count == 4
        assert old.embedding == [0.5, 0]


class TestModels:
    async def test_list_show_and_ps(self) -> None:
        async with sdk() as it:
            [listed] = (await it.client.list()).models
            [running] = (await it.client.ps()).models
            shown = await it.client.show("m:latest")
        assert (listed.model, running.model, running.context_length) == ("m", "m", 4096)
        assert listed.modified_at is not None
        assert shown.modelinfo == {"general.architecture": "sluice", "sluice.context_length": 4096}
        assert shown.capabilities == ["completion", "tools"]

    async def test_nothing_can_be_changed(self) -> None:
        async with sdk() as it:
            for change in (
                it.client.pull("m"),
                it.client.push("m"),
                it.client.delete("m"),
                it.client.copy("m", "n"),
                it.client.create("n", from_="m"),
            ):
                with pytest.raises(ollama.ResponseError, match="Sluice changes no models") as caught:
                    await change
                assert caught.value.status_code == 403
            assert not it.engine.requests


class TestErrors:
    async def test_an_unknown_model(self) -> None:
        async with sdk() as it:
            for ask in (it.client.chat("q", HI), streamed(it, [], "q"), it.client.show("q")):
                with pytest.raises(ollama.ResponseError, match="The model `q` does not exist") as caught:
                    await ask
                assert caught.value.status_code == 404

    async def test_a_wrong_key(self) -> None:
        async with sdk(key="sk-other") as it:
            with pytest.raises(ollama.ResponseError, match="The API key is not valid") as caught:
                await it.client.list()
            assert caught.value.status_code == 401

    async def test_what_an_engine_refuses(self) -> None:
        refusal = json_reply({"error": {"message": "too long", "type": "exceed_context_size_error"}}, 400)
        async with sdk(refusal) as it:
            with pytest.raises(ollama.ResponseError, match="too long") as caught:
                await it.client.chat("m", HI)
            assert caught.value.status_code == 400

    async def test_a_stream_that_fails(self) -> None:
        got: list[str | None] = []
        async with sdk(SSE_HEAD, chunk(ROLE + T("par")), 0.05, chunk(ERROR("boom"))) as it:
            with pytest.raises(ollama.ResponseError, match="boom"):
                await streamed(it, got)
        assert got == ["par"]

    async def test_leaving_early(self) -> None:
        async with sdk(SSE_HEAD, chunk(ROLE + T("a")), Step.HANG) as it:
            stream = await it.client.chat("m", HI, stream=True)
            assert (await anext(stream)).message.content == "a"
            await stream.aclose()
            await it.engine.gone(1)
