"""LangChain's `ChatOpenAI` against Sluice and a real llama.cpp, over OpenAI's chats and over its responses."""

import json
import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce
from typing import Any

import openai
import pytest
from anyio import to_thread
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.real.conftest import KEY
from tests.real.llamacpp import ALIAS, LONG_ANSWER, Watcher
from tests.real.sdk import NO_PROXY
from tests.real.test_tools import MESSAGES, TOOL
from tests.real.with_tools import sluice_with_tools
from tests.support.gateway import CHAT, RunningGateway

pytestmark = [pytest.mark.anyio, pytest.mark.real]

SKY = "Why is the sky blue?"
ENDLESS = "Count from 1 to 500: 1, 2, 3,"  # it never comes to an end before its limit
PATHS = {"chats": CHAT, "responses": "/v1/responses"}


class Sky(BaseModel):
    """What is known of the sky."""

    blue: bool
    clouds: int


@asynccontextmanager
async def chat_openai(base_url: str, **fields: Any) -> AsyncIterator[ChatOpenAI]:
    """A `ChatOpenAI` that tries each call once. LangChain never closes clients that it made itself."""
    settings = {"model": "chat", "base_url": f"{base_url}/v1", "api_key": KEY, "temperature": 0, "max_tokens": 8}
    async with openai.DefaultAsyncHttpxClient(**NO_PROXY) as http:
        with openai.DefaultHttpxClient(**NO_PROXY) as blocking:
            clients = {"http_async_client": http, "http_client": blocking, "max_retries": 0, "timeout": 60.0}
            yield ChatOpenAI(**{**settings, **clients, "stream_usage": True, **fields})


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return PATHS[request.param]


@pytest.fixture
async def llm(path: str, sluice: RunningGateway) -> AsyncIterator[ChatOpenAI]:
    async with chat_openai(sluice.url, use_responses_api=path == PATHS["responses"]) as model:
        yield model


def with_limit(llm: ChatOpenAI, tokens: int) -> ChatOpenAI:
    return llm.model_copy(update={"max_tokens": tokens})


async def straight(llamacpp: Watcher) -> str:
    """llama.cpp's own answer, past the gateway."""
    asked = {"model": ALIAS, "messages": [{"role": "user", "content": SKY}], "temperature": 0, "max_tokens": 8}
    return str(json.loads(await llamacpp.ask(CHAT, asked))["choices"][0]["message"]["content"])


class TestAnswers:
    async def test_one_in_one_piece(
        self, llm: ChatOpenAI, llamacpp: Watcher, sluice: RunningGateway, path: str
    ) -> None:
        reply = await llm.ainvoke(SKY)
        assert reply.text == await straight(llamacpp)
        assert reply.usage_metadata is not None
        assert reply.usage_metadata["output_tokens"] == 8
        assert (await sluice.record())["path"] == path

    async def test_a_stream_is_the_same_in_pieces(self, llm: ChatOpenAI, llamacpp: Watcher) -> None:
        pieces = [piece async for piece in llm.astream(SKY)]
        assert len([piece for piece in pieces if piece.text]) == 8
        assert reduce(operator.add, pieces).text == await straight(llamacpp)

    async def test_a_stream_tells_its_usage_once(self, llm: ChatOpenAI) -> None:
        [usage] = [piece.usage_metadata async for piece in llm.astream(SKY) if piece.usage_metadata]
        assert usage["output_tokens"] == 8
        assert usage["total_tokens"] == usage["input_tokens"] + 8

    @pytest.mark.parametrize("by", ["threads", "tasks"])
    async def test_many_at_once_get_their_own_answers(self, llm: ChatOpenAI, by: str) -> None:
        questions = ["word " * length for length in (40, 10, 30, 20)]  # for two slots
        ask = llm.abatch(questions) if by == "tasks" else to_thread.run_sync(llm.batch, questions)
        prompts = [reply.usage_metadata["input_tokens"] for reply in await ask]
        assert [size - prompts[1] for size in prompts] == [30, 0, 20, 10]

    async def test_earlier_turns_go_along(self, llm: ChatOpenAI) -> None:
        first = await llm.ainvoke(SKY)
        again = await llm.ainvoke([("user", SKY), first, ("user", "Why not green?")])
        assert again.text
        assert again.usage_metadata["input_tokens"] > first.usage_metadata["total_tokens"]

    async def test_leaving_a_stream_frees_the_slot(
        self, llm: ChatOpenAI, sluice: RunningGateway, llamacpp: Watcher
    ) -> None:
        finished = await llamacpp.metric("tokens_predicted_total")
        stream = with_limit(llm, LONG_ANSWER).astream(ENDLESS)
        while not (await anext(stream)).text:
            pass
        await stream.aclose()
        assert (await sluice.record())["outcome"] == "cancelled"
        await llamacpp.until_idle()
        assert await llamacpp.metric("tokens_predicted_total") < finished + LONG_ANSWER


# LangChain puts the parsed object where OpenAI's library has declared none, and pydantic minds when it is streamed.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_answer_in_the_form_of_a_class(llm: ChatOpenAI, streamed: bool) -> None:
    asking = with_limit(llm, 200).with_structured_output(Sky, method="json_schema")
    if streamed:
        [*_, sky] = [part async for part in asking.astream(SKY)]
    else:
        sky = await asking.ainvoke(SKY)
    assert isinstance(sky, Sky)


class TestTools:
    @pytest.fixture
    async def sluice(self) -> AsyncIterator[RunningGateway]:
        async with sluice_with_tools() as running:
            yield running

    @pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
    async def test_a_call_and_its_result(self, llm: ChatOpenAI, streamed: bool) -> None:
        asking = with_limit(llm, 80).bind_tools([TOOL], tool_choice="any")
        if streamed:
            pieces = [piece async for piece in asking.astream(MESSAGES)]
            assert len([piece for piece in pieces if piece.tool_call_chunks]) > 2
            reply: Any = reduce(operator.add, pieces)
        else:
            reply = await asking.ainvoke(MESSAGES)
        [call] = reply.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
        result = ToolMessage("20C", tool_call_id=call["id"])
        assert "20C" in (await llm.bind_tools([TOOL]).ainvoke([*MESSAGES, reply, result])).text


class TestErrors:
    @pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
    async def test_a_model_that_is_not_there(self, llm: ChatOpenAI, streamed: bool) -> None:
        reply = anext(llm.astream(SKY, model="chta")) if streamed else llm.ainvoke(SKY, model="chta")
        with pytest.raises(openai.NotFoundError, match=r"`chta` does not exist\. Did you mean `chat`\?"):
            await reply

    async def test_a_wrong_key(self, sluice: RunningGateway) -> None:
        async with chat_openai(sluice.url, api_key="sk-wrong") as stranger:
            with pytest.raises(openai.AuthenticationError, match="The API key is not valid"):
                await stranger.ainvoke(SKY)

    async def test_a_prompt_that_is_too_long(self, llm: ChatOpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match=r"exceeds the available context size \(2048 tokens\)"):
            await llm.ainvoke("word " * 3000)
