"""Health: of the gateway as it tells it, and of engines as it finds it, by cheap GETs and nothing else."""

import asyncio

import anyio
import pytest

from gateway.engines.base import Health
from gateway.engines.vllm import VllmEngine
from tests.support.answers import OK, error_of
from tests.support.client import get, post_json
from tests.support.engine import NOT_FOUND, Connection, Request, ScriptedEngine
from tests.support.gateway import CHAT, REQ, RunningGateway, engine_config, gateway
from tests.support.sse import DONE, FIN, LAST_CHUNK, ROLE, SSE_HEAD, T, chunk, http_ok, json_reply, reply
from tests.support.waiting import becomes, eventually

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:9"
QUICK = {"interval": 0.1, "timeout": 0.3}
LOADING = json_reply({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503)
WELL = json_reply({"status": "ok"})
MODELS = json_reply({"object": "list", "data": [{"id": "m"}]})


async def state_of(sluice: RunningGateway, engine: str = "a") -> tuple[str, str]:
    """An engine's state and the reason for it."""
    told = (await get(sluice.port, "/health/ready")).json()["engines"][engine]
    return told["state"], told["reason"]


class TestWhatTheGatewayTells:
    async def test_it_lives_whatever_its_engines_do(self) -> None:
        async with gateway(NOWHERE) as sluice:
            answer = await get(sluice.port, "/health/live")
            assert (answer.status, answer.json()) == (200, {"status": "live"})

    async def test_it_is_ready_with_one_engine_that_is(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, NOWHERE) as sluice:
            answer = await get(sluice.port, "/health/ready")
            assert answer.status == 200
            body = answer.json()
            assert body["status"] == "ready"
            assert body["engines"]["a"] == {"state": "ready", "reason": ""}
            assert body["engines"]["b"]["state"] == "down"

    async def test_it_is_not_ready_without_and_says_whether_one_is_on_its_way(self) -> None:
        async with gateway(NOWHERE) as sluice:
            answer = await get(sluice.port, "/health/ready")
            assert (answer.status, answer.json()["status"]) == (503, "down")
        async with (
            ScriptedEngine(probes={"/health": LOADING}) as engine,
            gateway(engine.url, kind="llamacpp") as sluice,
        ):
            answer = await get(sluice.port, "/health/ready")
            assert (answer.status, answer.json()["status"]) == (503, "starting")

    async def test_no_address_and_no_key_is_told(self) -> None:
        async with gateway(NOWHERE, api_key="sk-of-the-engine") as sluice:
            told = (await get(sluice.port, "/health/ready")).raw
            told += (await post_json(sluice.port, CHAT, REQ)).raw
            assert b"127.0.0.1" not in told
            assert b"sk-of-the-engine" not in told


FOUND: dict[str, tuple[str, dict[str, bytes], str, str]] = {
    "an idle llama.cpp": ("llamacpp", {}, "ready", ""),
    "a llama.cpp that loads, with models listed": ("llamacpp", {"/health": LOADING}, "loading", "loading its model"),
    "a llama.cpp that is ill": ("llamacpp", {"/health": json_reply({}, 500)}, "down", "HTTP 500"),
    "a llama.cpp without /props": ("llamacpp", {"/props": NOT_FOUND}, "ready", ""),
    "a llama.cpp with odd /props": ("llamacpp", {"/props": reply(b"\xff{")}, "ready", ""),
    "a llama.cpp with deep /props": ("llamacpp", {"/props": reply(b'{"x":' + b"[" * 10_000)}, "ready", ""),
    "an idle vLLM": ("vllm", {}, "ready", ""),
    "a vLLM whose process died": ("vllm", {"/health": reply(b"", status=503)}, "down", "HTTP 503"),
    "any other": ("openai", {"/health": NOT_FOUND}, "ready", ""),
    "one that refuses our key": ("openai", {"/v1/models": json_reply({}, 401)}, "down", "credentials"),
    "one that forbids us": ("openai", {"/v1/models": json_reply({}, 403)}, "down", "credentials"),
    "one without a list of models": ("openai", {"/v1/models": NOT_FOUND}, "down", "HTTP 404"),
    "one that sends us elsewhere": (
        "openai",
        {"/v1/models": http_ok("Location: /x", "Content-Length: 0", status=302)},
        "down",
        "302",
    ),
    "a page in HTML": ("openai", {"/v1/models": reply(b"<html>", "Content-Type: text/html")}, "down", "form"),
    "no bytes": ("openai", {"/v1/models": reply(b"")}, "down", "form"),
    "a list of something else": ("openai", {"/v1/models": json_reply({"data": [{"name": "m"}]})}, "down", "form"),
    "a list that is none": ("openai", {"/v1/models": json_reply({"data": None})}, "down", "form"),
    "a number for a name": ("openai", {"/v1/models": json_reply({"data": [{"id": 7}]})}, "down", "form"),
    "bytes that are no text": ("openai", {"/v1/models": reply(b'{"data":[{"id":"\xff"}]}')}, "down", "form"),
    "half a surrogate pair": ("openai", {"/v1/models": reply(rb'{"data":[{"id":"\ud83e"}]}')}, "down", "form"),
    "a number beyond all": (
        "openai",
        {"/v1/models": reply(b'{"data":[{"id":"m","max_model_len":%b}]}' % (b"9" * 5000))},
        "down",
        "form",
    ),
    "10,000 lists in each other": ("openai", {"/v1/models": reply(b'{"x":' + b"[" * 10_000)}, "down", "form"),
    "broken compression": ("openai", {"/v1/models": reply(b"x", "Content-Encoding: gzip")}, "down", "form"),
    "not HTTP": ("openai", {"/v1/models": b"hello\r\n\r\n"}, "down", "broken"),
    "a body cut off": (
        "openai",
        {"/v1/models": http_ok("Content-Length: 9", "Connection: close") + b"{"},
        "down",
        "within",
    ),
    "odd cookies": (
        "openai",
        {"/v1/models": json_reply({"data": []}, 200, "Set-Cookie: ;;=;expires=x", "Set-Cookie: a")},
        "ready",
        "",
    ),
}


class TestWhatProbesFind:
    @pytest.mark.parametrize(("kind", "probes", "state", "reason"), FOUND.values(), ids=FOUND)
    async def test_states(self, kind: str, probes: dict[str, bytes], state: str, reason: str) -> None:
        async with (
            ScriptedEngine([OK], probes=probes) as engine,
            gateway(engine.url, kind=kind, probe={"interval": 0.1, "timeout": 1.5}) as sluice,
        ):
            found = await state_of(sluice)
            assert found[0] == state
            assert reason in found[1]
            assert (await post_json(sluice.port, CHAT, REQ)).status == (200 if state == "ready" else 503)
            seen = len(engine.probes)
            await eventually(lambda: len(engine.probes) > seen)

    async def test_a_probe_that_drips_is_given_up_too(self) -> None:
        """Each byte is in time, the whole is not."""

        async def drip(request: Request, connection: Connection) -> None:
            await connection.send(http_ok("Content-Length: 1000"))
            for _ in range(1000):
                await connection.send(b" ")
                await asyncio.sleep(0.05)

        async with DrippingEngine(drip) as engine, gateway(engine.url, probe=QUICK) as sluice:
            await becomes(lambda: is_down(sluice))
            assert "within 0.3 s" in (await state_of(sluice))[1]

    @pytest.mark.parametrize("interval", [0.2, 60])
    async def test_an_engine_that_was_loading_is_used_soon_after(self, interval: float) -> None:
        probes = {"/health": LOADING}
        async with (
            ScriptedEngine([OK], probes=probes) as engine,
            gateway(engine.url, kind="llamacpp", probe={"interval": interval}) as sluice,
        ):
            answer = await post_json(sluice.port, CHAT, REQ)
            assert (answer.status, error_of(answer)["code"]) == (503, "no_engine_available")
            assert "loading" in error_of(answer)["message"]
            assert int(answer.headers.get("retry-after") or 0) >= 1
            assert not engine.requests
            engine.probe_replies["/health"] = WELL
            await becomes(lambda: serves(sluice))

    async def test_an_engine_that_never_answers_probes_is_down_and_holds_start_up_only_for_a_moment(self) -> None:
        async with ScriptedEngine([OK], probes={"/v1/models": b""}) as engine:
            with anyio.fail_after(10):
                async with gateway(engine.url, probe={"timeout": 30}) as sluice:
                    assert (await state_of(sluice))[0] == "starting"
                    assert (await post_json(sluice.port, CHAT, REQ)).status == 503


class TestProbesWhileTokensFlow:
    async def test_one_that_times_out_takes_nothing_away(self) -> None:
        async with (
            ScriptedEngine(tokens(1.5), probes={"/v1/models": MODELS}) as engine,
            gateway(engine.url, probe=QUICK) as sluice,
        ):
            assert (await state_of(sluice))[0] == "ready"
            async with asyncio.TaskGroup() as tasks:
                stream = tasks.create_task(post_json(sluice.port, CHAT, {**REQ, "stream": True}))
                await eventually(lambda: engine.running == 1)
                engine.probe_replies["/v1/models"] = b""
                seen = len(engine.probes)
                while not stream.done():
                    assert (await state_of(sluice))[0] == "ready"
                    await asyncio.sleep(0.02)
                assert len(engine.probes) >= seen + 3
                assert stream.result().complete
            await becomes(lambda: is_down(sluice))

    async def test_one_alone_is_not_enough_and_two_in_a_row_are(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, probe=QUICK) as sluice:
            engine.probe_replies["/v1/models"] = b""
            seen = len(engine.probes)
            await eventually(lambda: len(engine.probes) == seen + 1)
            assert (await state_of(sluice))[0] == "ready"
            await becomes(lambda: is_down(sluice))
            assert len(engine.probes) >= seen + 2
            engine.probe_replies["/v1/models"] = MODELS
            await becomes(lambda: serves(sluice))


class TestHowProbesAsk:
    @pytest.mark.parametrize(
        ("kind", "paths"),
        [
            ("llamacpp", {"/health", "/v1/models", "/props", "/metrics"}),
            ("vllm", {"/health", "/v1/models", "/version", "/metrics", "/openapi.json"}),
            ("openai", {"/v1/models"}),
        ],
    )
    async def test_only_cheap_gets_and_no_faster_for_clients_that_poll(self, kind: str, paths: set[str]) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, kind=kind, probe={"interval": 0.5}) as sluice:
            with anyio.move_on_after(2.0):
                while True:
                    await get(sluice.port, "/health/ready")
                    await get(sluice.port, "/v1/models")
                    await get(sluice.port, "/v1/models/m")
                    await asyncio.sleep(0.01)
            assert not engine.requests
            assert {probe.path for probe in engine.probes} == paths
            assert {probe.method for probe in engine.probes} == {"GET"}
            rounds = [probe for probe in engine.probes if probe.path == "/v1/models"]
            assert 2 <= len(rounds) <= 6, "one at the start, then one each 0.45 to 0.55 s"

    async def test_engines_are_probed_apart_from_each_other(self) -> None:
        async with (
            ScriptedEngine([OK]) as well,
            ScriptedEngine([OK], probes={"/v1/models": b""}) as hung,
            gateway(well.url, hung.url, probe={"interval": 0.1, "timeout": 1.0}) as sluice,
        ):
            seen = len(well.probes)
            await eventually(lambda: len(well.probes) >= seen + 3)
            assert (await state_of(sluice, "a"))[0] == "ready"


def tokens(seconds: float) -> list[bytes | float]:
    """A stream with a token every 50 ms for so long."""
    steps: list[bytes | float] = [SSE_HEAD, chunk(ROLE)]
    for _ in range(int(seconds / 0.05)):
        steps += [chunk(T("x")), 0.05]
    return [*steps, chunk(FIN("stop") + DONE), LAST_CHUNK]


class DrippingEngine(ScriptedEngine):
    """Its answers to probes are a script, too."""

    async def serve(self, request: Request) -> None:
        self.requests.append(request)
        await self._run(request)


async def is_down(sluice: RunningGateway) -> bool:
    return (await state_of(sluice))[0] == "down"


async def serves(sluice: RunningGateway) -> bool:
    return (await post_json(sluice.port, CHAT, REQ)).status == 200


async def test_an_adapter_that_fails_takes_out_its_own_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: VllmEngine, client: object) -> Health:
        raise LookupError("a fault of the adapter")

    monkeypatch.setattr(VllmEngine, "probe", broken)
    async with ScriptedEngine([OK]) as engine:
        engines = {
            "odd": engine_config(engine.url, kind="vllm", models=["odd"], probe={"interval": 0.05}),
            "well": engine_config(engine.url, probe={"interval": 0.05}),
        }
        async with gateway(engines=engines) as sluice:
            asked = len(engine.probes)
            await eventually(lambda: len(engine.probes) > asked + 2)
            states = (await get(sluice.port, "/health/ready")).json()["engines"]
            assert (states["odd"]["state"], states["well"]["state"]) == ("down", "ready")
