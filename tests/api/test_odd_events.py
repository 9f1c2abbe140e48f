"""Events of odd types, which engines do send: in every dialect their text arrives, or the answer fails visibly."""

import json
from typing import Any

import pytest

from tests.support.client import post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, gateway
from tests.support.sse import DONE, FIN, ROLE, T, data, envelope, sse_reply

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
DIALECTS = {
    "OpenAI": (CHAT, REQ | {"stream": True}),
    "Anthropic": ("/v1/messages", ASK),
    "Ollama": ("/api/chat", ASK),
    "Responses": ("/v1/responses", {"model": "m", "stream": True, "input": "hi"}),
}


def odd(**fields: Any) -> bytes:
    """A chunk with the text `ODD`, and with what is odd about it."""
    choice = {"index": 0, "delta": {"content": "ODD"}, "finish_reason": None}
    return data(envelope(choice | fields.pop("choice", {}), **fields))


NAN = odd().replace(b'"finish_reason":null', b'"finish_reason":null,"logprobs":{"content":[{"logprob":NaN}]}')
ODD = {
    "usage of nothing": odd(usage={"prompt_tokens": 1, "completion_tokens": None}),
    "NaN": NAN,
    "a moment with a fraction": odd(created=1.5),
    "a number as id": odd(id=7),
    "content in parts": odd(choice={"delta": {"content": [{"type": "text", "text": "ODD"}]}}),
    "a call of nothing": odd(choice={"delta": {"content": "ODD", "tool_calls": [{"index": 0, "function": None}]}}),
    "an index of nothing": odd(choice={"index": None}),
}


def says_that_it_failed(body: bytes) -> bool:
    return any(
        mark in body for mark in (b'data: {"error"', b"event: error", b'{"error":', b"response.failed")
    ) and not any(mark in body for mark in (b"[DONE]", b"message_stop", b'"done":true', b"response.completed"))


@pytest.mark.parametrize("event", ODD.values(), ids=ODD)
@pytest.mark.parametrize(("path", "body"), DIALECTS.values(), ids=DIALECTS)
async def test_text_is_never_lost_in_silence(path: str, body: object, event: bytes) -> None:
    async with (
        ScriptedEngine([sse_reply(ROLE, T("a"), event, FIN("stop"), DONE)]) as engine,
        gateway(engine.url) as sluice,
    ):
        reply = await post_json(sluice.port, path, body)
    assert b"ODD" in reply.body or says_that_it_failed(reply.body), reply.body


@pytest.mark.parametrize(("path", "body"), DIALECTS.values(), ids=DIALECTS)
async def test_an_answer_that_was_cut_short_says_so(path: str, body: object) -> None:
    finish = data(envelope({"index": 0, "delta": None, "finish_reason": "length"}))
    async with ScriptedEngine([sse_reply(ROLE, T("a"), finish, DONE)]) as engine, gateway(engine.url) as sluice:
        reply = await post_json(sluice.port, path, body)
    cut = (b'"length"', b'"max_tokens"', b"max_output_tokens")
    assert any(mark in reply.body for mark in cut) or says_that_it_failed(reply.body), reply.body


@pytest.mark.parametrize(("path", "body"), DIALECTS.values(), ids=DIALECTS)
async def test_a_mark_of_the_byte_order_takes_no_text_with_it(path: str, body: object) -> None:
    async with (
        ScriptedEngine([sse_reply(b"\xef\xbb\xbf" + T("ODD"), FIN("stop"), DONE)]) as engine,
        gateway(engine.url) as sluice,
    ):
        reply = await post_json(sluice.port, path, body)
    assert b"ODD" in reply.body


@pytest.mark.parametrize("index", [None, 0], ids=["without an index", "all with the index 0"])
async def test_an_ollama_client_gets_calls_apart_that_only_differ_by_name(index: int | None) -> None:
    calls = [
        {"function": {"name": name, "arguments": "{}"}} | ({} if index is None else {"index": index}) for name in "ab"
    ]
    events = [data(envelope({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None})) for call in calls]
    async with (
        ScriptedEngine([sse_reply(ROLE, *events, FIN("tool_calls"), DONE)]) as engine,
        gateway(engine.url) as sluice,
    ):
        reply = await post_json(sluice.port, "/api/chat", ASK)
    lines = [json.loads(line) for line in reply.body.splitlines()]
    called = [call["function"]["name"] for line in lines for call in line["message"].get("tool_calls", [])]
    assert called == ["a", "b"]
