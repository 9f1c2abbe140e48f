"""A real vLLM behind the gateway."""

import uuid
from typing import Any

import anthropic
import anyio
import ollama
import openai
import pytest

from gateway.engines.openmetrics import read_count
from gateway.upstream.http import httpx
from tests.support.client import RawClient, get, post_json
from tests.support.gateway import CHAT, RunningGateway, gateway
from tests.support.sse import finish_reasons, is_clean
from tests.support.vllm import CONTEXT, MODEL
from tests.vllm.conftest import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

HEADERS = {"Authorization": f"Bearer {KEY}"}
SKY: Any = [{"role": "user", "content": "Why is the sky blue?"}]
SAME: Any = {"temperature": 0, "max_tokens": 8}


def openai_client(sluice: RunningGateway) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{sluice.url}/v1", api_key=KEY, max_retries=0, http_client=http)


def anthropic_client(sluice: RunningGateway) -> anthropic.AsyncAnthropic:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    return anthropic.AsyncAnthropic(base_url=sluice.url, api_key=KEY, max_retries=0, http_client=http)


async def chat(sluice: RunningGateway, **fields: Any) -> dict[str, Any]:
    reply = await post_json(sluice.port, CHAT, {"model": MODEL, "messages": SKY, **SAME, **fields}, HEADERS)
    assert reply.status == 200, reply.body
    return dict(reply.json())


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


class TestWhatIsKnownOfIt:
    async def test_its_models_its_cache_and_its_load(self, sluice: RunningGateway) -> None:
        with anyio.fail_after(10):
            while not (card := (await get(sluice.port, "/admin/engines", HEADERS)).json()["engines"][0])["load"]:
                await anyio.sleep(0.05)
        assert card["state"] == "ready"
        [model] = card["models"]
        assert (model["name"], model["context"], model["version"][:2]) == (MODEL, CONTEXT, "0.")
        assert card["load"]["kv_tokens"] > CONTEXT
        assert card["load"]["waiting"] == 0
        assert {"/v1/messages", "/v1/messages/count_tokens", "/v1/responses"} <= set(card["endpoints"])

    async def test_another_version_than_the_pinned_one_takes_no_requests(self, vllm_url: str) -> None:
        pinned = {"kind": "vllm", "url": vllm_url, "pins": {MODEL: {"version": "0.1.0"}}}
        async with gateway(engines={"big": pinned}) as sluice:
            reply = await post_json(sluice.port, CHAT, {"model": MODEL, "messages": SKY})
        assert reply.status == 503
        assert "pinned to 0.1.0" in reply.json()["error"]["message"]


class TestOpenAI:
    async def test_a_stream_is_the_same_answer_in_pieces(self, sluice: RunningGateway) -> None:
        whole = await chat(sluice)
        fields = {"model": MODEL, "messages": SKY, **SAME, "stream": True, "stream_options": {"include_usage": True}}
        reply = await post_json(sluice.port, CHAT, fields, HEADERS)
        record = await sluice.record(1)
        assert is_clean(reply.body)
        assert finish_reasons(reply.body) == ["length"]
        assert whole["usage"]["completion_tokens"] == 8
        assert (record["prompt_tokens"], record["completion_tokens"]) == (whole["usage"]["prompt_tokens"], 8)
        assert record["identity"].startswith("version=")

    async def test_responses_pass_through(self, sluice: RunningGateway) -> None:
        client = openai_client(sluice)
        answer = await client.responses.create(model="chat", input="Say hello.", max_output_tokens=8, temperature=0)
        async with client.responses.stream(
            model="chat", input="Say hello.", max_output_tokens=8, temperature=0
        ) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        await client.close()
        assert answer.output_text
        assert final.output_text == answer.output_text
        assert kinds[0] == "response.created"
        assert answer.usage is not None
        records = [await sluice.record(at) for at in (0, 1)]
        assert [record["completion_tokens"] for record in records] == [8, 8]
        assert {record["path"] for record in records} == {"/v1/responses"}

    async def test_a_prompt_beyond_the_context_is_refused(self, sluice: RunningGateway) -> None:
        client = openai_client(sluice)
        long: Any = [{"role": "user", "content": "word " * 2 * CONTEXT}]
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await client.chat.completions.create(model=MODEL, messages=long)
        await client.close()


class TestOtherDialects:
    async def test_anthropic_messages_pass_through(self, sluice: RunningGateway) -> None:
        client = anthropic_client(sluice)
        message = await client.messages.create(model="chat", max_tokens=8, messages=SKY, extra_body={"temperature": 0})
        async with client.messages.stream(
            model="chat", max_tokens=8, messages=SKY, extra_body={"temperature": 0}
        ) as stream:
            pieces = [piece async for piece in stream.text_stream]
        counted = await client.messages.count_tokens(model="chat", messages=SKY)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(
                model="chat", max_tokens=8, messages=[{"role": "user", "content": "w " * 9000}]
            )
        await client.close()
        assert message.content[0].type == "text"
        assert "".join(pieces) == message.content[0].text
        assert message.stop_reason == "max_tokens"
        assert message.model == MODEL  # as the engine calls it: nothing was translated
        assert counted.input_tokens == (await sluice.record())["prompt_tokens"]

    async def test_a_program_that_only_knows_ollama(self, sluice: RunningGateway) -> None:
        client = ollama.AsyncClient(host=sluice.url, headers=HEADERS, trust_env=False)
        answer = await client.chat(model=MODEL, messages=SKY, options={"temperature": 0, "num_predict": 8})
        stream = await client.chat(model=MODEL, messages=SKY, options={"temperature": 0, "num_predict": 8}, stream=True)
        pieces = [part async for part in stream]
        await client._client.aclose()
        assert answer.message.content
        assert "".join(part.message.content or "" for part in pieces) == answer.message.content
        assert (pieces[-1].done_reason, pieces[-1].eval_count) == ("length", 8)


class TestItsOwnFields:
    async def test_a_message_of_the_assistant_is_continued(self, sluice: RunningGateway) -> None:
        begun = [*SKY, {"role": "assistant", "content": "The sky is blue because"}]
        go_on = await chat(sluice, messages=begun, continue_final_message=True, add_generation_prompt=False)
        anew = await chat(sluice, messages=begun)
        assert go_on["usage"]["prompt_tokens"] < anew["usage"]["prompt_tokens"]
        assert text_of(go_on)

    async def test_cached_prefixes_are_shared_under_the_same_salt_only(self, sluice: RunningGateway) -> None:
        ours, theirs = uuid.uuid4().hex, uuid.uuid4().hex
        prompt: Any = [{"role": "user", "content": f"{uuid.uuid4().hex} {'Tell me of the sea. ' * 40}"}]

        async def cached(salt: str) -> int:
            answer = await chat(sluice, messages=prompt, cache_salt=salt)
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(ours), await cached(theirs)] == [0, 0]
        assert await cached(ours) >= 128
        assert (await sluice.record(2))["cached_tokens"] >= 128

    async def test_an_urgent_request_is_served_before_those_that_wait(self, sluice: RunningGateway) -> None:
        order: list[int] = []

        async def ask(priority: int) -> None:
            await chat(sluice, priority=priority, max_tokens=40, ignore_eos=True, messages=SKY)
            order.append(priority)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):  # all that it runs at once
                tasks.start_soon(ask, 5)
            await anyio.sleep(0.3)
            for _ in range(4):
                tasks.start_soon(ask, 9)
            await anyio.sleep(0.2)
            tasks.start_soon(ask, 0)
        assert order.index(0) < order.index(9)


class TestLeaving:
    @pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
    async def test_in_the_middle_of_a_stream(self, sluice: RunningGateway, vllm_url: str, path: str) -> None:
        asked = {"input": "Tell me a story."} if path == "/v1/responses" else {"messages": SKY}
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body = {"model": MODEL, limit: 2000, "ignore_eos": True, "stream": True, **asked}
        async with RawClient(sluice.port) as client:
            await client.request("POST", path, body, HEADERS)
            await client.read_until(b"data: ", count=8, timeout=60)
            client.close()
        with anyio.fail_after(20):
            while await running(vllm_url):
                await anyio.sleep(0.2)
        record = await sluice.record()
        assert (record["outcome"], record["status"]) == ("cancelled", 200)


async def running(url: str) -> int | None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return read_count((await client.get(f"{url}/metrics")).text, "vllm:num_requests_running")
