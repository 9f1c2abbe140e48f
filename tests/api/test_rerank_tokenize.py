"""What passes as it is, to engines that have it: reranking and tokens."""

from typing import Any

import pytest

from tests.support.answers import error_of
from tests.support.client import get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import gateway
from tests.support.sse import json_reply
from tests.support.wire import recording

pytestmark = pytest.mark.anyio

RERANK: dict[str, Any] = {"model": "m", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}
RANKED = {"model": "M", "results": [{"index": 1, "relevance_score": 0.5, "document": {"text": "c"}}]}
HAVE_BOTH = pytest.mark.parametrize("kind", ["llamacpp", "vllm"])
HAVE_NEITHER = pytest.mark.parametrize("kind", ["openai", "ollama", "tgi"])
PROBES = {
    "/health": json_reply({}),
    "/info": json_reply({"model_id": "m"}),
    "/api/tags": json_reply({"models": [{"name": "m"}]}),
}


class TestRerank:
    @HAVE_BOTH
    @pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
    async def test_it_passes(self, kind: str, path: str) -> None:
        async with ScriptedEngine([json_reply(RANKED)]) as engine, gateway(engine.url, kind=kind) as sluice:
            told = await post_json(sluice.port, path, RERANK)
            [request] = engine.requests
        assert (request.path, request.json()) == ("/v1/rerank", RERANK)
        assert (told.status, told.json()) == (200, RANKED)

    async def test_under_the_engines_own_name_of_the_model(self) -> None:
        async with ScriptedEngine([json_reply(RANKED)]) as engine:
            models = {"ranker": [{"engine": "a", "model": "m"}]}
            async with gateway(engine.url, kind="vllm", models=models) as sluice:
                await post_json(sluice.port, "/v1/rerank", RERANK | {"model": "ranker"})
            assert engine.requests[0].json() == RERANK

    async def test_a_model_that_ranks_nothing(self) -> None:
        recorded = recording("llamacpp", "rerank")
        async with ScriptedEngine(recorded.script()) as engine, gateway(engine.url, kind="llamacpp") as sluice:
            told = await post_json(sluice.port, "/v1/rerank", RERANK)
        assert told.status == recorded.status == 501
        assert "does not support reranking" in told.json()["error"]["message"]

    @pytest.mark.parametrize(
        ("fields", "param"), [({"query": None}, "query"), ({"documents": "b"}, "documents"), ({"model": ""}, "model")]
    )
    async def test_what_is_no_request(self, fields: dict[str, Any], param: str) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, kind="vllm") as sluice:
            told = await post_json(sluice.port, "/v1/rerank", RERANK | fields)
            assert not engine.requests
        assert (told.status, error_of(told)["param"]) == (400, param)


class TestTokenize:
    """llama.cpp takes `content`, vLLM `prompt` or `messages`; neither is looked into."""

    @HAVE_BOTH
    async def test_it_passes(self, kind: str) -> None:
        recorded = recording(kind, "tokenize")
        body = {"model": "m", "prompt": "Hello world", "content": "Hello world"}
        async with ScriptedEngine(recorded.script()) as engine, gateway(engine.url, kind=kind) as sluice:
            told = await post_json(sluice.port, "/tokenize", body)
            [request] = engine.requests
        assert (request.path, request.json()) == ("/tokenize", body)
        assert told.body == recorded.body
        assert told.json()["tokens"] == [19556, 905]

    async def test_a_model_must_be_named(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url, kind="llamacpp") as sluice:
            told = await post_json(sluice.port, "/tokenize", {"content": "a"})
        assert (told.status, error_of(told)["param"]) == (400, "model")


class TestBoth:
    @HAVE_NEITHER
    @pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/tokenize"])
    async def test_an_engine_that_has_no_such_endpoint(self, kind: str, path: str) -> None:
        async with ScriptedEngine(probes=PROBES) as engine, gateway(engine.url, kind=kind) as sluice:
            told = await post_json(sluice.port, path, RERANK)
            assert not engine.requests
        assert (told.status, error_of(told)["code"]) == (501, "unsupported_endpoint")

    @pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/tokenize", "/v1/embeddings", "/v1/responses"])
    async def test_other_methods(self, path: str) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            told = await get(sluice.port, path)
        assert (told.status, told.headers.get("allow"), error_of(told)["code"]) == (405, "POST", "method_not_allowed")
