"""What Ollama's programs ask about models: their names, which there are, and who may ask."""

from typing import Any

import pytest

from tests.api.ollama_errors import error_of
from tests.support.answers import OK
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import engine_config, gateway
from tests.support.sse import json_reply
from tests.support.wire import recording

pytestmark = pytest.mark.anyio

CHAT, EMBED = "/api/chat", "/api/embed"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEY = "sk-of-a-client"
KEYS = {"keys": [{"name": "laptop", "key": KEY}]}
AUTH = {"Authorization": f"Bearer {KEY}"}
MODELS_OF_4096 = {"/v1/models": json_reply({"data": [{"id": "m", "max_model_len": 4096}]})}


async def request(port: int, method: str, path: str, body: object = None, **headers: str) -> Reply:
    async with RawClient(port) as client:
        await client.request(method, path, body, headers)
        return await client.finish()


class TestNames:
    @pytest.mark.parametrize(
        ("known", "asked", "served"),
        [
            ({"m": []}, "m", "m"),
            ({"m": []}, "m:latest", "m"),
            ({"m:latest": []}, "m", "m:latest"),
            ({"m": [], "m:latest": []}, "m:latest", "m:latest"),
            ({"m:7b": []}, "m:7b", "m:7b"),
            ({"m:7b": []}, "m:1b", None),
            ({"m:7b": []}, "m", None),
            ({"m": []}, "M", None),
        ],
    )
    async def test_a_name_without_a_tag_is_that_with_latest(
        self, known: dict[str, Any], asked: str, served: str | None
    ) -> None:
        async with (
            ScriptedEngine([OK]) as engine,
            gateway(engines={"a": engine_config(engine.url, models=list(known))}) as sluice,
        ):
            body = ASK | {"model": asked, "stream": False}
            reply = await post_json(sluice.port, CHAT, body)
            shown = await post_json(sluice.port, "/api/show", {"model": asked})
        assert (reply.status, shown.status) == ((404, 404) if served is None else (200, 200))
        assert [asked.json()["model"] for asked in engine.requests] == ([] if served is None else [served])


class TestModels:
    async def test_what_there_is(self) -> None:
        aliases = {"chat": [{"engine": "a", "model": "m"}], "lost": [{"engine": "b"}]}
        engines = {"b": {"kind": "openai", "url": "http://127.0.0.1:9", "models": ["away"]}}
        async with ScriptedEngine(probes=MODELS_OF_4096) as engine:
            engines["a"] = {"kind": "openai", "url": engine.url, "models": ["m"]}
            async with gateway(engines=engines, models=aliases) as sluice:
                tags = (await get(sluice.port, "/api/tags")).json()["models"]
                running = (await get(sluice.port, "/api/ps")).json()["models"]
        assert [model["name"] for model in tags] == ["away", "chat", "lost", "m"]
        assert [model["model"] for model in running] == ["chat", "m"]
        assert {model["context_length"] for model in running} == {4096}
        assert "context_length" not in tags[0]["details"]
        for ours, name in ((tags[0], "tags"), (running[0], "ps")):
            [real] = recording("ollama", name).reply.json()["models"]
            assert set(ours) == set(real)
            assert {key: type(value) for key, value in ours.items()} == {key: type(real[key]) for key in ours}

    async def test_one_of_them(self) -> None:
        async with ScriptedEngine(probes=MODELS_OF_4096) as engine, gateway(engine.url) as sluice:
            for body in ({"model": "m"}, {"name": "m:latest"}):
                shown = (await post_json(sluice.port, "/api/show", body)).json()
                architecture = shown["model_info"]["general.architecture"]
                assert shown["model_info"][f"{architecture}.context_length"] == 4096
                assert "completion" in shown["capabilities"]
            real = recording("ollama", "show").reply.json()
            assert set(shown) <= set(real)
            assert shown["details"].keys() >= real["details"].keys()

    @pytest.mark.parametrize("body", [{"model": "q"}, {}])
    async def test_one_that_is_not_there(self, body: dict[str, Any]) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            reply = await post_json(sluice.port, "/api/show", body)
            assert reply.status == recording("ollama", "show-missing").status == 404
            assert "does not exist" in error_of(reply)

    async def test_it_looks_like_an_ollama(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            for method, name in (("GET", "root"), ("HEAD", "root-head")):
                reply, real = await request(sluice.port, method, "/"), recording("ollama", name)
                assert (reply.status, reply.body) == (real.status, real.body)
                assert reply.headers.get("content-type") == real.headers.get("content-type")
            version = (await get(sluice.port, "/api/version")).json()["version"]
            assert all(part.isdigit() for part in version.split("."))


async def test_what_is_read_may_be_asked_for_by_head() -> None:
    async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
        for path in ("/", "/api/tags", "/api/ps", "/api/version"):
            reply = await request(sluice.port, "HEAD", path)
            assert (reply.status, reply.body) == (200, b"")


READ = [("GET", "/"), ("GET", "/api/tags"), ("GET", "/api/ps"), ("GET", "/api/version"), ("POST", "/api/show")]
CHANGE = [
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("POST", "/api/blobs/sha256:29fdb92e57cf0827ded04ae6461b5931d01fa595843f55d36f5b275a52087dd2"),
]


class TestWhoMayAsk:
    @pytest.mark.parametrize(("method", "path"), [*READ, *CHANGE, ("POST", CHAT), ("POST", EMBED)])
    async def test_nobody_without_a_key(self, method: str, path: str) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, server=KEYS) as sluice:
            for headers in ({}, {"Authorization": "Bearer sk-other"}):
                reply = await request(sluice.port, method, path, ASK | {"name": "m"}, **headers)
                assert reply.status == 401
                assert (error_of(reply) if path != "/" else reply.json()["error"]["message"]).startswith(
                    ("No API key was given", "The API key is not valid")
                )

    @pytest.mark.parametrize(("method", "path"), READ)
    async def test_everybody_with_one(self, method: str, path: str) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, server=KEYS) as sluice:
            assert (await request(sluice.port, method, path, {"model": "m"}, **AUTH)).status == 200

    @pytest.mark.parametrize(("method", "path"), CHANGE)
    async def test_nobody_changes_models(self, method: str, path: str) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, server=KEYS) as sluice:
            reply = await request(sluice.port, method, path, {"model": "m", "source": "m"}, **AUTH)
            assert reply.status == 403
            assert error_of(reply).startswith("Sluice changes no models")
            assert not engine.requests
            assert {probe.path for probe in engine.probes} <= {"/v1/models", "/health", "/props"}

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [("GET", "/api/nope", 404), ("GET", "/api/pull", 405), ("GET", "/api/show", 405), ("POST", "/api/tags", 405)],
    )
    async def test_what_is_not_there_is_told_in_ollamas_form(self, method: str, path: str, status: int) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            reply = await request(sluice.port, method, path)
            assert reply.status == status
            assert path in error_of(reply)
