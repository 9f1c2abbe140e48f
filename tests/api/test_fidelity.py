"""What an engine gets of a client's request: the body as it came, and nothing else of the client."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import ANSWER, OK, error_of
from tests.support.client import get, post_json
from tests.support.command import serving
from tests.support.engine import Request, ScriptedEngine
from tests.support.gateway import CHAT, COMPLETIONS, REQ, engine_config, gateway
from tests.support.sse import DONE, FIN, ROLE, SSE_HEAD, T, chunked, json_reply
from tests.support.transports import TRANSPORTS

pytestmark = pytest.mark.anyio

CLIENT_KEY = "sk-of-the-client"
ENGINE_KEY = "sk-of-the-engine"
KEYS = {"keys": [{"name": "laptop", "key": CLIENT_KEY}]}
MESSAGES = '"messages":[{"role":"user","content":"hi"}]'

SENT_ALWAYS = {"host", "content-type", "accept-encoding", "user-agent", "content-length"}


async def passed_on(body: bytes, path: str = CHAT, **config: Any) -> Request:
    """What the engine gets for a body."""
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, **config) as sluice:
        reply = await post_json(sluice.port, path, body)
        assert reply.status == 200, reply.body
        (request,) = engine.requests
        return request


BODIES = {
    "unknown and null members": rf'{{"model":"m",{MESSAGES},"top_k":7,"x_new_2031":{{"a":[1,null,"é"]}},"stop":null}}',
    "fields of engines": rf'{{"model":"m",{MESSAGES},"chat_template_kwargs":{{"enable_thinking":false}},"min_p":0.05}}',
    "fields of OpenAI": rf'{{"model":"m",{MESSAGES},"metadata":{{"k":"v"}},"store":true,"parallel_tool_calls":false}}',
    "an order of its own": rf'{{"z":1,{MESSAGES},"a":2,"model":"m","b":3}}',
    "escapes as they are": r'{"model":"m","messages":[{"content":"\u00e9\/\ud83e\udd8a\u0000\b é"}],"\u0061":1}',
    "an escaped model": rf'{{"\u006dodel":"\u006d",{MESSAGES}}}',
    "numbers as they are": rf'{{"model":"m",{MESSAGES},"seed":12345678901234567890123,"temperature":1.10e-0,"x":-0}}',
    "blanks as they are": f' {{\r\n\t"model" : "m" ,\n{MESSAGES}\n}}\n\n',
    "content: null beside tool calls": '{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[]}]}',
    "an image": f'{{"model":"m","messages":[{{"content":[{{"image_url":"data:image/png;base64,{"A" * 100_000}"}}]}}]}}',
}


class TestBodies:
    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
    async def test_pass_byte_for_byte(self, body: str) -> None:
        assert (await passed_on(body.encode())).body == body.encode()

    async def test_of_completions_too(self) -> None:
        body = b'{"prompt": [[1,2],[3]], "model": "m", "suffix": "\\u00e9", "best_of": 2}'
        request = await passed_on(body, COMPLETIONS)
        assert (request.path, request.body) == (COMPLETIONS, body)

    async def test_with_another_name_for_the_model_only_that_changes(self) -> None:
        before = r'{"a": [1.10e2,  null,"\u00e9"],"model":"'
        after = r'","metadata":{"model":"fast"},"tools":[{"model" : "fast"}],"seed":12345678901234567890123,'
        after += r'"messages":[{"role":"user","content":"fast \ud83e\udd8a","model":"fast"}],"stream":null}'
        models = {"fast": [{"engine": "a", "model": 'org/real "7b" é'}]}
        request = await passed_on(f"{before}fast{after}".encode(), models=models)
        assert request.json() == json.loads(f"{before}X{after}") | {"model": 'org/real "7b" é'}
        for kept in (
            r'[1.10e2,  null,"\u00e9"]',
            '{"model" : "fast"}',
            "12345678901234567890123",
            r"fast \ud83e\udd8a",
        ):
            assert kept.encode() in request.body
        assert list(request.json()) == ["a", "model", "metadata", "tools", "seed", "messages", "stream"]
        assert request.headers.get("content-length") == str(len(request.body))

    @pytest.mark.parametrize("models", [["served"], []], ids=["configured", "told by the engine"])
    async def test_an_engine_s_only_model_gets_its_own_name(self, models: list[str]) -> None:
        async with ScriptedEngine([OK], model="served") as engine:
            engines = {"a": engine_config(engine.url, models=models)}
            async with gateway(engines=engines, models={"m": [{"engine": "a"}]}) as sluice:
                assert (await post_json(sluice.port, CHAT, REQ)).status == 200
            assert engine.requests[0].json() == {**REQ, "model": "served"}


PLACES = {
    "Authorization": ({"Authorization": f"Bearer {CLIENT_KEY}"}, CHAT),
    "Authorization, oddly written": ({"AUTHORIZATION": f"bEARER  {CLIENT_KEY} "}, CHAT),
    "x-api-key": ({"X-Api-Key": CLIENT_KEY}, CHAT),
    "both": ({"Authorization": f"Bearer {CLIENT_KEY}", "X-Api-Key": CLIENT_KEY}, CHAT),
    "places that are not read": (
        {
            "Authorization": f"Bearer {CLIENT_KEY}",
            "Api-Key": CLIENT_KEY,
            "X-Goog-Api-Key": CLIENT_KEY,
            "Proxy-Authorization": f"Basic {CLIENT_KEY}",
            "Cookie": f"t={CLIENT_KEY}",
            "Referer": f"http://x/?key={CLIENT_KEY}",
        },
        f"{CHAT}?api_key={CLIENT_KEY}&key={CLIENT_KEY}",
    ),
}


class TestCredentials:
    @pytest.mark.parametrize("engine_key", [None, ENGINE_KEY])
    @pytest.mark.parametrize(("headers", "path"), PLACES.values(), ids=PLACES)
    async def test_the_client_s_stay_here(self, headers: dict[str, str], path: str, engine_key: str | None) -> None:
        async with (
            ScriptedEngine([OK]) as engine,
            gateway(engine.url, server=KEYS, kind="llamacpp", api_key=engine_key) as sluice,
        ):
            assert (await post_json(sluice.port, path, REQ, headers)).status == 200
            expected = [f"Bearer {engine_key}"] if engine_key else []
            for request in (*engine.requests, *engine.probes):
                assert CLIENT_KEY.encode() not in request.head + request.body
                assert request.headers.all("authorization") == expected
            assert engine.probes

    @pytest.mark.parametrize("transport", TRANSPORTS)
    async def test_no_header_of_the_client_goes_on(self, transport: str) -> None:
        headers = {
            "X-Team": "blue",
            "X-Stainless-Os": "Linux",
            "Accept": "text/html",
            "Accept-Encoding": "gzip, br, zstd",
            "Accept-Language": "tlh",
            "Content-Type": "application/json; charset=utf-8",
            "Cookie": "a=b",
            "Connection": "keep-alive, X-Team",
            "Keep-Alive": "timeout=5",
            "TE": "trailers",
            "Upgrade-Insecure-Requests": "1",
            "User-Agent": "curl",
            "Host": "evil.test",
            "Forwarded": "for=1.2.3.4",
            "X-Forwarded-For": "1.2.3.4",
            "X-Forwarded-Host": "evil.test",
            "X-Request-Id": "one-of-mine",
            "traceparent": "00-1-1-00",
        }
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, transport=transport) as sluice:
            assert (await post_json(sluice.port, CHAT, REQ, headers)).status == 200
            (request,) = engine.requests
            assert {name for name, _ in request.headers} == SENT_ALWAYS
            assert request.headers.get("host") == f"127.0.0.1:{engine.port}"
            assert request.headers.get("accept-encoding") == "identity"
            assert request.headers.get("content-type") == "application/json"
            assert "curl" not in (request.headers.get("user-agent") or "")

    @pytest.mark.parametrize("transport", TRANSPORTS)
    async def test_the_config_s_headers_are_sent_each_once(self, transport: str) -> None:
        config: dict[str, Any] = {
            "api_key": ENGINE_KEY,
            "headers": {"X-Team": "blue, green", "X-Empty": ""},
            "transport": transport,
        }
        async with ScriptedEngine([OK]) as engine, gateway(engine.url, **config) as sluice:
            assert (await post_json(sluice.port, CHAT, REQ, {"X-Team": "red"})).status == 200
            (request,) = engine.requests
            assert request.headers.all("authorization") == [f"Bearer {ENGINE_KEY}"]
            assert request.headers.all("x-team") == ["blue, green"]
            assert request.headers.all("x-empty") == [""]
            assert {name for name, _ in request.headers} == SENT_ALWAYS | {"authorization", "x-team", "x-empty"}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("base", "prefix"),
    [
        ("", ""),
        ("/", ""),
        ("/v1", ""),
        ("/v1/", ""),
        ("/sub", "/sub"),
        ("/sub/", "/sub"),
        ("/sub/v1", "/sub"),
        ("/sub/v1/", "/sub"),
        ("/av1", "/av1"),
        ("/v10", "/v10"),
        ("/V1", "/V1"),
        ("/v1/sub", "/v1/sub"),
    ],
)
async def test_where_a_base_url_leads(base: str, prefix: str, transport: str) -> None:
    listing = json_reply({"data": [{"id": "m"}]})
    probes = {"/v1/models": json_reply({}, 404), f"{prefix}/v1/models": listing}
    async with (
        ScriptedEngine([OK], probes=probes) as engine,
        gateway(engine.url + base, models={}, transport=transport) as sluice,
    ):
        for path in (CHAT, f"{CHAT}/", COMPLETIONS):
            assert (await post_json(sluice.port, path, REQ)).status == 200
        paths = [f"{prefix}{CHAT}", f"{prefix}{CHAT}", f"{prefix}{COMPLETIONS}"]
        assert [request.path for request in engine.requests] == paths
        assert {probe.path for probe in engine.probes} == {f"{prefix}/v1/models"}
        assert {request.headers.get("host") for request in engine.requests} == {f"127.0.0.1:{engine.port}"}


class TestForgedDestinations:
    """Nothing in a request changes where it goes."""

    async def test_members_of_the_body_are_data(self) -> None:
        async with ScriptedEngine([OK]) as engine, ScriptedEngine([OK]) as trap, gateway(engine.url) as sluice:
            there = trap.url
            members = {
                "api_base": there,
                "base_url": f"{there}/v1",
                "api_key": "sk-forged",
                "proxy": there,
                "organization": "x",
                "metadata": {"api_base": there},
                "extra_body": {"api_base": there},
                "extra_headers": {"Host": f"127.0.0.1:{trap.port}", "Authorization": "Bearer sk-forged"},
                "extra_query": {"a": "b"},
            }
            for name, value in members.items():
                assert (await post_json(sluice.port, CHAT, {**REQ, name: value})).status == 200
            assert [request.json() for request in engine.requests] == [{**REQ, n: v} for n, v in members.items()]
            assert {request.path for request in engine.requests} == {CHAT}
            assert not any("sk-forged" in request.head.decode() for request in engine.requests)
            assert not trap.connections

    @pytest.mark.parametrize(
        "model",
        ["http://{there}/x", "../../x", "openai/m@{there}", "//{there}/", "m\r\nX-Inject: 1", "m\0", "m ", "M", "é漢"],
    )
    async def test_an_odd_model_name_is_just_not_there(self, model: str) -> None:
        async with ScriptedEngine([OK]) as engine, ScriptedEngine([OK]) as trap, gateway(engine.url) as sluice:
            body = {**REQ, "model": model.format(there=f"127.0.0.1:{trap.port}")}
            reply = await post_json(sluice.port, CHAT, body)
            assert (reply.status, error_of(reply)["code"]) == (404, "model_not_found")
            head = reply.raw.partition(b"\r\n\r\n")[0]
            assert head.isascii()
            assert b"X-Inject" not in head
            assert not engine.requests
            assert not trap.connections


class TestModelNames:
    @pytest.mark.parametrize(
        "name", ["漢字", "modèle", "org/model:tag", "with blank", 'a"b\\c', "a\r\nX-Inject: 1", "🦊"]
    )
    async def test_any_name_can_be_asked_for_and_told(self, name: str) -> None:
        """Names that a header cannot carry are written with `?` in place of what it cannot."""
        async with ScriptedEngine([OK], model=name) as engine:
            async with gateway(engines={"é漢": engine_config(engine.url, models=[])}) as sluice:
                reply = await post_json(sluice.port, CHAT, {**REQ, "model": name})
                assert reply.status == 200
                assert reply.headers.get("x-sluice-model") == re.sub(r"[^ -~]", "?", name)
                assert reply.headers.get("x-sluice-engine") == "??"
                assert "x-inject" not in reply.headers
                listed = (await get(sluice.port, "/v1/models")).json()["data"]
                assert [model["id"] for model in listed] == [name]
            assert engine.requests[0].json()["model"] == name


REQUEST_IDS = {
    "one-of:mine_1.2": True,
    "a" * 128: True,
    "a" * 129: False,
    "": False,
    "a%0d%0aSet-Cookie: z=1": False,
    "two words": False,
    "<script>": False,
    "Zo\xc3\xab": False,
}


@pytest.mark.parametrize(("asked", "kept"), REQUEST_IDS.items())
async def test_a_request_id_is_repeated_if_it_is_harmless(asked: str, kept: bool) -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
        for body, status in ((REQ, 200), (b"{", 400)):
            reply = await post_json(sluice.port, CHAT, body, {"X-Request-Id": asked})
            assert reply.status == status
            (told,) = reply.headers.all("x-request-id")
            assert (told == asked) is kept
            assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", told)
            assert "set-cookie" not in reply.headers


SECRET_HEADERS = (
    "Set-Cookie: t=1",
    "Server: uvicorn",
    "X-Request-Id: of-the-engine",
    f"X-Api-Key: {ENGINE_KEY}",
    f"Authorization: Bearer {ENGINE_KEY}",
    "X-Powered-By: Express",
    "Access-Control-Allow-Origin: *",
    "Strict-Transport-Security: max-age=1",
    "X-Sluice-Engine: forged",
    "Server-Timing: forged;dur=1",
    "Location: http://elsewhere.test",
    "Keep-Alive: timeout=5",
)
STREAM_HEAD = SSE_HEAD[:-2] + "".join(f"{line}\r\n" for line in SECRET_HEADERS).encode() + b"\r\n"
OURS = {"x-request-id", "content-type", "x-sluice-engine", "x-sluice-model", "x-sluice-attempt", "server-timing"}

ANSWERS = {
    "an answer": (REQ, json_reply(ANSWER, 200, *SECRET_HEADERS), 200, OURS | {"content-length"}),
    "a stream": (
        {**REQ, "stream": True},
        STREAM_HEAD + chunked(ROLE + T("a") + FIN("stop") + DONE),
        200,
        OURS | {"cache-control", "x-accel-buffering", "transfer-encoding"},
    ),
    "a refusal": (
        REQ,
        json_reply({"error": {"message": "no", "type": "x"}}, 400, *SECRET_HEADERS),
        400,
        OURS - {"server-timing"} | {"content-length"},
    ),
    "a redirect": (REQ, json_reply({}, 307, *SECRET_HEADERS), 502, OURS - {"server-timing"} | {"content-length"}),
    "a wrong credential": (
        REQ,
        json_reply({"error": {"message": f"Incorrect key {ENGINE_KEY}", "type": "x"}}, 401, *SECRET_HEADERS),
        502,
        OURS - {"server-timing"} | {"content-length"},
    ),
}


@pytest.mark.parametrize(("body", "answer", "status", "headers"), ANSWERS.values(), ids=ANSWERS)
async def test_of_an_engine_s_headers_only_the_content_type_reaches_the_client(
    body: object, answer: bytes, status: int, headers: set[str]
) -> None:
    async with ScriptedEngine([answer]) as engine, gateway(engine.url, api_key=ENGINE_KEY) as sluice:
        reply = await post_json(sluice.port, CHAT, body)
        assert (reply.status, reply.complete) == (status, True)
        assert {name for name, _ in reply.headers} == headers
        assert reply.headers.get("x-request-id") != "of-the-engine"
        assert reply.headers.get("x-sluice-engine") == "a"
        assert ENGINE_KEY.encode() not in reply.raw


async def test_proxies_and_credentials_of_the_environment_are_not_used(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1\nlogin somebody\npassword sk-of-netrc\n")
    nowhere = "http://127.0.0.1:9"
    proxies = dict.fromkeys(["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"], nowhere)
    environment = {
        **proxies,
        "ALL_PROXY": "socks5h://x",
        "all_proxy": "unheard-of://x",
        "NO_PROXY": "",
        "HOME": str(tmp_path),
    }
    async with ScriptedEngine([OK]) as engine:
        engines = {
            transport: {"kind": "llamacpp", "url": engine.url, "transport": transport, "models": [transport]}
            for transport in TRANSPORTS
        }
        async with serving(tmp_path, engines, env=environment) as sluice:
            for transport in TRANSPORTS:
                assert (await post_json(sluice.port, CHAT, {**REQ, "model": transport})).status == 200
        assert len(engine.requests) == len(TRANSPORTS)
        assert not any("authorization" in request.headers for request in (*engine.requests, *engine.probes))
