"""Streams as the `openai` SDK reads them, which is how most clients do."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from tests.support.answers import ANSWER
from tests.support.engine import AnyScript, ScriptedEngine, Step
from tests.support.gateway import gateway
from tests.support.sse import (
    DONE,
    ERROR,
    FIN,
    LAST_CHUNK,
    ROLE,
    SSE_HEAD,
    TC,
    USE,
    R,
    T,
    chunk,
    data,
    envelope,
    json_reply,
    sse_reply,
)

pytestmark = pytest.mark.anyio

HI: Any = [{"role": "user", "content": "hi"}]
WHOLE = ROLE + T("Hé ") + T("漢🦊") + FIN("stop") + USE(7, 2) + DONE


@asynccontextmanager
async def sdk(script: AnyScript) -> AsyncIterator[AsyncOpenAI]:
    """The SDK in front of a gateway in front of an engine that runs `script`."""
    async with (
        ScriptedEngine(script) as engine,
        gateway(engine.url) as sluice,
        AsyncOpenAI(base_url=f"{sluice.url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


async def chunks(
    client: AsyncOpenAI, into: list[ChatCompletionChunk] | None = None, **fields: Any
) -> list[ChatCompletionChunk]:
    """The parts of a stream; `into` has those before an error too."""
    parts = [] if into is None else into
    stream = await client.chat.completions.create(model="m", messages=HI, stream=True, **fields)
    async for part in stream:
        parts.append(part)
    return parts


def text_of(parts: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for part in parts for choice in part.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


FORMS = {
    "as usual": WHOLE,
    "CRLF": WHOLE.replace(b"\n", b"\r\n"),
    "CR": WHOLE.replace(b"\n", b"\r"),
    "no space after data": WHOLE.replace(b"data: ", b"data:"),
    "data in two lines": WHOLE.replace(b',"choices"', b',\ndata: "choices"'),
    "other fields": WHOLE.replace(b"data: {", b"event: message\nid: 9\nretry: 5\ndata: {"),
    "comments": b":\n\n" + WHOLE.replace(FIN("stop"), b": busy\n\n" + FIN("stop") + b": bye\n\n"),
    "a comment glued to data": WHOLE.replace(T("漢🦊"), b":x\n" + T("漢🦊")),
    "no end mark": WHOLE.removesuffix(DONE),
    "two end marks": WHOLE + DONE,
    "text after the end mark": WHOLE + T("zz"),
    "no last blank line": WHOLE.removesuffix(DONE)[:-2],
    "bad events": ROLE + b'data: {"choices":[{"delta":{"content":"tru\n\n' + b"event: ping\ndata:\n\n" + WHOLE,
}


@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
async def test_every_form_of_stream_is_read_to_its_end(body: bytes) -> None:
    async with sdk([sse_reply(body)]) as client:
        parts = await chunks(client)
    assert text_of(parts) == "Hé 漢🦊"
    assert [choice.finish_reason for part in parts for choice in part.choices if choice.finish_reason] == ["stop"]
    assert [part.usage.total_tokens for part in parts if part.usage] == [9]


async def test_reasoning_is_there_under_the_engines_name() -> None:
    for name in ("reasoning", "reasoning_content"):
        async with sdk([sse_reply(ROLE, R(name, "th"), R(name, "ink"), T("ans"), FIN("stop"), DONE)]) as client:
            parts = await chunks(client)
        assert "".join(getattr(part.choices[0].delta, name, "") for part in parts) == "think"
        assert text_of(parts) == "ans"


async def test_tool_calls_are_put_together() -> None:
    calls = [TC(0, "a", "rd", '{"p"'), TC(0, None, None, ":1}"), TC(1, "b", "rd", '{"p":2}')]
    tools: Any = [{"type": "function", "function": {"name": "rd", "parameters": {"type": "object"}}}]
    async with (
        sdk([sse_reply(ROLE, *calls, FIN("tool_calls"), DONE)]) as client,
        client.chat.completions.stream(model="m", messages=HI, tools=tools) as stream,
    ):
        message = (await stream.get_final_completion()).choices[0].message
    assert [json.loads(call.function.arguments) for call in message.tool_calls or []] == [{"p": 1}, {"p": 2}]


async def test_several_choices_are_told_apart() -> None:
    def part(index: int, text: str, finish: str | None = None) -> bytes:
        return data(envelope({"index": index, "delta": {"content": text}, "finish_reason": finish}))

    script = [sse_reply(part(0, "x"), part(1, "y"), part(1, "!", "stop"), part(0, "?", "stop"), DONE)]
    async with sdk(script) as client:
        parts = await chunks(client, n=2)
    assert (text_of(parts, 0), text_of(parts, 1)) == ("x?", "y!")


async def test_completions_stream_too() -> None:
    choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"}
    body = data({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})
    async with sdk([sse_reply(body, DONE)]) as client:
        stream = await client.completions.create(model="m", prompt="hi", stream=True)
        assert [part.choices[0].text async for part in stream] == ["a"]


BROKEN = {
    "a reset": [Step.RESET],
    "a clean end": [LAST_CHUNK],
    "an error event": [chunk(ERROR("boom", type="InternalServerError", code=500) + DONE), LAST_CHUNK],
}


@pytest.mark.parametrize("end", BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_breaks_off_raises_after_what_came_of_it(end: list[bytes | Step]) -> None:
    async with sdk([SSE_HEAD, chunk(ROLE + T("par")), 0.05, *end]) as client:
        parts: list[ChatCompletionChunk] = []
        with pytest.raises(openai.APIError):
            await chunks(client, parts)
    assert text_of(parts) == "par"
    assert not any(choice.finish_reason for part in parts for choice in part.choices)


ERRORS: dict[str, tuple[AnyScript, type[openai.APIStatusError]]] = {
    "400": ([json_reply({"error": {"message": "too long", "type": "t"}}, 400)], openai.BadRequestError),
    "404 of another form": ([json_reply({"error": "model 'x' not found"}, 404)], openai.NotFoundError),
    "422": ([json_reply({"error": "no", "error_type": "validation"}, 422)], openai.UnprocessableEntityError),
    "429": ([json_reply({"error": "overloaded"}, 429)], openai.RateLimitError),
    "500": ([json_reply({"error": {"message": "m", "type": "t"}}, 500)], openai.InternalServerError),
    "401 of the engine": ([json_reply({"error": "Unauthorized"}, 401)], openai.InternalServerError),
    "reset": ([Step.RESET], openai.InternalServerError),
    "an error in place of a stream": ([sse_reply(ERROR("boom"), DONE)], openai.InternalServerError),
}


@pytest.mark.parametrize(("script", "raised"), ERRORS.values(), ids=ERRORS)
async def test_an_error_before_any_output_raises_what_its_status_stands_for(
    script: AnyScript, raised: type[openai.APIStatusError]
) -> None:
    async with sdk(script) as client:
        with pytest.raises(raised) as caught:
            await chunks(client)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


async def test_an_answer_in_one_piece_is_the_engines() -> None:
    async with sdk([json_reply(ANSWER)]) as client:
        reply = await client.chat.completions.create(model="m", messages=HI)
    assert reply.model_dump(exclude_unset=True) == ANSWER


async def test_leaving_a_stream_stops_the_engine() -> None:
    script = [SSE_HEAD, chunk(ROLE + T("a")), Step.HANG]
    async with (
        ScriptedEngine(script) as engine,
        gateway(engine.url) as sluice,
        AsyncOpenAI(base_url=f"{sluice.url}/v1", api_key="any", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await engine.gone(2)
        assert (await sluice.record())["outcome"] == "cancelled"
