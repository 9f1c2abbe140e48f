"""The `ollama` library against Sluice and a real llama.cpp: what its users do, though no Ollama is there."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import ollama
import pytest

from gateway.upstream.http import httpx
from tests.real.conftest import KEY
from tests.real.llamacpp import ALIAS
from tests.support.gateway import RunningGateway

pytestmark = [pytest.mark.anyio, pytest.mark.real]

SKY = [{"role": "user", "content": "Why is the sky blue?"}]
REPEATABLE = {"temperature": 0, "seed": 7, "num_predict": 8}


@pytest.fixture
async def client(sluice: RunningGateway) -> AsyncIterator[ollama.AsyncClient]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with ollama.AsyncClient(sluice.url, headers=headers, trust_env=False, timeout=60) as client:
        yield client


async def straight(url: str, **fields: Any) -> str:
    """llama.cpp's own answer, past the gateway."""
    body = {"messages": SKY, "temperature": 0, "seed": 7, "max_tokens": 8, **fields}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as asking:
        reply = (await asking.post(f"{url}/v1/chat/completions", json=body)).raise_for_status().json()
    return str(reply["choices"][0]["message"]["content"])


class TestAnswers:
    async def test_a_chat_says_what_the_engine_says(self, client: ollama.AsyncClient, llamacpp_url: str) -> None:
        reply = await client.chat("chat:latest", SKY, options=REPEATABLE)
        assert reply.message.content == await straight(llamacpp_url)
        assert (reply.model, reply.done_reason, reply.eval_count) == ("chat:latest", "length", 8)
        assert all(number and number > 0 for number in (reply.prompt_eval_count, reply.eval_duration))
        assert 0 < reply.eval_duration < reply.total_duration

    async def test_a_stream_is_the_same_in_pieces(self, client: ollama.AsyncClient, llamacpp_url: str) -> None:
        *parts, last = [part async for part in await client.chat(ALIAS, SKY, options=REPEATABLE, stream=True)]
        assert "".join(part.message.content or "" for part in parts) == await straight(llamacpp_url)
        assert len(parts) > 4
        assert (last.done_reason, last.eval_count) == ("length", 8)
        assert last.prompt_eval_duration > 0

    async def test_a_generation_is_a_chat_of_one_message(self, client: ollama.AsyncClient, llamacpp_url: str) -> None:
        reply = await client.generate("chat", SKY[0]["content"], options=REPEATABLE)
        assert reply.response == await straight(llamacpp_url)

    async def test_a_raw_prompt_goes_on(self, client: ollama.AsyncClient) -> None:
        whole = await client.generate("chat", "One, two, three,", raw=True, options=REPEATABLE)
        parts = await client.generate("chat", "One, two, three,", raw=True, options=REPEATABLE, stream=True)
        assert "four" in whole.response
        assert "".join([part.response async for part in parts]) == whole.response

    async def test_an_answer_in_the_form_of_a_schema(self, client: ollama.AsyncClient) -> None:
        schema = {
            "type": "object",
            "properties": {"blue": {"enum": ["yes", "no"]}},
            "required": ["blue"],
            "additionalProperties": False,
        }
        reply = await client.chat("chat", SKY, format=schema, options={"temperature": 0, "num_predict": 100})
        assert json.loads(reply.message.content or "")["blue"] in ("yes", "no")

    async def test_a_stop_text_is_not_in_it(self, client: ollama.AsyncClient, llamacpp_url: str) -> None:
        words = (await straight(llamacpp_url)).split()
        reply = await client.chat("chat", SKY, options={**REPEATABLE, "stop": [words[2]]})
        assert reply.done_reason == "stop"
        assert words[2] not in (reply.message.content or "").split()

    async def test_log_probabilities(self, client: ollama.AsyncClient) -> None:
        reply = await client.chat("chat", SKY, logprobs=True, top_logprobs=2, options={**REPEATABLE, "num_predict": 2})
        assert [len(token.top_logprobs or []) for token in reply.logprobs or []] == [2, 2]

    @pytest.mark.parametrize("think", [True, False, "low"])
    async def test_a_model_that_cannot_think_answers_all_the_same(
        self, client: ollama.AsyncClient, think: bool | str
    ) -> None:
        assert (await client.chat("chat", SKY, think=think, options=REPEATABLE)).message.content

    async def test_calls_and_results_in_a_conversation(self, client: ollama.AsyncClient) -> None:
        call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
        talk = [
            *SKY,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "weather", "content": "sunny"},
        ]
        assert (await client.chat("chat", talk, options=REPEATABLE)).message.content


class TestModels:
    async def test_what_there_is(self, client: ollama.AsyncClient) -> None:
        assert {model.model for model in (await client.list()).models} == {"chat", ALIAS}
        assert {model.context_length for model in (await client.ps()).models} == {2048}
        assert (await client.show("chat")).modelinfo["sluice.context_length"] == 2048
        assert (await client.generate("chat")).done_reason == "load"


class TestErrors:
    async def test_a_prompt_that_is_too_long(self, client: ollama.AsyncClient) -> None:
        with pytest.raises(ollama.ResponseError, match="exceeds the available context size") as caught:
            await client.chat("chat", [{"role": "user", "content": "word " * 3000}])
        assert caught.value.status_code == 400

    async def test_more_context_than_there_is(self, client: ollama.AsyncClient) -> None:
        with pytest.raises(ollama.ResponseError, match="8192 tokens are more than the 2048"):
            await client.chat("chat", SKY, options={"num_ctx": 8192})

    async def test_a_model_that_has_no_embeddings(self, client: ollama.AsyncClient) -> None:
        with pytest.raises(ollama.ResponseError, match="does not support embeddings"):
            await client.embed("chat", "a")

    async def test_leaving_frees_the_slot(
        self, client: ollama.AsyncClient, sluice: RunningGateway, llamacpp_url: str
    ) -> None:
        stream = await client.chat("chat", SKY, options={"num_predict": 1500}, stream=True)
        assert (await anext(stream)).done is False
        assert await busy_slots(llamacpp_url) == 1
        await stream.aclose()
        assert (await sluice.record())["outcome"] == "cancelled"
        with anyio.fail_after(5):  # all 1500 tokens would take many times as long
            while await busy_slots(llamacpp_url):
                await anyio.sleep(0.2)


async def busy_slots(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as asking:
        return sum(slot["is_processing"] for slot in (await asking.get(f"{url}/slots")).json())
