"""`POST /admin/explain` says beforehand what the gateway then does, and does nothing itself."""

from typing import Any

import anyio
import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.policy.explain import Explanation
from gateway.policy.explain_text import as_text
from tests.api.test_routing import POLICY, Gate, TestSpill, chat, two
from tests.support.answers import ANSWER, OK, error_of
from tests.support.client import Reply, get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.messages import ASK, MESSAGES
from tests.support.sse import json_reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

EXPLAIN = "/admin/explain"


async def ask(sluice: RunningGateway, question: dict[str, Any], key: str | None = None) -> Reply:
    return await post_json(sluice.port, EXPLAIN, question, {"Authorization": f"Bearer {key}"} if key else {})


async def explained(sluice: RunningGateway, **question: Any) -> Explanation:
    reply = await ask(sluice, question)
    assert reply.status == 200, reply.body
    return msgspec.json.decode(reply.body, type=Explanation)


LONG = [{"role": "user", "content": "word " * 1000}]

REQUESTS = {
    "short": (CHAT, REQ | {"model": "chat"}, {}),
    "long": (CHAT, REQ | {"model": "chat", "messages": LONG}, {}),
    "a header": (CHAT, REQ | {"model": "chat"}, {"X-Team": "batch"}),
    "Anthropic's": (MESSAGES, ASK | {"model": "chat"}, {}),
    "Ollama's": ("/api/chat", {"model": "chat", "messages": REQ["messages"], "stream": False}, {}),
    "without a policy": (CHAT, REQ | {"model": "big"}, {}),
}


class TestItComesTrue:
    @pytest.mark.parametrize(("path", "body", "headers"), REQUESTS.values(), ids=REQUESTS)
    async def test_a_request_goes_where_it_was_said(
        self, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> None:
        async with two() as (sluice, _, _large):
            said = await explained(sluice, path=path, request=body, headers=headers)
            reply = await post_json(sluice.port, path, body, headers)
            record = await sluice.record()
        assert reply.status == 200
        assert said.live
        assert said.at is not None
        assert said.at.engine == reply.headers.get("x-sluice-engine") == record["engine"]
        assert said.at.model == record["engine_model"]
        assert said.verdict.rule == reply.headers.get("x-sluice-rule")
        assert said.verdict.priority == record.get("priority", "normal")
        if body["model"] == "chat":
            assert said.at.tier == reply.headers.get("x-sluice-tier") == record["tier"]

    async def test_one_that_a_rule_rejects(self) -> None:
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        body = REQ | {"model": "chat", "messages": [{"role": "user", "content": image}]}
        async with two() as (sluice, _, _large):
            said = await explained(sluice, request=body)
            reply = await post_json(sluice.port, CHAT, body)
        assert (said.outcome, said.message) == ("rejected", error_of(reply)["message"])

    async def test_one_that_must_wait_and_one_that_spills(self) -> None:
        gate = Gate()
        async with two(small=gate) as (sluice, small, _), anyio.create_task_group() as tasks:
            for waiting in range(2):
                tasks.start_soon(chat, sluice)
                await eventually(lambda: len(small.requests) == 1)
                await eventually(lambda n=waiting: sluice_queue(sluice) == n)
            said = await explained(sluice, facts={"model": "chat"})
            sooner = await explained(sluice, facts={"model": "chat", "dialect": "anthropic"})
            gate.open.set()
        assert said.outcome == "waits"
        [small_tier, large_tier] = said.tiers
        assert (small_tier.queue, small_tier.open, large_tier.open) == (1, True, False)
        target = small_tier.targets[0]
        assert (target.in_flight, target.capacity, target.wait) == (1, 1, 4.0)  # two seconds each, of two before it
        assert sooner.at is not None
        assert sooner.at.tier == "large"

    async def test_an_engine_that_is_down_is_left_out(self) -> None:
        async with ScriptedEngine() as engine:
            gone = engine.url
        engines = {"small": engine_config(gone), "large": engine_config(gone, models=["big"])}
        async with ScriptedEngine([OK]) as alive:
            one = engines | {"large": engine_config(alive.url, models=["big"])}
            async with gateway(engines=one, policy=POLICY) as sluice:
                said = await explained(sluice, facts={"model": "chat"})
        async with gateway(engines=engines, policy=POLICY) as sluice:
            refused = await explained(sluice, facts={"model": "chat"})
            reply = await chat(sluice)
        assert [(step.tier, step.engine) for step in said.plan] == [("large", "large")]
        assert said.tiers[0].targets[0].left_out == "the engine is down"
        assert (refused.outcome, refused.message) == ("refused", error_of(reply)["message"])


def sluice_queue(sluice: RunningGateway) -> int:
    """How many wait, as the gateway's own router has it."""
    app: Any = sluice.server.config.app
    router = app.dependencies["names"].dependency()
    return len(router.admission.waiting)


class TestItDoesNothing:
    async def test_no_place_is_taken_nothing_is_logged_and_no_engine_hears_of_it(self) -> None:
        async with two() as (sluice, small, large):
            before = (await get(sluice.port, "/admin/engines")).json()
            for _ in range(5):
                await explained(sluice, request=REQ | {"model": "chat"})
            assert (await get(sluice.port, "/admin/engines")).json() == before
            assert not sluice.records()
        assert not small.requests + large.requests

    async def test_whose_turn_it_is_does_not_change(self) -> None:
        """Two equal engines take turns, however often one asks in between whose turn it is."""
        async with ScriptedEngine([OK]) as a, ScriptedEngine([OK]) as b, gateway(a.url, b.url) as sluice:
            told, went = [], []
            for _ in range(4):
                for _ in range(3):
                    said = await explained(sluice, request=REQ)
                told.append(said.at.engine if said.at else None)
                went.append((await post_json(sluice.port, CHAT, REQ)).headers.get("x-sluice-engine"))
        assert told == went
        assert sorted(set(went[:2])) == sorted(set(went[2:])) == ["a", "b"]

    async def test_what_was_learned_of_a_prompts_length_is_known_to_it(self) -> None:
        counted = json_reply(ANSWER | {"usage": {"prompt_tokens": 3000}})
        body = REQ | {"model": "chat", "messages": LONG}
        async with two(TestSpill.POLICY, small=[counted]) as (sluice, _, _large):
            before = await explained(sluice, request=body)
            await post_json(sluice.port, CHAT, body)
            await sluice.record()
            after = await explained(sluice, request=body)
        assert (before.facts.prompt_tokens, after.facts.prompt_tokens) == (1258, 3000)


WRONG = {
    "nothing": ({}, 400, "Neither `request` nor `facts.model`"),
    "no request of its path": ({"request": {"model": "chat"}}, 400, "messages"),
    "another path's request": ({"path": MESSAGES, "request": {"model": "chat"}}, 400, "messages"),
    "a path that nothing is asked at": ({"path": "/v1/models", "facts": {"model": "chat"}}, 400, "/v1/messages"),
    "a fact that there is not": ({"facts": {"model": "chat", "promt_tokens": 3}}, 400, "promt_tokens"),
    "an hour that there is not": ({"facts": {"model": "chat", "hour": 24}}, 400, "facts.hour"),
    "less than nothing": ({"facts": {"model": "chat", "prompt_tokens": -1}}, 400, "facts.prompt_tokens"),
    "more than there can be": ({"facts": {"model": "chat", "prompt_tokens": 10**400}}, 400, "facts.prompt_tokens"),
    "an endpoint that there is not": ({"facts": {"model": "chat", "endpoint": "images"}}, 400, "images"),
    "a fact of another type": ({"facts": {"model": "chat", "images": "two"}}, 400, "facts.images"),
    "a class that there is not": ({"facts": {"model": "chat", "key_class": "vip"}}, 400, "vip"),
    "a model that there is not": ({"facts": {"model": "chta"}}, 404, "chta"),
    "an empty chat of Ollama's": ({"path": "/api/chat", "request": {"model": "chat"}}, 400, "Nothing was asked"),
}


class TestWhatItRefuses:
    @pytest.mark.parametrize(("question", "status", "words"), WRONG.values(), ids=WRONG)
    async def test_a_question_that_cannot_be_answered(self, question: dict[str, Any], status: int, words: str) -> None:
        async with two() as (sluice, _, _large):
            reply = await ask(sluice, question)
        assert reply.status == status
        assert words in error_of(reply)["message"]

    async def test_it_needs_a_key(self) -> None:
        server = {"keys": [{"name": "k", "key": "sk-123456"}]}
        async with ScriptedEngine() as engine, gateway(engine.url, server=server) as sluice:
            without = await ask(sluice, {"request": REQ})
            with_key = await ask(sluice, {"request": REQ}, "sk-123456")
        assert error_of(without)["code"] == "missing_api_key"
        assert with_key.status == 200


class TestTheCommand:
    """`sluice explain --url` asks the gateway and prints what it says."""

    async def run(self, *args: str, **env: str) -> Result:
        return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, ["explain", *args], env=env))

    async def test_it_prints_what_the_gateway_says(self) -> None:
        async with two() as (sluice, _, _large):
            said = await explained(sluice, facts={"model": "chat", "prompt_tokens": 900, "hour": 3})
            facts = ("--model", "chat", "--prompt-tokens", "900", "--hour", "3")
            text = await self.run("--url", sluice.url, *facts)
            v1 = await self.run("--url", f"{sluice.url}/v1/", *facts)
            json = await self.run("--url", sluice.url, "--json", *facts)
        assert text.output == v1.output == as_text(said) + "\n"
        assert msgspec.json.decode(json.output, type=Explanation) == said

    async def test_it_sends_the_key_of_the_environment(self) -> None:
        server = {"keys": [{"name": "k", "key": "sk-123456"}]}
        async with ScriptedEngine() as engine, gateway(engine.url, server=server) as sluice:
            without = await self.run("--url", sluice.url, "--model", "m")
            with_key = await self.run("--url", sluice.url, "--model", "m", SLUICE_KEY="sk-123456")
        assert (without.exit_code, "No API key was given" in without.output) == (1, True)
        assert with_key.exit_code == 0

    async def test_what_is_no_gateway_is_told(self) -> None:
        async with ScriptedEngine([OK]) as engine:
            other = await self.run("--url", engine.url, "--model", "m")
        nobody = await self.run("--url", engine.url, "--model", "m")
        nonsense = await self.run("--url", "nonsense", "--model", "m")
        for result in (other, nobody, nonsense):
            assert result.exit_code == 1
            assert result.output.startswith("Error: ")
            assert "Traceback" not in result.output
