"""llama.cpp is asked how its prefill goes: a wait for one of its slots can then be told from the prefill."""

import json
from typing import Any

import pytest

from tests.support.answers import OK
from tests.support.client import post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, COMPLETIONS, REQ, gateway
from tests.support.messages import ASK, MESSAGES, read_message
from tests.support.sse import DONE, FIN, LAST_CHUNK, ROLE, SSE_HEAD, T, chunk, data, sse_reply

pytestmark = pytest.mark.anyio

STREAM = REQ | {"stream": True}


def progress(**told: Any) -> bytes:
    choice = {"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": None}}
    return data({"choices": [choice], "object": "chat.completion.chunk", "prompt_progress": told})


BEGUN = progress(total=30, cache=10, processed=10, time_ms=0)
HALF = progress(total=30, cache=10, processed=20, time_ms=50)
ANSWER = [ROLE, T("hi"), FIN("stop"), DONE]


class TestWhatTheEngineGets:
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_a_stream_asks_for_progress(self, path: str) -> None:
        body = b' \n{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"prompt":"hi","x":1.50}'
        async with ScriptedEngine([sse_reply(*ANSWER)]) as engine, gateway(engine.url, kind="llamacpp") as sluice:
            await post_json(sluice.port, path, body)
        assert engine.requests[0].body == b'{"return_progress":true,' + body.strip()[1:]

    async def test_under_another_name_of_the_model_too(self) -> None:
        async with (
            ScriptedEngine([sse_reply(*ANSWER)]) as engine,
            gateway(engine.url, kind="llamacpp", models={"alias": [{"engine": "a", "model": "m"}]}) as sluice,
        ):
            await post_json(sluice.port, CHAT, STREAM | {"model": "alias"})
        assert engine.requests[0].json() == STREAM | {"return_progress": True}

    @pytest.mark.parametrize("body", [REQ, STREAM | {"return_progress": False}])
    async def test_all_else_goes_as_it_came(self, body: dict[str, Any]) -> None:
        sent = json.dumps(body).encode()
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, kind="llamacpp") as sluice:
            await post_json(sluice.port, CHAT, sent)
        assert engine.requests[0].body == sent


class TestWhatTheClientGets:
    async def test_none_of_it_unless_it_asked(self) -> None:
        async with (
            ScriptedEngine([sse_reply(BEGUN, HALF, *ANSWER)]) as engine,
            gateway(engine.url, kind="llamacpp") as sluice,
        ):
            got = await post_json(sluice.port, CHAT, STREAM)
            record = await sluice.record()
        assert got.body == b"".join(ANSWER)
        assert "dropped_events" not in record

    async def test_all_of_it_if_it_asked(self) -> None:
        async with (
            ScriptedEngine([sse_reply(BEGUN, HALF, *ANSWER)]) as engine,
            gateway(engine.url, kind="llamacpp") as sluice,
        ):
            got = await post_json(sluice.port, CHAT, STREAM | {"return_progress": True})
        assert got.body == b"".join([BEGUN, HALF, *ANSWER])

    async def test_none_of_it_in_another_dialect(self) -> None:
        async with (
            ScriptedEngine([sse_reply(BEGUN, HALF, *ANSWER)]) as engine,
            gateway(engine.url, kind="llamacpp") as sluice,
        ):
            got = await post_json(sluice.port, MESSAGES, ASK | {"stream": True})
        assert read_message(got.body).text == "hi"

    @pytest.mark.parametrize("odd", [{"total": "many"}, {}, {"time_ms": None}])
    async def test_progress_of_another_form_does_no_harm(self, odd: dict[str, Any]) -> None:
        async with (
            ScriptedEngine([sse_reply(progress(**odd), *ANSWER)]) as engine,
            gateway(engine.url, kind="llamacpp") as sluice,
        ):
            got = await post_json(sluice.port, CHAT, STREAM)
        assert got.body == b"".join(ANSWER)

    async def test_output_in_the_same_event_is_never_lost(self) -> None:
        both = data({"choices": [{"index": 0, "delta": {"content": "hi"}}], "prompt_progress": {"total": 3}})
        async with (
            ScriptedEngine([sse_reply(both, FIN("stop"), DONE)]) as engine,
            gateway(engine.url, kind="llamacpp") as sluice,
        ):
            got = await post_json(sluice.port, CHAT, STREAM)
        assert got.body == both + FIN("stop") + DONE


class TestWhereTheTimeWent:
    async def test_the_wait_for_a_slot_is_told_apart(self) -> None:
        late = progress(total=30, cache=10, processed=20, time_ms=100)
        script = [0.4, SSE_HEAD, chunk(late), 0.1, *map(chunk, ANSWER), LAST_CHUNK]
        async with ScriptedEngine(script) as engine, gateway(engine.url, kind="llamacpp") as sluice:
            got = await post_json(sluice.port, CHAT, STREAM)
            record = await sluice.record()
        assert 0.29 <= record["engine_queue"] <= record["ttft"] - 0.19
        assert (record["prompt_tokens"], record["cached_tokens"]) == (30, 10)
        assert "engine-queue;dur=" in (got.headers.get("server-timing") or "")

    async def test_it_is_known_of_a_client_that_leaves_during_prefill(self) -> None:
        async with (
            ScriptedEngine([SSE_HEAD, chunk(BEGUN), 5.0]) as engine,
            gateway(engine.url, kind="llamacpp", timeouts={"ttft": 0.3}) as sluice,
        ):
            got = await post_json(sluice.port, CHAT, STREAM)
            record = await sluice.record()
        assert got.status == 504
        assert record["engine_queue"] < 0.2
        assert record["prompt_tokens"] == 30

    async def test_engines_that_do_not_tell_are_not_guessed_at(self) -> None:
        async with ScriptedEngine([0.1, sse_reply(*ANSWER)]) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, CHAT, STREAM)
            record = await sluice.record()
        assert "engine_queue" not in record
