"""`GET /v1/models`: the names that clients may ask for, and what is known of them."""

from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import pytest

from tests.support.answers import OK, error_of
from tests.support.client import Reply, get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, engine_config, gateway
from tests.support.sse import json_reply
from tests.support.waiting import becomes

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:9"


def listing(*models: dict[str, Any]) -> dict[str, bytes]:
    """The probe replies of an engine with these models."""
    return {"/v1/models": json_reply({"object": "list", "data": models})}


def asked(url: str, **fields: Any) -> dict[str, Any]:
    """An engine that is asked for its models."""
    return engine_config(url, models=[], **fields)


async def listed(port: int) -> dict[str, dict[str, Any]]:
    reply = await get(port, "/v1/models")
    assert (reply.status, reply.headers.get("content-type")) == (200, "application/json")
    body = reply.json()
    assert body["object"] == "list"
    return {model["id"]: model for model in body["data"]}


async def test_a_model_looks_as_openai_s_do() -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
        model = (await listed(sluice.port))["m"]
        assert (model["object"], model["owned_by"]) == ("model", "sluice")
        assert isinstance(model["created"], int)
        assert model["sluice"] == {"engines": ["a"], "ready": True}
        assert (await get(sluice.port, "/v1/models/m")).json() == model


@pytest.mark.parametrize(
    ("kind", "model", "context"),
    [
        ("vllm", {"id": "q", "max_model_len": 32_768, "root": "/models/q", "permission": [{}]}, 32_768),
        ("llamacpp", {"id": "q", "meta": {"n_ctx": 4096, "n_ctx_train": 8192, "vocab_type": 2}}, 4096),
        ("openai", {"id": "q"}, None),
        ("openai", {"id": "q", "meta": None, "max_model_len": None}, None),
    ],
)
async def test_what_an_engine_says_of_its_models(kind: str, model: dict[str, Any], context: int | None) -> None:
    async with (
        ScriptedEngine(probes=listing(model)) as engine,
        gateway(engines={"a": asked(engine.url, kind=kind)}) as sluice,
    ):
        assert (await listed(sluice.port))["q"].get("max_model_len") == context


async def test_names_of_the_config_stand_beside_those_of_engines_in_order() -> None:
    async with (
        ScriptedEngine(probes=listing({"id": "z", "max_model_len": 10}, {"id": "b"})) as one,
        ScriptedEngine(probes=listing({"id": "z", "max_model_len": 20})) as two,
        gateway(
            engines={"one": asked(one.url), "two": asked(two.url)},
            models={"alias": [{"engine": "two"}, {"engine": "one", "model": "b"}]},
        ) as sluice,
    ):
        models = await listed(sluice.port)
        assert list(models) == ["alias", "b", "z"]
        assert models["alias"]["sluice"]["engines"] == ["two", "one"]
        assert models["z"]["sluice"]["engines"] == ["one", "two"]
        assert models["z"]["max_model_len"] == 20, "the largest that a request may get"


async def test_models_of_engines_that_are_down_stay_listed() -> None:
    async with gateway(NOWHERE, models={"alias": [{"engine": "a"}]}) as sluice:
        models = await listed(sluice.port)
        assert {name: model["sluice"]["ready"] for name, model in models.items()} == {"alias": False, "m": False}

    engine = ScriptedEngine(probes=listing({"id": "q"}))
    async with AsyncExitStack() as stack:
        async with engine:
            engines = {"a": asked(engine.url, probe={"interval": 0.1})}
            sluice = await stack.enter_async_context(gateway(engines=engines))
            assert (await listed(sluice.port))["q"]["sluice"]["ready"]

        async def down() -> bool:
            return not (await listed(sluice.port))["q"]["sluice"]["ready"]

        await becomes(down)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("org/model:tag", "org/model:tag"),
        ("org/model:tag", "org%2Fmodel%3Atag"),
        ("é漢", "%C3%A9%E6%BC%A2"),
        ("with blank", "with%20blank"),
        ("a?b#c", "a%3Fb%23c"),
    ],
)
async def test_one_model_by_its_name(name: str, path: str) -> None:
    async with ScriptedEngine(model=name) as engine, gateway(engines={"a": asked(engine.url)}) as sluice:
        assert (await get(sluice.port, f"/v1/models/{path}")).json()["id"] == name


@pytest.mark.parametrize(
    ("asked_for", "suggested"),
    [
        ("qwen3-32", "`qwen3-32b`"),
        ("Qwen3-32B", "`qwen3-32b`"),
        ("smollm", "`smollm2-360m`"),
        ("xyzzy", "GET /v1/models"),
    ],
)
async def test_a_model_that_does_not_exist_with_those_that_are_near(asked_for: str, suggested: str) -> None:
    names = ["qwen3-32b", "smollm2-360m", "mistral"]
    async with ScriptedEngine() as engine, gateway(engines={"a": engine_config(engine.url, models=names)}) as sluice:
        for reply in (
            await get(sluice.port, f"/v1/models/{asked_for}"),
            await post_json(sluice.port, CHAT, {**REQ, "model": asked_for}),
        ):
            error = error_of(reply)
            assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert f"`{asked_for}`" in error["message"]
            assert suggested in error["message"]


async def test_a_model_is_not_missing_while_an_engine_has_not_told_its_models() -> None:
    async with (
        ScriptedEngine() as one,
        gateway(
            engines={"one": engine_config(one.url), "two": asked(NOWHERE)}, models={"alias": [{"engine": "two"}]}
        ) as sluice,
    ):
        for model in ("q", "alias"):
            reply = await post_json(sluice.port, CHAT, {**REQ, "model": model})
            assert (reply.status, error_of(reply)["code"]) == (503, "no_engine_available")
            assert int(reply.headers.get("retry-after") or 0) >= 1
        assert (await get(sluice.port, "/v1/models/q")).status == 503


async def test_an_engine_that_comes_back_with_other_models() -> None:
    async with (
        ScriptedEngine([OK], model="old") as engine,
        gateway(engines={"a": asked(engine.url, probe={"interval": 0.1})}) as sluice,
    ):
        assert list(await listed(sluice.port)) == ["old"]
        engine.probe_replies |= listing({"id": "new"})

        async def told() -> bool:
            return list(await listed(sluice.port)) == ["new"]

        await becomes(told)
        assert (await post_json(sluice.port, CHAT, {**REQ, "model": "new"})).status == 200
        assert (await post_json(sluice.port, CHAT, {**REQ, "model": "old"})).status == 404


async def test_an_endless_name_is_not_repeated() -> None:
    async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
        reply = await post_json(sluice.port, CHAT, REQ | {"model": "m" * 1_000_000})
        assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")
        assert len(reply.body) < 1000
        assert len(str(await sluice.record())) < 2000


class TestAnthropicsClients:
    """They are known by the header `anthropic-version`."""

    NAMES = ("a", "b", "c", "d")

    async def ask(self, path: str) -> Reply:
        models = {"models": list(self.NAMES)}
        async with ScriptedEngine() as engine, gateway(engines={"one": engine_config(engine.url) | models}) as sluice:
            return await get(sluice.port, path, {"anthropic-version": "2023-06-01"})

    async def test_get_the_list_in_their_form(self) -> None:
        body = (await self.ask("/v1/models")).json()
        assert (body["has_more"], body["first_id"], body["last_id"]) == (False, "a", "d")
        assert [(model["type"], model["id"], model["display_name"]) for model in body["data"]] == [
            ("model", name, name) for name in self.NAMES
        ]
        assert datetime.fromisoformat(body["data"][0]["created_at"]).tzinfo is not None
        assert "max_input_tokens" not in body["data"][0]  # nobody told

    @pytest.mark.parametrize(
        ("query", "names", "more"),
        [
            ("limit=2", "ab", True),
            ("limit=4", "abcd", False),
            ("limit=2&after_id=b", "cd", False),
            ("limit=1&after_id=b", "c", True),
            ("limit=2&before_id=d", "bc", True),
            ("before_id=a", "", False),
            ("after_id=d", "", False),
            ("after_id=unknown", "abcd", False),
        ],
    )
    async def test_get_it_page_by_page(self, query: str, names: str, more: bool) -> None:
        body = (await self.ask(f"/v1/models?{query}")).json()
        assert ("".join(model["id"] for model in body["data"]), body["has_more"]) == (names, more)

    async def test_get_one_model_and_errors_in_their_form(self) -> None:
        assert (await self.ask("/v1/models/b")).json()["type"] == "model"
        unknown = await self.ask("/v1/models/x")
        assert (unknown.status, unknown.json()["error"]["type"]) == (404, "not_found_error")
        wrong = await self.ask("/v1/models?limit=0")
        assert (wrong.status, wrong.json()["type"]) == (400, "error")
