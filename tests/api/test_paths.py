"""Which paths and methods there are. Whatever else is asked for is answered here, in JSON, and never by an engine."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, encode_request, get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, COMPLETIONS, REQ, gateway

pytestmark = pytest.mark.anyio

KEY = "sk-of-a-client"
AUTH = {"Authorization": f"Bearer {KEY}"}
KEYS = {"keys": [{"name": "laptop", "key": KEY}]}
PROBES = {"/health", "/v1/models", "/props"}

ELSEWHERE = [
    "/v1",
    "/v1/",
    "/chat/completions",
    "/V1/models",
    "/v1/Models",
    "/v1/models;x",
    "/v1/chat/completions;x",
    "/v1/chat/completions/x",
    "/v1/../api/delete",
    "/v1/%2e%2e/api/pull",
    "/v1/..%2fapi/create",
    "/v1/chat/completions/../../metrics",
    "/v1/chat/../chat/completions",
    "/v1/./models",
    "/v1\\..\\x",
    "/v1/models%00",
    "/v1/models%20",
    "/%",
    "/v1/%zz",
    "/v1/load_lora_adapter",
    "/admin",
    "/docs",
    "/schema",
    "/metrics",
    "/slots",
    "/props",
    "/reset_prefix_cache",
    "/health",
    "/health/",
    "/health/other",
    "/favicon.ico",
]


@dataclass
class Served:
    """A gateway that asks for a key, and its engine."""

    engine: ScriptedEngine
    port: int

    def reached(self) -> list[str]:
        """The paths of requests that came to the engine since this was asked last, probes left out."""
        others = [probe for probe in self.engine.probes if probe.path not in PROBES]
        requests, self.engine.requests = self.engine.requests, []
        return [request.path for request in (*requests, *others)]


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEYS) as sluice:
        yield Served(engine, sluice.port)


@pytest.mark.parametrize("path", ELSEWHERE)
async def test_paths_that_are_not_there(served: Served, path: str) -> None:
    for method, body in (("GET", None), ("POST", REQ), ("DELETE", None)):
        async with RawClient(served.port) as client:
            await client.request(method, path, body, {**AUTH, "X-HTTP-Method-Override": "POST"})
            reply = await client.finish()
        assert (reply.status, error_of(reply)["code"]) == (404, "not_found"), method
    assert not served.reached()


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/models"])
async def test_a_base_url_without_v1_is_told_of(served: Served, path: str) -> None:
    reply = await post_json(served.port, path, REQ, AUTH)
    assert reply.status == 404
    assert f"/v1{path}" in error_of(reply)["message"]


@pytest.mark.parametrize(
    "path", ["/v1/models/", "//v1/models", "/v1//models", "/v1/mod%65ls", "http://sluice.test/v1/models"]
)
async def test_another_spelling_of_a_path_needs_a_key_too(served: Served, path: str) -> None:
    assert (await get(served.port, path)).status in (401, 404)
    assert (await get(served.port, path, AUTH)).status in (200, 404)
    assert not served.reached()


@pytest.mark.parametrize(
    "path",
    [
        f"{CHAT}/",
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/v1/chat%2fcompletions",
        f"http://sluice.test{CHAT}",
    ],
)
async def test_another_spelling_of_the_chat_path_is_served_or_a_404(served: Served, path: str) -> None:
    assert (await post_json(served.port, path, REQ)).status in (401, 404)
    assert not served.reached()
    assert (await post_json(served.port, path, REQ, AUTH)).status in (200, 404)
    assert set(served.reached()) <= {CHAT}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_another_method_on_an_inference_path(served: Served, method: str, path: str) -> None:
    reply = await ask(served.port, method, path)
    assert (reply.status, reply.headers.all("allow")) == (405, ["POST"])
    if method != "HEAD":
        assert error_of(reply)["code"] == "method_not_allowed"
    assert not served.reached()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/health/live", "/health/ready"])
async def test_another_method_on_a_path_that_is_read(served: Served, method: str, path: str) -> None:
    reply = await ask(served.port, method, path, {})
    assert (reply.status, error_of(reply)["code"]) == (405, "method_not_allowed")
    assert "GET" in (reply.headers.get("allow") or "")
    assert not served.reached()


@pytest.mark.parametrize("method", ["FOO", "get", "", "P OST", "\x16\x03\x01"])
async def test_a_method_that_does_not_exist(served: Served, method: str) -> None:
    reply = await ask(served.port, method, CHAT)
    assert (reply.status, error_of(reply)["code"]) == (400, "invalid_http")
    assert not served.reached()


@pytest.mark.parametrize("target", ["", "v1/models", "/v1/models/é", "/v1 /models", "*", "?", "#", "http://", "://x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_targets_that_are_no_path(served: Served, method: str, target: str) -> None:
    reply = await ask(served.port, method, target)
    assert reply.status in (400, 404, 405)
    error_of(reply)
    assert not served.reached()


async def test_the_gateway_is_no_proxy() -> None:
    """A target with another host in it is read as a path here, and `CONNECT` is not taken."""
    async with ScriptedEngine([OK]) as engine, ScriptedEngine([OK]) as trap, gateway(engine.url) as sluice:
        there = f"127.0.0.1:{trap.port}"
        for method, target in [("GET", f"http://{there}/x"), ("CONNECT", there), ("CONNECT", CHAT)]:
            assert (await ask(sluice.port, method, target)).status in (400, 404, 405), target
        headers = {
            "Host": there,
            "X-Forwarded-Host": there,
            "X-Original-URL": f"http://{there}/",
            "Forwarded": f"host={there}",
        }
        assert (await post_json(sluice.port, CHAT, REQ, headers)).status == 200
        await post_json(sluice.port, f"http://{there}{CHAT}", REQ, headers)
        assert not trap.connections
        assert {request.path for request in engine.requests} == {CHAT}
        assert {request.headers.get("host") for request in engine.requests} == {f"127.0.0.1:{engine.port}"}


async def test_one_connection_survives_every_path(served: Served) -> None:
    async with RawClient(served.port) as client:
        for path in ELSEWHERE:
            await client.request("GET", path)
            assert (await client.finish()).status == 404
        await client.request("POST", CHAT, REQ, AUTH)
        assert (await client.finish()).status == 200
    assert served.reached() == [CHAT]


async def ask(port: int, method: str, target: str, body: object = None) -> Reply:
    async with RawClient(port) as client:
        client.reply = Reply(method if method == "HEAD" else "GET")
        await client.send(encode_request(method, target, body, {}))
        return await client.finish()
