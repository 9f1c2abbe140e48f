"""Which engine gets a request: the least loaded that is ready, and of equals the one unused for longest."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, get, post_json
from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.sse import json_reply
from tests.support.waiting import becomes, eventually

pytestmark = pytest.mark.anyio

QUICK = {"interval": 0.1}


def counts(*engines: ScriptedEngine) -> list[int]:
    return [len(engine.requests) for engine in engines]


def running(*engines: ScriptedEngine) -> list[int]:
    return [engine.running for engine in engines]


async def chat(sluice: RunningGateway, model: str = "m") -> int:
    """The status of a chat request."""
    return (await post_json(sluice.port, CHAT, {**REQ, "model": model})).status


async def occupy(
    stack: AsyncExitStack, sluice: RunningGateway, times: int, *engines: ScriptedEngine
) -> list[RawClient]:
    """Clients whose requests are with engines that never answer, one after the other."""
    clients = []
    for _ in range(times):
        client = await stack.enter_async_context(RawClient(sluice.port))
        before = sum(running(*engines))
        await client.request("POST", CHAT, REQ)
        await eventually(lambda: sum(running(*engines)) == before + 1)  # noqa: B023
        clients.append(client)
    return clients


class TestTurns:
    @pytest.mark.parametrize("number", [2, 3])
    async def test_idle_engines_take_turns(self, number: int) -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(ScriptedEngine([OK])) for _ in range(number)]
            sluice = await stack.enter_async_context(gateway(*[engine.url for engine in engines]))
            for turn in range(1, 5):
                for _ in engines:
                    assert await chat(sluice) == 200
                assert counts(*engines) == [turn] * number

    async def test_whatever_else_is_asked_for_does_not_skew_them(self) -> None:
        """A model on two engines is split evenly, also with other models, polls and refusals in between."""
        async with ScriptedEngine([OK]) as a, ScriptedEngine([OK]) as b, ScriptedEngine([OK]) as c:
            engines = {
                "a": engine_config(a.url, models=["p"], probe=QUICK),
                "b": engine_config(b.url, models=["p"], probe=QUICK),
                "c": engine_config(c.url, models=["q"], probe=QUICK),
            }
            async with gateway(engines=engines) as sluice:
                for _ in range(50):
                    assert await chat(sluice, "p") == 200
                    assert await chat(sluice, "q") == 200
                    await get(sluice.port, "/v1/models")
                    await get(sluice.port, "/health/ready")
                    assert await chat(sluice, "nothing") == 404
                    assert (await post_json(sluice.port, CHAT, b'{"model":"p"}')).status == 400
                assert counts(a, b, c) == [25, 25, 50]

    async def test_an_alias_and_a_name_share_them(self) -> None:
        async with ScriptedEngine([OK]) as a, ScriptedEngine([OK]) as b:
            models = {"alias": [{"engine": "a"}, {"engine": "b"}]}
            async with gateway(a.url, b.url, models=models) as sluice:
                for _ in range(10):
                    assert [await chat(sluice, "alias"), await chat(sluice, "m")] == [200, 200]
                assert counts(a, b) == [10, 10]

    async def test_answers_tell_who_gave_them(self) -> None:
        async with ScriptedEngine([OK]) as a, ScriptedEngine([OK]) as b, gateway(a.url, b.url) as sluice:
            replies = [await post_json(sluice.port, CHAT, REQ) for _ in range(4)]
            assert {reply.headers.get("x-sluice-engine") for reply in replies[:2]} == {"a", "b"}
            assert counts(a, b) == [2, 2]


class TestLoad:
    async def test_running_requests_count(self) -> None:
        async with ScriptedEngine([Step.HANG]) as a, ScriptedEngine([Step.HANG]) as b, AsyncExitStack() as stack:
            sluice = await stack.enter_async_context(gateway(a.url, b.url))
            clients = await occupy(stack, sluice, 4, a, b)
            assert running(a, b) == [2, 2]
            for client in clients[::2]:  # both are with the same engine
                client.close()
            await eventually(lambda: sorted(running(a, b)) == [0, 2])
            await occupy(stack, sluice, 2, a, b)
            assert running(a, b) == [2, 2]

    @pytest.mark.parametrize(
        ("configured", "told", "expected"),
        [
            ((4, 12), (16, 16), [2, 6]),  # by the config
            ((None, None), (4, 12), [2, 6]),  # by what llama.cpp says in /props
            ((None, 18), (6, 3), [2, 6]),
        ],
    )
    async def test_it_is_a_share_of_what_an_engine_can_run_at_once(
        self, configured: tuple[int | None, ...], told: tuple[int, ...], expected: list[int]
    ) -> None:
        async with AsyncExitStack() as stack:
            engines: dict[str, Any] = {}
            scripted = []
            for name, concurrency, slots in zip("ab", configured, told, strict=True):
                probes = {"/props": json_reply({"total_slots": slots})}
                engine = await stack.enter_async_context(ScriptedEngine([Step.HANG], probes=probes))
                engines[name] = engine_config(engine.url, kind="llamacpp", concurrency=concurrency)
                scripted.append(engine)
            sluice = await stack.enter_async_context(gateway(engines=engines))
            await occupy(stack, sluice, 8, *scripted)
            assert running(*scripted) == expected

    @pytest.mark.parametrize(
        "script",
        [[json_reply({}, 500)], [json_reply({}, 400)], [b"nonsense\r\n\r\n", Step.FIN], [Step.RESET], [Step.FIN]],
        ids=["500", "400", "nonsense", "RST", "FIN"],
    )
    async def test_a_request_that_failed_counts_no_longer(self, script: list[bytes | Step]) -> None:
        async with ScriptedEngine(script) as a, ScriptedEngine(script) as b, AsyncExitStack() as stack:
            sluice = await stack.enter_async_context(gateway(a.url, b.url))
            for _ in range(5):
                assert await chat(sluice) >= 400
            a.script = b.script = [Step.HANG]
            await occupy(stack, sluice, 6, a, b)
            assert running(a, b) == [3, 3]


class TestEnginesThatAreDown:
    async def test_they_get_nothing(self) -> None:
        async with ScriptedEngine([OK]) as a, gateway(a.url, "http://127.0.0.1:9") as sluice:
            assert [await chat(sluice) for _ in range(6)] == [200] * 6

    async def test_one_that_stops_listening_costs_one_request_and_comes_back_by_itself(self) -> None:
        """The probes are far apart, so it is the request that finds out; from then on the engine is looked at often."""
        async with ScriptedEngine([OK]) as a, AsyncExitStack() as stack:
            b = ScriptedEngine([OK])
            async with b:
                sluice = await stack.enter_async_context(gateway(a.url, b.url))
                assert [await chat(sluice) for _ in range(4)] == [200] * 4
                assert counts(a, b) == [2, 2]
            statuses = [await chat(sluice) for _ in range(10)]
            assert sorted(statuses) == [200] * 9 + [502]
            ready = (await get(sluice.port, "/health/ready")).json()["engines"]
            assert (ready["a"]["state"], ready["b"]["state"]) == ("ready", "down")
            async with ScriptedEngine([OK], port=b.port) as again:

                async def used() -> bool:
                    assert await chat(sluice) == 200
                    return bool(again.requests)

                await becomes(used)

    async def test_when_it_is_the_only_one_its_model_is_a_503_until_it_is_back(self) -> None:
        async with AsyncExitStack() as stack:
            engine = ScriptedEngine([OK])
            async with engine:
                sluice = await stack.enter_async_context(gateway(engine.url))
                assert await chat(sluice) == 200
            first = await post_json(sluice.port, CHAT, REQ)
            assert (first.status, error_of(first)["code"]) == (502, "engine_unreachable")
            second = await post_json(sluice.port, CHAT, REQ)
            assert (second.status, error_of(second)["code"]) == (503, "no_engine_available")
            assert int(second.headers.get("retry-after") or 0) >= 1
            async with ScriptedEngine([OK], port=engine.port):

                async def serves() -> bool:
                    return await chat(sluice) == 200

                await becomes(serves)

    async def test_one_that_hangs_does_not_hold_up_the_other(self) -> None:
        async with ScriptedEngine([Step.HANG]) as hung, ScriptedEngine([OK]) as well:
            engines = {"a": engine_config(hung.url, models=["p"]), "b": engine_config(well.url, models=["q"])}
            async with gateway(engines=engines) as sluice, AsyncExitStack() as stack:
                for _ in range(50):
                    client = await stack.enter_async_context(RawClient(sluice.port))
                    await client.request("POST", CHAT, {**REQ, "model": "p"})
                await eventually(lambda: hung.running == 50)
                assert await asyncio.gather(*[chat(sluice, "q") for _ in range(50)]) == [200] * 50
