"""`GET /admin/engines`: what the gateway knows of its engines, as their own pages were recorded."""

from typing import Any

import pytest

from tests.support.answers import OK, error_of
from tests.support.client import get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, gateway
from tests.support.ollama import END, N, Ollama, ndjson_reply, sluice
from tests.support.sse import reply
from tests.support.waiting import eventually
from tests.support.wire import recording, recordings

pytestmark = pytest.mark.anyio

ENGINES = "/admin/engines"


def pages(engine: str) -> dict[str, bytes]:
    """An engine's own pages, by path."""
    return {one.path: one.raw for one in recordings(engine) if one.method == "GET" and one.status == 200}


def asked(kind: str, engine: ScriptedEngine) -> dict[str, Any]:
    """A config by which an engine is asked for its models."""
    return {"a": {"kind": kind, "url": engine.url}}


async def card(port: int) -> dict[str, Any]:
    [found] = (await get(port, ENGINES)).json()["engines"]
    return dict(found)


async def told(port: int) -> dict[str, Any]:
    """The engine's card, once its load has been read."""
    while not (found := await card(port))["load"]:
        pass
    return found


class TestWhatIsTold:
    async def test_of_llamacpp(self) -> None:
        async with (
            ScriptedEngine(probes=pages("llamacpp")) as engine,
            gateway(engines=asked("llamacpp", engine)) as running,
        ):
            found = await told(running.port)
        assert (found["kind"], found["state"], found["in_flight"], found["capacity"]) == ("llamacpp", "ready", 0, 4)
        assert found["abilities"] == ["cached_tokens", "continue", "prefill_progress", "slot_files"]
        assert "/v1/messages" not in found["endpoints"]
        [model] = found["models"]
        assert model["context"] == 2048
        assert set(found["load"]) >= {"running", "waiting"}
        assert found["load"]["prefix_hits"] <= found["load"]["prefix_queries"]

    async def test_of_vllm(self) -> None:
        async with ScriptedEngine(probes=pages("vllm")) as engine, gateway(engines=asked("vllm", engine)) as running:
            found = await told(running.port)
        assert found["abilities"] == ["cache_salt", "cached_tokens", "continue", "priority"]
        load = found["load"]
        assert (load["running"], load["waiting"]) == (0, 0)
        assert 0 <= load["kv_usage"] <= 1
        assert load["kv_tokens"] % 32 == 0
        assert 0 < load["prefix_hits"] < load["prefix_queries"]
        assert found["models"][0]["version"]

    async def test_of_ollama(self) -> None:
        async with (
            Ollama([ndjson_reply(N("hi") + END("stop", load_duration=2_500_000_000))]) as engine,
            sluice(engine) as running,
        ):
            before = await card(running.port)
            await post_json(running.port, CHAT, {**REQ, "model": "smollm2", "stream": True})
            record = await running.record()
            after = await card(running.port)
        assert before["load"] is None
        models = {model["name"]: model for model in before["models"]}
        assert models["smollm2:latest"]["digest"]
        assert "load_time" not in models["smollm2"]
        assert {m["name"]: m.get("load_time") for m in after["models"]}["smollm2"] == 2.5
        assert record["engine_load"] == 2.5

    async def test_nothing_is_made_up(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as running:
            found = await card(running.port)
        assert found["load"] is None
        assert found["models"] == [{"name": "m"}]

    async def test_of_an_engine_that_is_down(self) -> None:
        async with ScriptedEngine() as engine:
            url = engine.url
        async with gateway(url) as running:
            found = await card(running.port)
        assert (found["state"], found["reason"]) == ("down", "it cannot be reached")


class TestLoad:
    @pytest.mark.parametrize(
        "metrics",
        [
            reply(b"nothing here", status=501),
            reply(b""),
            reply(b"llamacpp:requests_processing\nllamacpp:requests_deferred x\nllamacpp:requests_processing{ NaN\n"),
            reply(b"\xff\xfe\x00"),
        ],
    )
    async def test_a_page_that_tells_nothing_does_no_harm(self, metrics: bytes) -> None:
        probes = {**pages("llamacpp"), "/metrics": metrics}
        async with (
            ScriptedEngine([OK], probes=probes) as engine,
            gateway(engine.url, kind="llamacpp", probe={"interval": 0.05}) as running,
        ):
            await eventually(lambda: sum(one.path == "/metrics" for one in engine.probes) > 2)
            found = await card(running.port)
            got = await post_json(running.port, CHAT, REQ)
        assert found["state"] == "ready"
        assert not found["load"]
        assert got.status == 200

    async def test_metrics_of_several_workers_are_added(self) -> None:
        lines = "\n".join(
            f'vllm:{name}{{engine="{at}",model_name="m"}} {value}'
            for name, values in {
                "num_requests_running": (1, 2.0),
                "num_requests_waiting": (0, "3e0"),
                "num_requests_waiting_by_reason": (7, 7),
                "kv_cache_usage_perc": (0.25, 0.5),
            }.items()
            for at, value in enumerate(values)
        )
        probes = {**pages("vllm"), "/metrics": reply(lines.encode())}
        async with ScriptedEngine(probes=probes) as engine, gateway(engine.url, kind="vllm") as running:
            found = await told(running.port)
        assert found["load"] == {"running": 3, "waiting": 3, "kv_usage": 0.5}


async def test_it_needs_a_key() -> None:
    async with (
        ScriptedEngine() as engine,
        gateway(engine.url, server={"keys": [{"name": "k", "key": "sk-123456"}]}) as one,
    ):
        without = await get(one.port, ENGINES)
        with_key = await get(one.port, ENGINES, {"authorization": "Bearer sk-123456"})
    assert error_of(without)["code"] == "missing_api_key"
    assert with_key.status == 200


async def test_what_ollamas_programs_are_told_that_a_model_can_do() -> None:
    listed = recording("ollama", "tags").reply.json()["models"][0]["capabilities"]
    async with Ollama() as engine, sluice(engine) as running:
        tags = (await get(running.port, "/api/tags")).json()["models"]
        shown = (await post_json(running.port, "/api/show", {"model": "smollm2"})).json()
    assert {tuple(model["capabilities"]) for model in tags if model["name"].startswith("smollm2")} == {
        tuple(sorted(listed))
    }
    assert shown["capabilities"] == sorted(listed)
