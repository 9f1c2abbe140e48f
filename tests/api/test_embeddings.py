"""Embeddings come in the form that was asked for, whichever the engine has."""

import base64
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from gateway.errors import EngineFailed
from gateway.translate.embeddings import EmbeddingsWriter, Form
from tests.support.answers import error_of
from tests.support.client import Reply, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import gateway
from tests.support.sse import json_reply, reply
from tests.support.wire import recording

pytestmark = pytest.mark.anyio

EMBEDDINGS = "/v1/embeddings"
ASK = {"model": "m", "input": ["a", "b"]}
FLOATS = [[0.5, -2.0], [0.0, 0.25]]


def packed(numbers: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def listed(*vectors: Any, **fields: Any) -> dict[str, Any]:
    """A list of embeddings, counted from the last, as no client should rely on their order."""
    items = [
        {"object": "embedding", "index": len(vectors) - 1 - at, "embedding": one} for at, one in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    return {"object": "list", "data": items, "model": "M", "usage": usage, **fields}


NUMBERS = listed(*FLOATS)
TEXTS = listed(*map(packed, FLOATS))


async def ask(answer: bytes, **fields: Any) -> tuple[Reply, dict[str, Any]]:
    """The reply, and what the engine was asked."""
    async with ScriptedEngine([answer]) as engine, gateway(engine.url) as sluice:
        told = await post_json(sluice.port, EMBEDDINGS, ASK | fields)
        return told, engine.requests[0].json()


class TestForm:
    @pytest.mark.parametrize("theirs", [NUMBERS, TEXTS], ids=["floats", "base64"])
    @pytest.mark.parametrize(
        ("asked", "ours"),
        [
            ({}, NUMBERS),
            ({"encoding_format": None}, NUMBERS),
            ({"encoding_format": "float"}, NUMBERS),
            ({"encoding_format": "base64"}, TEXTS),
        ],
        ids=["not said", "null", "float", "base64"],
    )
    async def test_as_asked(self, theirs: dict[str, Any], asked: dict[str, Any], ours: dict[str, Any]) -> None:
        told, got = await ask(json_reply(theirs), **asked)
        assert (told.status, told.headers.all("content-type")) == (200, ["application/json"])
        assert told.json() == ours
        assert got == ASK | asked

    async def test_an_answer_in_the_right_form_passes_byte_by_byte(self) -> None:
        body = json.dumps(NUMBERS | {"extra": {"é": [1.50]}}, indent=1).encode()
        told, _ = await ask(reply(body, "Content-Type: application/json"))
        assert told.body == body

    async def test_what_is_unknown_stays_and_no_usage_is_made_up(self) -> None:
        theirs = listed(*FLOATS, extra={"a": None})
        del theirs["usage"]
        theirs["data"][0]["more"] = 1
        told, _ = await ask(json_reply(theirs), encoding_format="base64")
        assert told.json() == theirs | {
            "data": [theirs["data"][0] | {"embedding": packed(FLOATS[0])}, TEXTS["data"][1]]
        }

    async def test_a_form_that_only_the_engine_knows_is_its_own_to_judge(self) -> None:
        theirs = {"data": [{"embedding": {"int8": [1, 2]}}]}
        told, got = await ask(json_reply(theirs), encoding_format="int8")
        assert (told.json(), got["encoding_format"]) == (theirs, "int8")

    async def test_through_ollamas_own_api(self) -> None:
        tags = {"/api/tags": json_reply({"models": [{"name": "m"}]})}
        theirs = json_reply({"model": "m", "embeddings": FLOATS})
        async with ScriptedEngine([theirs], probes=tags) as engine, gateway(engine.url, kind="ollama") as sluice:
            told = await post_json(sluice.port, EMBEDDINGS, ASK | {"encoding_format": "base64"})
        assert [item["embedding"] for item in told.json()["data"]] == [item["embedding"] for item in TEXTS["data"]]


class TestFailures:
    @pytest.mark.parametrize(
        "embedding",
        [
            b"[NaN]",
            b"[0.1,Infinity]",
            b"[1e999]",
            b"[null]",
            b'["a"]',
            b"null",
            b'"AAAA"',
            b'"?"',
            b'"AADAfw=="',
            b"{}",
        ],
    )
    @pytest.mark.parametrize("form", ["float", "base64"])
    async def test_what_is_no_vector_of_numbers(self, embedding: bytes, form: str) -> None:
        body = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":%b}]}' % embedding
        told, _ = await ask(reply(body, "Content-Type: application/json"), encoding_format=form)
        assert (told.status, error_of(told)["code"]) == (502, "engine_failed")

    @pytest.mark.parametrize("theirs", [{}, {"data": None}, {"data": [{"index": 0}]}, {"data": [1]}])
    async def test_what_is_no_list_of_them(self, theirs: dict[str, Any]) -> None:
        told, _ = await ask(json_reply(theirs))
        assert (told.status, error_of(told)["code"]) == (502, "engine_failed")

    async def test_a_number_too_large_for_a_float32(self) -> None:
        told, _ = await ask(json_reply(listed([1e300])), encoding_format="base64")
        assert told.status == 502

    @pytest.mark.parametrize("asked", [[], "", [[]], [1, 2], [[1], [2]]])
    async def test_any_input_is_the_engines_to_judge(self, asked: Any) -> None:
        refusal = {"error": {"message": "`input` is empty.", "type": "t", "param": "input", "code": "c"}}
        told, got = await ask(json_reply(refusal, 400), input=asked)
        assert (told.status, told.json(), got["input"]) == (400, refusal, asked)

    async def test_an_input_that_is_missing(self) -> None:
        async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
            told = await post_json(sluice.port, EMBEDDINGS, {"model": "m"})
            assert not engine.requests
        assert (told.status, error_of(told)["param"]) == (400, "input")

    async def test_a_model_that_embeds_nothing(self) -> None:
        recorded = recording("llamacpp", "embeddings")
        async with ScriptedEngine(recorded.script()) as engine, gateway(engine.url) as sluice:
            told = await post_json(sluice.port, EMBEDDINGS, ASK)
        assert told.status == recorded.status == 501
        assert "does not support embeddings" in told.json()["error"]["message"]


class TestLibrary:
    """The `openai` library, which asks for base64 unless it is told otherwise."""

    @pytest.mark.parametrize("theirs", [NUMBERS, TEXTS], ids=["floats", "base64"])
    @pytest.mark.parametrize("asked", [{}, {"encoding_format": "float"}], ids=["not said", "float"])
    async def test_vectors(self, theirs: dict[str, Any], asked: dict[str, Any]) -> None:
        async with (
            ScriptedEngine([json_reply(theirs)]) as engine,
            gateway(engine.url) as sluice,
            DefaultAsyncHttpxClient(trust_env=False) as http,
            AsyncOpenAI(base_url=f"{sluice.url}/v1", api_key="any", max_retries=0, http_client=http) as client,
        ):
            told = await client.embeddings.create(model="m", input=["a", "b"], **asked)
            assert engine.requests[0].json()["encoding_format"] == asked.get("encoding_format", "base64")
        assert [(item.index, item.embedding) for item in told.data] == [(1, FLOATS[0]), (0, FLOATS[1])]
        assert told.usage.prompt_tokens == 2


VECTORS = st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=4), max_size=3)


def convert(form: Form, *vectors: Any) -> list[Any]:
    body = json.dumps(listed(*vectors)).encode()
    return [item["embedding"] for item in json.loads(EmbeddingsWriter(form).whole(body))["data"]]


@given(VECTORS)
def test_no_number_changes_on_the_way(vectors: list[list[float]]) -> None:
    texts = convert("base64", *vectors)
    assert texts == [packed(vector) for vector in vectors]
    assert convert("float", *texts) == convert("float", *vectors) == vectors


@given(st.lists(st.floats(width=32), min_size=1, max_size=4))
def test_only_finite_numbers_pass(vector: list[float]) -> None:
    try:
        assert convert("float", packed(vector)) == [vector]
        passed = True
    except EngineFailed:
        passed = False
    assert passed == all(map(math.isfinite, vector))
