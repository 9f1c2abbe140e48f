"""The `anthropic` library against Sluice and a real llama.cpp."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from tests.real.conftest import KEY
from tests.real.with_tools import sluice_with_tools
from tests.support.gateway import RunningGateway

pytestmark = [pytest.mark.anyio, pytest.mark.real]

SKY: Any = [{"role": "user", "content": "Why is the sky blue?"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
async def client(sluice: RunningGateway) -> AsyncIterator[AsyncAnthropic]:
    async with (
        DefaultAsyncHttpxClient(trust_env=False) as http,
        AsyncAnthropic(base_url=sluice.url, api_key=KEY, max_retries=0, timeout=60.0, http_client=http) as client,
    ):
        yield client


def question(**fields: Any) -> Any:
    """One that gets the same answer each time. The library has no parameter for a temperature any more."""
    fixed = {"extra_body": {"temperature": 0}}
    return {"model": "chat", "max_tokens": 8, "messages": SKY, **fixed, **fields}


async def test_an_answer_under_the_name_that_was_asked_for(client: AsyncAnthropic) -> None:
    message = await client.messages.create(**question())
    assert message.id.startswith("msg_")
    assert (message.role, message.model, message.stop_reason) == ("assistant", "chat", "max_tokens")
    assert message.content[0].text
    assert message.usage.output_tokens == 8


async def test_a_stream_is_the_same_answer_in_pieces(client: AsyncAnthropic) -> None:
    whole = await client.messages.create(**question())
    async with client.messages.stream(**question()) as stream:
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
    assert len(pieces) > 4
    assert "".join(pieces) == message.content[0].text == whole.content[0].text
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 8
    assert message.usage.input_tokens > 0


async def test_the_counts_are_the_engines_own(client: AsyncAnthropic) -> None:
    asked = {name: value for name, value in question().items() if name in ("model", "messages")}
    counted = await client.messages.count_tokens(**asked)
    usage = (await client.messages.create(**question())).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


async def test_a_prompt_asked_again_is_read_from_the_cache(client: AsyncAnthropic) -> None:
    await client.messages.create(**question())
    usage = (await client.messages.create(**question())).usage
    assert usage.cache_read_input_tokens > usage.input_tokens


async def test_a_system_prompt_and_earlier_turns_change_the_answer(client: AsyncAnthropic) -> None:
    turns = [*SKY, {"role": "assistant", "content": "Because."}, {"role": "user", "content": "Say it in French."}]
    plain = await client.messages.create(**question())
    other = await client.messages.create(**question(system="You are a poet.", messages=turns))
    assert other.content[0].text != plain.content[0].text
    assert other.usage.input_tokens + other.usage.cache_read_input_tokens > plain.usage.input_tokens


async def test_a_stop_sequence_ends_the_answer(client: AsyncAnthropic) -> None:
    free = (await client.messages.create(**question(max_tokens=24))).content[0].text
    word = free.split()[3]
    message = await client.messages.create(**question(max_tokens=24, stop_sequences=[word]))
    assert message.stop_reason == "end_turn"  # llama.cpp does not say which text it was
    assert word not in message.content[0].text


class TestTools:
    @pytest.fixture
    async def sluice(self) -> AsyncIterator[RunningGateway]:
        async with sluice_with_tools() as running:
            yield running

    @pytest.mark.parametrize("streamed", [False, True])
    async def test_a_call_and_its_result(self, client: AsyncAnthropic, streamed: bool) -> None:
        weather = [*call_for("Rome"), *call_for("Berlin"), {"role": "user", "content": "Weather in Paris?"}]
        asked = question(tools=[TOOL], tool_choice={"type": "any"}, max_tokens=80, messages=weather)
        if streamed:
            async with client.messages.stream(**asked) as stream:
                message = await stream.get_final_message()
        else:
            message = await client.messages.create(**asked)
        assert message.stop_reason == "tool_use"
        call = message.content[-1]
        assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
        turns = [*weather, {"role": "assistant", "content": message.content}, result_of(call.id)]
        again = await client.messages.create(**question(tools=[TOOL], messages=turns))
        assert again.content


def call_for(city: str) -> list[Any]:
    """A question, the call that answers it, and its result: a small model needs to see how it is done."""
    call = {"type": "tool_use", "id": city, "name": "get_weather", "input": {"city": city}}
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {"role": "assistant", "content": [call]},
        result_of(city),
        {"role": "assistant", "content": "20C"},
    ]


def result_of(call_id: str) -> Any:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "20C"}]}


class TestErrors:
    async def test_a_model_that_is_not_there(self, client: AsyncAnthropic) -> None:
        with pytest.raises(anthropic.NotFoundError, match="`chat`"):
            await client.messages.create(**question(model="chta"))

    async def test_a_prompt_that_is_too_long(self, client: AsyncAnthropic) -> None:
        long = [{"role": "user", "content": "word " * 3000}]
        with pytest.raises(anthropic.BadRequestError, match="context"):
            await client.messages.create(**question(messages=long))

    async def test_a_wrong_key(self, client: AsyncAnthropic) -> None:
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="sk-wrong").messages.create(**question())
