"""A config that changes while the gateway runs: what is under way ends as it began, all else goes by the new one."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.engine import Connection, Request, ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, engine_config
from tests.support.reloading import ReloadingGateway, reloading, replace
from tests.support.sse import DONE, FIN, LAST_CHUNK, ROLE, SSE_HEAD, T, chunk, failed, is_clean, joined, json_reply
from tests.support.waiting import becomes, eventually

pytestmark = pytest.mark.anyio

STREAM = REQ | {"stream": True}
TOKENIZE = {"model": "m", "prompt": "hi"}


class Gate:
    """An engine that begins an answer at once, and ends it when it is let to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, request: Request, connection: Connection) -> None:
        if not request.json().get("stream"):
            await self.open.wait()
            await connection.send(OK)
            return
        await connection.send(SSE_HEAD + chunk(ROLE) + chunk(T("a")))
        await self.open.wait()
        await connection.send(chunk(T("b")) + chunk(FIN("stop")) + chunk(DONE) + LAST_CHUNK)


async def ask(sluice: ReloadingGateway, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return await post_json(sluice.port, CHAT, REQ | fields, headers)


async def serves(sluice: ReloadingGateway) -> bool:
    return (await ask(sluice)).status == 200


async def names(sluice: ReloadingGateway) -> list[str]:
    return [model["id"] for model in (await get(sluice.port, "/v1/models")).json()["data"]]


class TestEngines:
    async def test_one_that_moved_gets_what_comes_and_ends_what_runs_where_it_began(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate) as old,
            ScriptedEngine([OK]) as new,
            reloading(tmp_path, {"a": engine_config(old.url)}) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, STREAM)
            await client.read_until(T("a"))
            await sluice.change(engines={"a": engine_config(new.url)})
            assert [(await ask(sluice)).status for _ in range(3)] == [200] * 3
            assert (len(old.requests), len(new.requests)) == (1, 3)
            assert all(connection.open for connection in old.generating)
            gate.open.set()
            reply = await client.finish()
            assert is_clean(reply.body)
            assert joined(reply.body) == "ab"
            await eventually(lambda: not any(connection.open for connection in old.connections))
            probes = len(old.probes)
            assert sluice.backend("a").in_flight == 0
            await anyio.sleep(0.1)
            assert len(old.probes) == probes

    async def test_added_and_removed_while_streams_run(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate, model="m") as first,
            ScriptedEngine(gate, model="n") as second,
            reloading(tmp_path, {"a": engine_config(first.url)}) as sluice,
            RawClient(sluice.port) as one,
            RawClient(sluice.port) as two,
        ):
            await one.request("POST", CHAT, STREAM)
            await one.read_until(T("a"))
            added = engine_config(second.url, models=["n"])
            await sluice.change(engines={"a": engine_config(first.url), "b": added})
            assert await names(sluice) == ["m", "n"]
            await two.request("POST", CHAT, STREAM | {"model": "n"})
            await two.read_until(T("a"))
            await sluice.change(engines={"b": added})
            assert await names(sluice) == ["n"]
            gone = await ask(sluice)
            gate.open.set()
            replies = [await client.finish() for client in (one, two)]
        assert (gone.status, error_of(gone)["code"]) == (404, "model_not_found")
        assert [joined(reply.body) for reply in replies] == ["ab", "ab"]
        assert all(is_clean(reply.body) for reply in replies)

    async def test_one_that_is_as_before_keeps_its_connections_and_what_is_known_of_it(self, tmp_path: Path) -> None:
        async with (
            ScriptedEngine([OK]) as same,
            ScriptedEngine([OK]) as other,
            reloading(tmp_path, {"a": engine_config(same.url)}) as sluice,
        ):
            await ask(sluice)
            backend, probes = sluice.backend("a"), len(same.probes)
            rates = backend.rates("m")
            assert rates.service is not None
            await sluice.change(engines={"b": engine_config(other.url, models=["n"]), "a": engine_config(same.url)})
            await ask(sluice)
            assert sluice.backend("a") is backend
            assert backend.rates("m") is rates
            assert same.requests[0].connection is same.requests[1].connection
            assert len(same.probes) == probes

    async def test_what_was_learned_of_one_stays_when_it_is_spoken_to_otherwise(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            await ask(sluice)
            before = sluice.backend("a")
            await sluice.change(engines={"a": engine_config(engine.url, api_key="sk-other")})
            after = sluice.backend("a")
            assert after is not before
            assert after.rates("m").service == before.rates("m").service is not None
            await ask(sluice)
        assert engine.requests[-1].headers.get("authorization") == "Bearer sk-other"

    async def test_other_limits_leave_one_its_connections_its_speed_and_its_health(self, tmp_path: Path) -> None:
        """It answers no probe for a while, as one does that is busy; that is no reason to refuse requests."""
        gate = Gate()
        gate.open.set()

        class Busy(ScriptedEngine):
            async def serve(self, request: Request) -> None:
                if request.method == "GET":
                    await gate.open.wait()
                await super().serve(request)

        async with Busy(gate) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            await ask(sluice)
            before, rates = sluice.backend("a"), sluice.backend("a").rates("m")
            assert rates.service is not None
            gate.open.clear()
            await sluice.change(engines={"a": engine_config(engine.url, concurrency=3)})
            async with RawClient(sluice.port) as client:
                await client.request("POST", CHAT, STREAM)
                await client.read_until(T("a"))
                gate.open.set()
                assert is_clean((await client.finish()).body)
            assert sluice.backend("a") is before
            assert (before.capacity, before.rates("m")) == (3, rates)

    async def test_other_limits_count_what_runs_already(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url, concurrency=1)}) as sluice,
            anyio.create_task_group() as tasks,
        ):
            replies = await busy(sluice, engine, tasks)
            await sluice.change(engines={"a": engine_config(engine.url, concurrency=1, timeouts={"total": 60})})
            await anyio.sleep(0.5)  # two ticks of the queue
            assert (engine.running, len(sluice.router.admission.waiting)) == (1, 1)
            await sluice.change(engines={"a": engine_config(engine.url, concurrency=2)})
            await eventually(lambda: engine.running == 2)
            gate.open.set()
            await eventually(lambda: len(replies) == 2)
        assert [reply.status for reply in replies] == [200, 200]

    async def test_other_time_limits_are_for_those_that_come(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, STREAM)
            await client.read_until(T("a"))
            await sluice.change(engines={"a": engine_config(engine.url, timeouts={"total": 0.3})})
            late = await ask(sluice)
            gate.open.set()
            begun = await client.finish()
        assert (late.status, error_of(late)["code"]) == (504, "engine_timeout")
        assert is_clean(begun.body)
        assert joined(begun.body) == "ab"

    async def test_a_new_pin_holds_from_the_first_moment(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            assert (await ask(sluice)).status == 200
            pinned = engine_config(engine.url, pins={"m": {"digest": "sha256:0123"}})
            await sluice.change(engines={"a": pinned})
            refused = await ask(sluice)
            await sluice.change(engines={"a": engine_config(engine.url)})
            await becomes(lambda: serves(sluice))
        assert refused.status == 503
        assert "pinned to sha256:0123" in error_of(refused)["message"]
        assert len(engine.requests) == 2

    @pytest.mark.parametrize("transport", ["native", "httpx"])
    async def test_one_that_does_not_end_in_time_is_cut_off_and_its_client_told_so(
        self, tmp_path: Path, transport: str
    ) -> None:
        async with (
            ScriptedEngine([SSE_HEAD, chunk(ROLE + T("a")), Step.HANG]) as old,
            ScriptedEngine([OK]) as new,
            reloading(
                tmp_path, {"a": engine_config(old.url, transport=transport)}, server={"drain_timeout": 0.2}
            ) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, STREAM)
            await client.read_until(T("a"))
            await sluice.change(engines={"a": engine_config(new.url)})
            reply = await client.finish()
            await old.gone(1)
            assert failed(reply.body)
            assert (await ask(sluice)).status == 200

    @pytest.mark.parametrize("transport", ["native", "httpx"])
    async def test_a_request_that_takes_no_place_is_waited_for_too(self, tmp_path: Path, transport: str) -> None:
        gate = Gate()

        async def tokenize(request: Request, connection: Connection) -> None:
            await gate.open.wait()
            await connection.send(json_reply({"count": 1, "max_model_len": 9, "tokens": [1]}))

        async with (
            ScriptedEngine(tokenize) as old,
            ScriptedEngine([OK]) as new,
            reloading(tmp_path, {"a": engine_config(old.url, kind="vllm", transport=transport)}) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", "/tokenize", TOKENIZE)
            await eventually(lambda: old.running)
            await sluice.change(engines={"a": engine_config(new.url, kind="vllm")})
            assert (await ask(sluice)).status == 200
            gate.open.set()
            assert (await client.finish()).status == 200
            await eventually(lambda: not any(connection.open for connection in old.connections))

    async def test_new_ones_take_requests_from_the_first_moment(self, tmp_path: Path) -> None:
        """Each is looked at before it takes the place of the old one."""
        slow = {"/v1/models": json_reply({"object": "list", "data": [{"id": "m", "object": "model"}]})}

        class Late(ScriptedEngine):
            async def serve(self, request: Request) -> None:
                if request.method == "GET":
                    await asyncio.sleep(0.2)
                await super().serve(request)

        async with (
            ScriptedEngine([OK]) as old,
            Late([OK], probes=slow) as new,
            reloading(tmp_path, {"a": engine_config(old.url)}) as sluice,
        ):
            sluice.write(engines={"a": engine_config(new.url)})
            statuses = set()
            while not new.requests:
                statuses.add((await ask(sluice)).status)
        assert statuses == {200}


class TestWaitingRequests:
    async def test_one_goes_to_where_its_engine_has_moved(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate) as old,
            ScriptedEngine([OK]) as new,
            reloading(tmp_path, {"a": engine_config(old.url, concurrency=1)}) as sluice,
            anyio.create_task_group() as tasks,
        ):
            replies = await busy(sluice, old, tasks)
            await sluice.change(engines={"a": engine_config(new.url, concurrency=1)})
            await eventually(lambda: len(replies) == 1)  # the old one is still at its first
            assert replies[0].status == 200
            assert len(new.requests) == 1
            gate.open.set()
            await eventually(lambda: len(replies) == 2)
        assert [reply.status for reply in replies] == [200, 200]
        assert len(old.requests) == 1

    async def test_one_whose_engine_is_gone_is_told_so_at_once(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate) as old,
            ScriptedEngine([OK]) as other,
            reloading(tmp_path, {"a": engine_config(old.url, concurrency=1)}) as sluice,
            anyio.create_task_group() as tasks,
        ):
            replies = await busy(sluice, old, tasks)
            await sluice.change(engines={"b": engine_config(other.url, models=["n"])})
            await eventually(lambda: len(replies) == 1)
            assert (replies[0].status, error_of(replies[0])["code"]) == (404, "model_not_found")
            gate.open.set()
        assert len(other.requests) == 0

    async def test_one_waits_on_until_the_new_engine_is_ready(self, tmp_path: Path) -> None:
        gate = Gate()
        loading = {"/health": json_reply({"error": {"message": "Loading model"}}, 503)}
        async with (
            ScriptedEngine(gate) as old,
            ScriptedEngine([OK], probes=loading) as new,
            reloading(tmp_path, {"a": engine_config(old.url, kind="llamacpp", concurrency=1)}) as sluice,
            anyio.create_task_group() as tasks,
        ):
            replies = await busy(sluice, old, tasks)
            await sluice.change(engines={"a": engine_config(new.url, kind="llamacpp", probe={"interval": 0.1})})
            await anyio.sleep(0.3)
            assert not replies
            new.probe_replies["/health"] = json_reply({"status": "ok"})
            await eventually(lambda: len(replies) == 1)
            gate.open.set()
        assert [reply.status for reply in replies] == [200, 200]
        assert len(new.requests) == 1

    async def test_one_goes_by_the_new_policy(self, tmp_path: Path) -> None:
        gate = Gate()
        policy = "models: {chat: {tiers: {small: a, large: b}, rules: [{route: [small]}]}}"
        async with (
            ScriptedEngine(gate) as small,
            ScriptedEngine([OK]) as large,
            reloading(
                tmp_path, {"a": engine_config(small.url, concurrency=1), "b": engine_config(large.url)}, policy=policy
            ) as sluice,
            anyio.create_task_group() as tasks,
        ):
            replies = await busy(sluice, small, tasks, model="chat")
            replace(sluice.policy, policy.replace("[small]", "[large]"))
            await eventually(lambda: len(replies) == 1)
            assert replies[0].headers.get("x-sluice-tier") == "large"
            replies.clear()
            gate.open.set()


async def busy(sluice: ReloadingGateway, engine: ScriptedEngine, tasks: Any, model: str = "m") -> list[Reply]:
    """Two requests, of which one runs and the other waits; their replies come into the list."""
    replies: list[Reply] = []

    async def one() -> None:
        replies.append(await ask(sluice, model=model))

    for _ in range(2):
        tasks.start_soon(one)
    router = sluice.router
    await eventually(lambda: engine.running == 1 and len(router.admission.waiting) == 1)
    return replies


class TestPolicies:
    POLICY = "models: {chat: {tiers: {small: a, large: b}}}"

    async def test_a_policy_file_is_followed(self, tmp_path: Path) -> None:
        async with (
            ScriptedEngine([OK]) as small,
            ScriptedEngine([OK]) as large,
            reloading(
                tmp_path, {"a": engine_config(small.url), "b": engine_config(large.url)}, policy=self.POLICY
            ) as sluice,
        ):
            first = await ask(sluice, model="chat")
            replace(sluice.policy, self.POLICY.replace("}}}", "}, rules: [{name: big, route: [large]}]}}"))
            await sluice.loaded()
            second = await ask(sluice, model="chat")
            await sluice.change(policy=None)
            third = await ask(sluice, model="chat")
        assert first.headers.get("x-sluice-engine") == "a"
        assert (second.headers.get("x-sluice-engine"), second.headers.get("x-sluice-rule")) == ("b", "big")
        assert error_of(third)["code"] == "model_not_found"

    async def test_one_that_is_not_there_yet_is_taken_when_it_comes(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            sluice.write(policy="policy.yaml")
            assert "policy.yaml: there is no such file" in await sluice.refused("policy.yaml")
            sluice.policy.write_text("models: {chat: {tiers: {all: a}}}")
            await sluice.loaded()
            assert (await ask(sluice, model="chat")).status == 200

    async def test_the_queue_s_settings_are_followed(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url, concurrency=1)}) as sluice,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(ask, sluice)
            await eventually(lambda: engine.running)
            await sluice.change(queue={"limit": 0})
            refused = await ask(sluice)
            gate.open.set()
        assert error_of(refused)["code"] == "queue_full"


class TestKeys:
    OLD, NEW = {"Authorization": "Bearer sk-old-old"}, {"Authorization": "Bearer sk-new-new"}

    async def test_an_old_key_is_refused_and_its_running_request_ends_well(self, tmp_path: Path) -> None:
        gate = Gate()
        async with (
            ScriptedEngine(gate) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, server=keys("sk-old-old")) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, STREAM, self.OLD)
            await client.read_until(T("a"))
            await sluice.change(server=keys("sk-new-new"))
            old, listed = await ask(sluice, self.OLD), await get(sluice.port, "/v1/models", self.OLD)
            gate.open.set()
            running, new = await client.finish(), await ask(sluice, self.NEW)
            assert (await get(sluice.port, "/v1/models", self.NEW)).status == 200
        assert (old.status, listed.status, new.status) == (401, 401, 200)
        assert joined(running.body) == "ab"
        assert is_clean(running.body)

    async def test_limits_are_those_of_the_file(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            long = {"messages": [{"role": "user", "content": "word " * 1000}]}
            statuses = [(await ask(sluice, **long)).status]
            await sluice.change(server={"max_body_bytes": 2048})
            statuses.append((await ask(sluice, **long)).status)
            await sluice.change(server={"max_header_bytes": 4096})
            statuses += [(await ask(sluice, **long)).status, (await ask(sluice, {"X-Long": "x" * 8000})).status]
        assert statuses == [200, 413, 200, 431]


def keys(*values: str) -> dict[str, Any]:
    return {"keys": [{"name": f"client {value}", "key": value} for value in values]}
