"""Requests go where the policy says, wait where they must, and overflow where they may."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.engine import Connection as EngineConnection
from tests.support.engine import Request, ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.messages import ASK, MESSAGES, read_message
from tests.support.sse import (
    DONE,
    FIN,
    LAST_CHUNK,
    ROLE,
    SSE_HEAD,
    T,
    chunk,
    data,
    envelope,
    failed,
    finish_reasons,
    is_clean,
    json_reply,
    sse_reply,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

POLICY = """
models:
  chat:
    tiers:
      small: small
      large: large
    rules:
      - {name: pictures, when: images > 0, reject: No pictures here.}
      - {name: long, when: prompt_tokens > 500, route: [large]}
      - {when: 'header("x-team") == "batch"', class: low, cap: {max_tokens: 7}}
      - {name: claude, when: dialect == "anthropic", route: [large, small]}
    spill: 30
"""


class Gate:
    """An engine that answers when it is let to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, request: Request, connection: EngineConnection) -> None:
        await self.open.wait()
        await connection.send(sse_reply(ROLE, T("hi"), FIN("stop"), DONE) if request.json().get("stream") else OK)


@asynccontextmanager
async def two(
    policy: str = POLICY, *, small: Any = (OK,), **queue: Any
) -> AsyncIterator[tuple[RunningGateway, ScriptedEngine, ScriptedEngine]]:
    """A gateway with an engine `small` of one place and one `large` of two."""
    async with ScriptedEngine(small) as first, ScriptedEngine([OK]) as second:
        engines = {
            "small": engine_config(first.url, concurrency=1),
            "large": engine_config(second.url, models=["big"], concurrency=2),
        }
        async with gateway(engines=engines, queue=queue, policy=policy) as sluice:
            yield sluice, first, second


async def chat(sluice: RunningGateway, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return await post_json(sluice.port, CHAT, REQ | {"model": "chat"} | fields, headers or {})


class TestRules:
    async def test_a_short_prompt_goes_to_the_first_tier_and_a_long_one_where_its_rule_says(self) -> None:
        async with two() as (sluice, _, large):
            short = await chat(sluice)
            long = await chat(sluice, messages=[{"role": "user", "content": "word " * 1000}])
            records = [await sluice.record(at) for at in (0, 1)]
        assert (short.headers.get("x-sluice-engine"), short.headers.get("x-sluice-tier")) == ("small", "small")
        assert (long.headers.get("x-sluice-engine"), long.headers.get("x-sluice-rule")) == ("large", "long")
        assert [(record["model"], record["tier"], record["engine"]) for record in records] == [
            ("chat", "small", "small"),
            ("chat", "large", "large"),
        ]
        assert large.requests[0].json()["model"] == "big"

    async def test_a_rule_rejects_with_its_words(self) -> None:
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        async with two() as (sluice, small, large):
            reply = await chat(sluice, messages=[{"role": "user", "content": image}])
        assert (reply.status, error_of(reply)["code"]) == (403, "rejected_by_policy")
        assert error_of(reply)["message"] == "No pictures here."
        assert not small.requests + large.requests

    async def test_fields_are_capped_and_all_else_is_as_it_came(self) -> None:
        async with two() as (sluice, small, _):
            for limit in ({}, {"max_tokens": 3}, {"max_tokens": 100}, {"max_completion_tokens": 100}):
                await chat(sluice, {"X-Team": "batch"}, **limit)
            await chat(sluice, max_tokens=100)
        sent = [request.json() for request in small.requests]
        limits = [{key: value for key, value in body.items() if key.startswith("max")} for body in sent]
        assert limits == [
            {"max_tokens": 7},
            {"max_tokens": 3},
            {"max_tokens": 7},
            {"max_completion_tokens": 7},
            {"max_tokens": 100},
        ]
        assert {str(body["messages"]) for body in sent} == {str(REQ["messages"])}

    async def test_the_dialect_is_a_fact(self) -> None:
        async with two() as (sluice, _, large):
            reply = await post_json(sluice.port, MESSAGES, ASK | {"model": "chat"})
        assert (reply.status, len(large.requests)) == (200, 1)

    async def test_its_name_is_one_of_the_models(self) -> None:
        async with two() as (sluice, _, _large):
            listed = (await get(sluice.port, "/v1/models")).json()["data"]
            tags = (await get(sluice.port, "/api/tags")).json()["models"]
        assert [model["id"] for model in listed] == ["big", "chat", "m"]
        assert next(model for model in listed if model["id"] == "chat")["sluice"]["engines"] == ["small", "large"]
        assert "chat" in [model["name"] for model in tags]


class TestWaiting:
    async def test_a_request_waits_for_its_place(self) -> None:
        gate = Gate()
        async with two(small=gate) as (sluice, small, large), anyio.create_task_group() as tasks:
            replies: list[Reply] = []

            async def ask() -> None:
                replies.append(await chat(sluice, stream=True))

            for _ in range(3):
                tasks.start_soon(ask)
            await eventually(lambda: len(small.requests) == 1)
            await anyio.sleep(0.2)
            assert len(small.requests) == 1  # its capacity is 1
            gate.open.set()
            await eventually(lambda: len(replies) == 3)
            records = [await sluice.record(at) for at in range(3)]
        assert all(is_clean(reply.body) for reply in replies)
        assert small.max_parallel == 1
        assert not large.requests
        assert sorted("queued" in record for record in records) == [False, True, True]
        assert max(record.get("queued", 0) for record in records) > 0.15

    async def test_one_that_may_not_wait_is_told_when_to_come_back(self) -> None:
        gate = Gate()
        async with two(small=gate, limit=1) as (sluice, small, _), anyio.create_task_group() as tasks:
            tasks.start_soon(chat, sluice)
            await eventually(lambda: len(small.requests) == 1)
            tasks.start_soon(chat, sluice)
            await anyio.sleep(0.1)
            refused = await chat(sluice)
            gate.open.set()
        assert (refused.status, error_of(refused)["code"]) == (429, "queue_full")
        assert int(refused.headers.get("retry-after") or 0) >= 1

    async def test_the_wait_has_an_end(self) -> None:
        gate = Gate()
        async with two(small=gate, timeout=0.2) as (sluice, small, _), anyio.create_task_group() as tasks:
            tasks.start_soon(chat, sluice)
            await eventually(lambda: len(small.requests) == 1)
            late = await chat(sluice)
            gate.open.set()
        assert (late.status, error_of(late)["code"]) == (503, "queue_timeout")
        assert late.headers.get("retry-after")

    async def test_a_client_that_leaves_while_it_waits_leaves_no_trace(self) -> None:
        gate = Gate()
        async with two(small=gate) as (sluice, small, _), anyio.create_task_group() as tasks:
            tasks.start_soon(chat, sluice)
            await eventually(lambda: len(small.requests) == 1)
            async with RawClient(sluice.port) as client:
                await client.request("POST", CHAT, REQ | {"model": "chat"})
                await anyio.sleep(0.1)
                client.close()
            record = await sluice.record()
            gate.open.set()
            assert (await chat(sluice)).status == 200
        assert record["outcome"] == "cancelled"
        assert len(small.requests) == 2

    async def test_a_streaming_client_hears_its_place_and_the_answer_is_untouched(self) -> None:
        gate = Gate()
        async with two(small=gate, comment_interval=0.1) as (sluice, small, _), anyio.create_task_group() as tasks:
            tasks.start_soon(chat, sluice)
            await eventually(lambda: len(small.requests) == 1)
            replies: list[Reply] = []

            async def ask() -> None:
                replies.append(await chat(sluice, stream=True))

            tasks.start_soon(ask)
            await anyio.sleep(0.35)
            gate.open.set()
            await eventually(lambda: len(replies) == 1)
        body = replies[0].body
        comments = [line for line in body.split(b"\n\n") if line.startswith(b": ")]
        assert 2 <= len(comments) <= 4
        assert comments[0].startswith(b": waiting for an engine, place 1, about ")
        assert body.endswith(b"".join([ROLE, T("hi"), FIN("stop"), DONE]))


class TestTheWaitForTheFirstToken:
    async def test_is_kept_alive_by_comments(self) -> None:
        script = [0.25, SSE_HEAD, chunk(ROLE), 0.15, chunk(T("hi")), chunk(FIN("stop") + DONE), LAST_CHUNK]
        async with two(small=script, comment_interval=0.1) as (sluice, _, _large):
            reply = await chat(sluice, stream=True)
        comments = [event for event in reply.body.split(b"\n\n") if event.startswith(b":")]
        assert 2 <= len(comments) <= 4
        assert set(comments) == {b": waiting for the first token"}
        assert reply.body.endswith(ROLE + T("hi") + FIN("stop") + DONE)
        assert is_clean(reply.body)

    async def test_an_engine_that_fails_after_a_comment_is_an_error_in_the_stream(self) -> None:
        async with two(small=[0.25, json_reply({"error": "no"}, 500)], comment_interval=0.1) as (sluice, _, _large):
            reply = await chat(sluice, stream=True)
        assert reply.status == 200
        assert failed(reply.body)

    @pytest.mark.parametrize("path", [CHAT, "/api/chat"])
    async def test_answers_that_are_no_stream_of_events_get_none(self, path: str) -> None:
        script = [0.3, sse_reply(ROLE, T("hi"), FIN("stop"), DONE)] if path == "/api/chat" else [0.3, OK]
        async with two(small=script, comment_interval=0.1) as (sluice, _, _large):
            reply = await post_json(sluice.port, path, REQ | {"model": "chat"})
        assert reply.status == 200
        assert b": waiting" not in reply.body


class TestSpill:
    POLICY = """
models:
  chat:
    tiers: {small: small, large: large}
    spill: 0.5
"""

    async def test_the_next_tier_is_used_when_the_wait_would_be_too_long(self) -> None:
        gate = Gate()
        async with two(self.POLICY, small=gate) as (sluice, small, large), anyio.create_task_group() as tasks:
            tasks.start_soon(chat, sluice)
            await eventually(lambda: len(small.requests) == 1)
            over = await chat(sluice)  # nothing is known of how long a request takes: two seconds are assumed
            gate.open.set()
        assert over.headers.get("x-sluice-tier") == "large"
        assert len(large.requests) == 1

    async def test_it_is_not_used_again_when_the_first_has_a_place(self) -> None:
        async with two(self.POLICY) as (sluice, small, large):
            assert [(await chat(sluice)).status for _ in range(5)] == [200] * 5
        assert (len(small.requests), len(large.requests)) == (5, 0)


class TestDeadline:
    POLICY = """
models:
  chat:
    tiers: {small: small}
    rules:
      - {when: 'header("x-cut") == "yes"', on_deadline: cut}
      - {deadline: 0.3}
"""
    CUT: ClassVar = {"X-Cut": "yes"}
    BEGUN = (SSE_HEAD, chunk(ROLE), chunk(T("Once")), Step.HANG)

    async def test_an_answer_that_is_not_done_in_time_is_an_error(self) -> None:
        async with two(self.POLICY, small=[Step.HANG]) as (sluice, small, _):
            reply = await chat(sluice)
            await small.gone(1)
        assert (reply.status, error_of(reply)["code"]) == (504, "deadline_passed")

    async def test_so_is_one_that_has_begun(self) -> None:
        async with two(self.POLICY, small=self.BEGUN) as (sluice, _, _large):
            reply = await chat(sluice, stream=True)
        assert reply.body.startswith(ROLE + T("Once"))
        assert failed(reply.body)

    @pytest.mark.parametrize(("headers", "n"), [(CUT, 1), (CUT, 2)])
    async def test_one_that_has_begun_may_be_cut_there(self, headers: dict[str, str], n: int) -> None:
        choices = [{"index": at, "delta": {"content": "Once"}, "finish_reason": None} for at in range(n)]
        script = [SSE_HEAD, *(chunk(data(envelope(choice))) for choice in choices), Step.HANG]
        async with two(self.POLICY, small=script) as (sluice, _, _large):
            reply = await chat(sluice, headers, stream=True, n=n)
            record = await sluice.record()
        assert is_clean(reply.body)
        assert finish_reasons(reply.body) == ["length"] * n
        assert (record["outcome"], record["finish_reason"]) == ("ok", "length")

    async def test_a_cut_answer_is_one_in_every_dialect(self) -> None:
        async with two(self.POLICY, small=self.BEGUN) as (sluice, _, _large):
            reply = await post_json(sluice.port, MESSAGES, ASK | {"model": "chat", "stream": True}, self.CUT)
        message = read_message(reply.body)
        assert (message.text, message.stop["stop_reason"]) == ("Once", "max_tokens")

    async def test_before_its_first_word_there_is_nothing_to_cut(self) -> None:
        async with two(self.POLICY, small=[SSE_HEAD, chunk(ROLE), Step.HANG]) as (sluice, _, _large):
            reply = await chat(sluice, self.CUT, stream=True)
        assert (reply.status, error_of(reply)["code"]) == (504, "deadline_passed")

    async def test_it_counts_while_the_request_waits(self) -> None:
        gate = Gate()
        async with two(self.POLICY, small=gate) as (sluice, small, _), anyio.create_task_group() as tasks:
            tasks.start_soon(chat, sluice)
            await eventually(lambda: len(small.requests) == 1)
            late = await chat(sluice)
            gate.open.set()
        assert late.status in (503, 504)
        assert error_of(late)["code"] in ("queue_timeout", "deadline_passed")
