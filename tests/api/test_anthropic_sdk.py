"""The `anthropic` library as its users have it, in front of an engine that knows only OpenAI's dialect."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient, beta_async_tool
from anyio import to_thread

from tests.support.answers import ANSWER, OK
from tests.support.engine import AnyScript, ScriptedEngine
from tests.support.gateway import gateway
from tests.support.messages import text, thinking, tool_use
from tests.support.sse import DONE, ERROR, FIN, LAST_CHUNK, ROLE, SSE_HEAD, TC, USE, R, T, chunk, json_reply, sse_reply
from tests.support.wire import recording

pytestmark = pytest.mark.anyio

KEY = "sk-of-the-tests"
HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
TOOL_CALL = {"role": "assistant", "content": None, "reasoning_content": "Ask.", "tool_calls": [CALL]}
CALLING = json_reply(ANSWER | {"choices": [{"index": 0, "message": TOOL_CALL, "finish_reason": "tool_calls"}]})
STREAM = sse_reply(ROLE, R("reasoning", "hm"), T("Hé "), T("漢🦊"), FIN("stop"), USE(7, 2), DONE)


@asynccontextmanager
async def serving(script: AnyScript, **fields: Any) -> AsyncIterator[tuple[AsyncAnthropic, ScriptedEngine]]:
    """A client that tries once, and the engine that answers it."""
    server = {"keys": [{"name": "tests", "key": KEY}], "max_body_bytes": 4096}
    async with (
        ScriptedEngine(script) as engine,
        gateway(engine.url, server=server, **fields) as sluice,
        DefaultAsyncHttpxClient(trust_env=False) as http,
        AsyncAnthropic(base_url=sluice.url, api_key=KEY, max_retries=0, http_client=http) as client,
    ):
        yield client, engine


async def create(client: AsyncAnthropic, **fields: Any) -> Any:
    return await client.messages.create(**{"model": "m", "max_tokens": 16, "messages": HI, **fields})


def stream(client: AsyncAnthropic, **fields: Any) -> Any:
    return client.messages.stream(**{"model": "m", "max_tokens": 16, "messages": HI, **fields})


def blocks(message: Any) -> list[dict[str, Any]]:
    """The content as it would be sent back."""
    members = {"type", "text", "thinking", "signature", "id", "name", "input"}
    return [block.model_dump(include=members) for block in message.content]


class TestCreate:
    async def test_an_answer(self) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}
        async with serving([json_reply(ANSWER | {"usage": usage})]) as (client, _):
            message = await create(client)
        assert message.content[0].text == "hello"
        assert (message.role, message.model, message.stop_reason) == ("assistant", "m", "end_turn")
        assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 2)
        assert message.usage.cache_read_input_tokens == 6

    async def test_the_blocking_client(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            with DefaultHttpxClient(trust_env=False) as http:
                client = anthropic.Anthropic(base_url=sluice.url, api_key="any", max_retries=0, http_client=http)
                ask: Any = client.messages.create
                message = await to_thread.run_sync(lambda: ask(model="m", max_tokens=16, messages=HI))
        assert message.content[0].text == "hello"

    async def test_a_bearer_token_is_a_key_too(self) -> None:
        async with serving([OK]) as (client, _):
            bearer = client.with_options(auth_token=KEY)
            assert (await create(bearer)).content[0].text == "hello"

    async def test_an_answer_in_the_form_of_a_schema(self) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": '{"blue": true}'}, "finish_reason": "stop"}
        schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}}
        async with serving([json_reply(ANSWER | {"choices": [choice]})]) as (client, engine):
            form = {"format": {"type": "json_schema", "schema": schema}}
            message = await create(client, output_config=form)
            asked = engine.requests[0].json()["response_format"]
        assert json.loads(message.content[0].text) == {"blue": True}
        assert asked["json_schema"]["schema"] == schema


class TestStream:
    async def test_its_text_and_its_final_message(self) -> None:
        async with serving([STREAM]) as (client, _), stream(client) as events:
            pieces = [piece async for piece in events.text_stream]
            message = await events.get_final_message()
        assert pieces == ["Hé ", "漢🦊"]
        assert blocks(message) == [thinking("hm"), text("Hé 漢🦊")]
        assert message.stop_reason == "end_turn"
        assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 2)

    async def test_its_raw_events(self) -> None:
        async with serving([STREAM]) as (client, _):
            kinds = [event.type async for event in await create(client, stream=True)]
        assert kinds == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]

    async def test_parallel_calls(self) -> None:
        parts = [TC(0, "c1", "weather", '{"city":'), TC(0, args='"Paris"}'), TC(1, "c2", "weather", '{"city":"Rome"}')]
        script = [sse_reply(ROLE, *parts, FIN("tool_calls"), DONE)]
        async with serving(script) as (client, _), stream(client, tools=[TOOL]) as events:
            message = await events.get_final_message()
        assert message.stop_reason == "tool_use"
        assert blocks(message) == [tool_use("c1", "weather", city="Paris"), tool_use("c2", "weather", city="Rome")]


class TestTools:
    async def test_a_round_with_the_answers_own_blocks(self) -> None:
        async with serving([[CALLING], [OK]]) as (client, engine):
            first = await create(client, tools=[TOOL], tool_choice={"type": "any"})
            [_, call] = first.content
            assert (first.stop_reason, call.name, call.input) == ("tool_use", "weather", {"city": "Paris"})
            outcome = {"type": "tool_result", "tool_use_id": call.id, "content": "20C"}
            history = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": [outcome]}]
            second = await create(client, tools=[TOOL], messages=history)
            asked, asked_again = (request.json() for request in engine.requests)
        assert second.content[0].text == "hello"
        assert (asked["tool_choice"], asked["tools"][0]["type"]) == ("required", "function")
        [_, assistant, tool] = asked_again["messages"]
        assert assistant["reasoning_content"] == "Ask."
        assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == "c1"
        assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}

    async def test_the_librarys_own_loop(self) -> None:
        @beta_async_tool
        async def weather(city: str) -> str:
            """Weather of a city."""
            return f"20C in {city}"

        async with serving([[CALLING], [OK]]) as (client, engine):
            runner = client.beta.messages.tool_runner(model="m", max_tokens=16, messages=HI, tools=[weather])
            message = await runner.until_done()
            results = [one for one in engine.requests[1].json()["messages"] if one["role"] == "tool"]
        assert blocks(message) == [text("hello")]
        assert results == [{"role": "tool", "tool_call_id": "c1", "content": "20C in Paris"}]


class TestCountTokens:
    async def test_of_an_engine_that_counts(self) -> None:
        async with serving([recording("llamacpp", "count-tokens").raw], kind="llamacpp") as (client, _):
            assert (await client.messages.count_tokens(model="m", messages=HI)).input_tokens == 33

    async def test_of_one_that_does_not(self) -> None:
        async with serving([], kind="openai") as (client, _):
            with pytest.raises(anthropic.InternalServerError, match="count_tokens") as raised:
                await client.messages.count_tokens(model="m", messages=HI)
        assert raised.value.status_code == 501


class TestErrors:
    @pytest.mark.parametrize(
        ("script", "raised"),
        [
            ([json_reply({"error": {"message": "Bad.", "type": "t"}}, 400)], anthropic.BadRequestError),
            ([json_reply({"error": {"message": "Bad.", "type": "t"}}, 404)], anthropic.NotFoundError),
            ([json_reply({"error": {"message": "Bad.", "type": "t"}}, 429)], anthropic.RateLimitError),
            ([json_reply({"error": {"message": "Bad.", "type": "t"}}, 500)], anthropic.InternalServerError),
            ([json_reply({"error": {"message": "Bad.", "type": "t"}}, 503)], anthropic.InternalServerError),
        ],
    )
    async def test_of_the_engine(self, script: AnyScript, raised: type[anthropic.APIStatusError]) -> None:
        async with serving(script) as (client, _):
            with pytest.raises(raised, match=r"Bad\.") as error:
                await create(client)
        assert error.value.type

    @pytest.mark.parametrize(
        ("fields", "raised", "kind"),
        [
            ({"model": "n"}, anthropic.NotFoundError, "not_found_error"),
            ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
            ({"extra_headers": {"x-api-key": "sk-wrong"}}, anthropic.AuthenticationError, "authentication_error"),
            ({"metadata": {"user_id": "x" * 5000}}, anthropic.RequestTooLargeError, "request_too_large"),
        ],
    )
    async def test_of_the_client(
        self, fields: dict[str, Any], raised: type[anthropic.APIStatusError], kind: str
    ) -> None:
        async with serving([OK]) as (client, engine):
            with pytest.raises(raised) as error:
                await create(client, **fields)
            assert not engine.requests
        assert error.value.type == kind

    async def test_in_a_stream(self) -> None:
        script = [SSE_HEAD, chunk(ROLE + T("a")), 0.05, chunk(ERROR("out of memory")), LAST_CHUNK]
        async with serving(script) as (client, _), stream(client) as events:
            pieces = aiter(events.text_stream)
            assert await anext(pieces) == "a"
            with pytest.raises(anthropic.APIStatusError, match="out of memory"):
                await anext(pieces)
