"""Tool calls of a real model, by the `openai` library."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.real.conftest import KEY
from tests.real.llamacpp import ALIAS
from tests.real.sdk import Sdk, sdk_client
from tests.real.with_tools import sluice_with_tools
from tests.support.gateway import RunningGateway

pytestmark = [pytest.mark.anyio, pytest.mark.real]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": CITY}}


def call_for(city: str) -> list[dict[str, Any]]:
    """A question and the call that answers it: a small model needs to see how it is done."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    call = {"id": city, "type": "function", "function": function}
    return [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


MESSAGES = [*call_for("Rome"), *call_for("Berlin"), {"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
async def sluice() -> AsyncIterator[RunningGateway]:
    async with sluice_with_tools() as running:
        yield running


@pytest.fixture(params=["sync", "async"])
async def sdk(request: pytest.FixtureRequest, sluice: RunningGateway) -> AsyncIterator[Sdk]:
    async with sdk_client(request.param, sluice.url, KEY) as client:
        yield client


def ask(client: Any, **fields: Any) -> Any:
    return client.chat.completions.create(
        model=ALIAS, messages=MESSAGES, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=80, **fields
    )


async def test_a_call_with_its_arguments(sdk: Sdk) -> None:
    reply = await sdk(lambda client: ask(client))
    assert reply.choices[0].finish_reason == "tool_calls"
    [call] = reply.choices[0].message.tool_calls
    assert call.id
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}


async def test_a_call_in_pieces(sdk: Sdk) -> None:
    chunks = await sdk.all(lambda client: ask(client, stream=True))
    parts = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert {part.index for part in parts} == {0}
    assert [part.function.name for part in parts if part.function.name] == ["get_weather"]
    assert json.loads("".join(part.function.arguments or "" for part in parts)) == {"city": "Paris"}
    assert len(parts) > 2
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_the_first_piece_of_a_call_is_the_first_output(sdk: Sdk, sluice: RunningGateway) -> None:
    await sdk.all(lambda client: ask(client, stream=True))
    record = await sluice.record()
    assert record["outcome"] == "ok"
    assert 0 < record["ttft"] < record["last_output"]
