"""Clients and logs are told which model exactly answered, and a pinned model is the one or none."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.client import get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.sse import json_reply

pytestmark = pytest.mark.anyio

ANSWER = json_reply({"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]})
IDENTITY = "version=b9999-abcdef; quantization=Q4_1; context=2048"


def probes(**props: Any) -> dict[str, bytes]:
    """What a llama.cpp server tells of itself."""
    told = {"total_slots": 2, "build_info": "b9999-abcdef", "model_ftype": "Q4_1", **props}
    return {
        "/v1/models": json_reply({"object": "list", "data": [{"id": "m", "meta": {"n_ctx": 2048}}]}),
        "/props": json_reply(told),
    }


def pinned(url: str, **pin: Any) -> Mapping[str, Any]:
    return {"a": engine_config(url, kind="llamacpp", pins={"m": pin}, probe={"interval": 0.05})}


async def reason(sluice: RunningGateway) -> str:
    return str((await get(sluice.port, "/health/ready")).json()["engines"]["a"]["reason"])


async def test_the_answer_and_its_log_line_name_the_model() -> None:
    async with ScriptedEngine([ANSWER], probes=probes()) as engine, gateway(engine.url, kind="llamacpp") as sluice:
        reply = await post_json(sluice.port, CHAT, REQ)
        assert reply.headers.get("x-sluice-identity") == IDENTITY
        assert (await sluice.record())["identity"] == IDENTITY


async def test_a_model_as_pinned_answers() -> None:
    async with (
        ScriptedEngine([ANSWER], probes=probes()) as engine,
        gateway(engines=pinned(engine.url, quantization="Q4_1", context=2048)) as sluice,
    ):
        assert (await post_json(sluice.port, CHAT, REQ)).status == 200


@pytest.mark.parametrize("models", [["m"], []], ids=["named in the config", "told by the engine"])
async def test_another_model_than_the_pinned_one_gets_no_requests(models: list[str]) -> None:
    async with ScriptedEngine([ANSWER], probes=probes()) as engine:
        engines = {"a": {**pinned(engine.url, version="b1")["a"], "models": models}}
        await refuses(engine, engines)


async def refuses(engine: ScriptedEngine, engines: Mapping[str, Any]) -> None:
    async with gateway(engines=engines) as sluice:
        reply = await post_json(sluice.port, CHAT, REQ)
        assert reply.status == 503
        assert "the version of m is pinned to b1, and the engine has b9999-abcdef" in reply.json()["error"]["message"]
        assert await reason(sluice) == "the version of m is pinned to b1, and the engine has b9999-abcdef"
        assert engine.requests == []


async def test_an_engine_whose_model_has_changed_is_taken_out() -> None:
    async with (
        ScriptedEngine([ANSWER], probes=probes()) as engine,
        gateway(engines=pinned(engine.url, quantization="Q4_1")) as sluice,
    ):
        assert (await post_json(sluice.port, CHAT, REQ)).status == 200
        engine.probe_replies |= probes(model_ftype="Q8_0")
        async with asyncio.timeout(10):
            while "pinned" not in await reason(sluice):
                await asyncio.sleep(0.05)
        assert (await post_json(sluice.port, CHAT, REQ)).status == 503
        assert len(engine.requests) == 1
