"""The JSON Schema for editors agrees with the loader on the form of each value."""

import inspect

import jsonschema
import pytest
import yaml

from gateway.config.jsonschema import json_schema
from tests.unit.config.cases import KINDS, ONE_ENGINE, URL, failure

SCHEMA = json_schema(KINDS)


def engine(rest: str) -> str:
    return f"engines:\n  fast:\n    kind: vllm\n    url: {URL}\n    {rest}\n"


def server(rest: str) -> str:
    return f"{ONE_ENGINE}server:\n  {rest}\n"


def model(target: str) -> str:
    return f"{ONE_ENGINE}models:\n  small: {target}\n"


GOOD = [
    ONE_ENGINE,
    engine("models: [a, '7']"),
    engine("concurrency: 4"),
    engine("concurrency: ${PORT}"),
    engine("concurrency:"),
    engine("api_key:"),
    engine("transport: httpx"),
    engine("transport: ${NONE:-httpx}"),
    engine("headers: {X-Name: a}"),
    engine("timeouts: {idle: 2.5, total: 7}"),
    engine("timeouts: {idle: '${PORT}'}"),
    "engines: {fast: {kind: llamacpp, managed: {model: a.gguf, threads: 3}}}",
    "engines: {fast: {kind: '${NONE:-llamacpp}', managed: {model: '${TOKEN}'}}}",
    model("fast"),
    model("[fast]"),
    model("{engine: fast}"),
    model("[{engine: fast, model: a}, fast]"),
    server("port: 80"),
    server("port: ${PORT:-80}"),
    server("allow_unauthenticated: true"),
    server("allow_unauthenticated: ${YES}"),
    server("keys: [{name: a, key: abcdefgh}, {name: b, key: '${TOKEN}'}]"),
]

BAD = [
    "",
    "[]",
    "engines: {}",
    "engines: {'': {kind: vllm, url: 'http://a'}}",
    "engines: {fast: {url: 'http://a'}}",
    "engines: {fast: {kind: vllmm, url: 'http://a'}}",
    "server: {}",
    f"{ONE_ENGINE}modles: {{}}",
    f"{ONE_ENGINE}server:",
    engine("modles: [a]"),
    engine("models: a"),
    engine("models: [7]"),
    engine("models: [yes]"),
    engine("concurrency: 0"),
    engine("concurrency: 1.5"),
    engine("concurrency: '4'"),
    engine("concurrency: a ${PORT}"),
    engine("transport: other"),
    engine("headers: {X-Name: 7}"),
    engine("timeouts: {idle: 0}"),
    engine("timeouts: {idle: 86401}"),
    engine("timeouts: {idle: true}"),
    engine("timeouts: {idle: 10 minutes}"),
    engine("probe: 5"),
    "engines: {fast: {kind: llamacpp, managed: {model: a.gguf, context: 127}}}",
    "engines: {fast: {kind: llamacpp, managed: {}}}",
    model("[]"),
    model(""),
    model("7"),
    model("[{model: a}]"),
    model("{engine: fast, mode: a}"),
    server("port: '80'"),
    server("port: 65536"),
    server("port: true"),
    server("port: ${1}"),
    server("allow_unauthenticated: 'true'"),
    server("keys: [{name: a, key: abcdefg}]"),
    server("keys: {name: a, key: abcdefgh}"),
]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "sluice.yaml"


@pytest.mark.parametrize("text", GOOD)
def test_both_accept(text: str) -> None:
    assert failure(text) == ""
    jsonschema.validate(yaml.safe_load(text), SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("text", BAD)
def test_both_refuse(text: str) -> None:
    assert failure(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA, jsonschema.Draft202012Validator)


def test_keys_are_described_in_the_words_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle() -> dict[str, object]:
        return json_schema(KINDS)["$defs"]["Timeouts"]["properties"]["idle"]

    assert "Between two pieces of output" in str(idle()["description"])

    def missing(module: object) -> str:
        raise OSError

    monkeypatch.setattr(inspect, "getsource", missing)
    assert "description" not in idle()
    assert idle()["default"] == 120.0
