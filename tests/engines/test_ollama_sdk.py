"""OpenAI's own library, in front of an Ollama."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.support.engine import ScriptedEngine
from tests.support.ollama import CALL, END, VECTORS, N, Ollama, ndjson_reply, sluice
from tests.support.wire import recording

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def sdk(engine: ScriptedEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with sluice(engine) as running:
        url = f"{running.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, http_client=http) as client:
            yield client


async def test_a_chat() -> None:
    async with Ollama(recording("ollama", "native-chat-warm").script()) as engine, sdk(engine) as client:
        answer = await client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Say hello."}]
        )
    assert answer.choices[0].message.content == "I'm so glad you're here."
    assert answer.usage is not None
    assert answer.usage.total_tokens == 20


async def test_a_stream_with_tools_and_thoughts() -> None:
    calls = CALL(("rd", None, {"p": 1}), ("rd", None, {"p": 2})) + CALL(("rd", None, {"p": 2}))
    script = [ndjson_reply(N(thinking="hm"), N("I look."), calls, END(prompt_eval_cached_count=4))]
    async with (
        Ollama(script) as engine,
        sdk(engine) as client,
        client.chat.completions.stream(
            model="smollm2",
            messages=[{"role": "user", "content": "Look."}],
            tools=[{"type": "function", "function": {"name": "rd", "parameters": {"type": "object"}}}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        answer = await stream.get_final_completion()
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    made = choice.message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in made] == [{"p": 1}, {"p": 2}, {"p": 2}]
    assert len({call.id for call in made}) == 3
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_a_stream_that_fails() -> None:
    script = recording("ollama", "native-chat-runner-killed-stream").script()
    async with Ollama(script) as engine, sdk(engine) as client:
        stream = await client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Write."}], stream=True
        )
        with pytest.raises(openai.APIError, match="unexpected EOF"):
            async for _ in stream:
                pass


async def test_a_prompt_that_is_too_long() -> None:
    script = recording("ollama", "native-chat-overflow-no-truncate").script()
    async with Ollama(script) as engine, sdk(engine) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "x"}])
    assert refused.value.code == "context_length_exceeded"


async def test_a_completion() -> None:
    script = recording("ollama", "native-generate-stream").script()
    async with Ollama(script) as engine, sdk(engine) as client:
        stream = await client.completions.create(model="smollm2", prompt="Say hello.", stream=True)
        texts = [piece.choices[0].text async for piece in stream]
    assert "".join(texts) == "I'm so glad you're here."
    assert engine.requests[0].path == "/api/generate"


@pytest.mark.parametrize("how", [{}, {"encoding_format": "float"}], ids=["as the library asks", "float"])
async def test_embeddings(how: dict[str, Any]) -> None:
    async with Ollama([VECTORS]) as engine, sdk(engine) as client:
        answer = await client.embeddings.create(model="smollm2", input="hello", **how)
    assert (answer.data[0].embedding, answer.usage.prompt_tokens) == ([0.5, -1, 2], 4)
    assert engine.requests[0].json()["input"] == ["hello"]
