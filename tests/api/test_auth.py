"""Who may use the gateway: API keys, and where they are read."""

import pytest

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, encode_request, get, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, COMPLETIONS, REQ, gateway

pytestmark = pytest.mark.anyio

KEY = "sk-AAAA-BBBB-CCCC-DDDD"
OTHER = "sk-EEEE-FFFF"
KEYS = {"keys": [{"name": "laptop", "key": KEY}, {"name": "job", "key": OTHER}]}

Lines = list[str]


async def ask(port: int, lines: Lines) -> Reply:
    """A chat request with these header lines, as they are."""
    request = encode_request("POST", CHAT, REQ, {})
    start, _, rest = request.partition(b"\r\n")
    async with RawClient(port) as client:
        await client.send(b"\r\n".join([start, *[line.encode("latin-1") for line in lines], rest]))
        return await client.finish()


LET_IN: dict[str, tuple[Lines, str]] = {
    "a bearer token": ([f"Authorization: Bearer {KEY}"], "laptop"),
    "another key": ([f"Authorization: Bearer {OTHER}"], "job"),
    "the scheme in small letters": ([f"Authorization: bearer {KEY}"], "laptop"),
    "the scheme in capitals": ([f"AUTHORIZATION: BEARER {KEY}"], "laptop"),
    "more blanks": ([f"Authorization:   Bearer   {KEY}  "], "laptop"),
    "x-api-key": ([f"X-API-Key: {KEY}"], "laptop"),
    "the same key in both": ([f"Authorization: Bearer {KEY}", f"x-api-key: {KEY}"], "laptop"),
}

KEPT_OUT: dict[str, Lines] = {
    "a wrong key": ["Authorization: Bearer sk-of-nobody"],
    "a wrong x-api-key": ["x-api-key: sk-of-nobody"],
    "an empty key": ["Authorization: Bearer "],
    "an empty x-api-key": ["x-api-key:"],
    "no scheme": [f"Authorization: {KEY}"],
    "Basic": [f"Authorization: Basic {KEY}"],
    "the scheme twice": [f"Authorization: Bearer Bearer {KEY}"],
    "the scheme alone": ["Authorization: Bearer"],
    "the scheme in x-api-key": [f"x-api-key: Bearer {KEY}"],
    "the key in small letters": [f"Authorization: Bearer {KEY.lower()}"],
    "all but the last character": [f"Authorization: Bearer {KEY[:-1]}"],
    "one more character": [f"Authorization: Bearer {KEY}x"],
    "a character beyond ASCII": [f"Authorization: Bearer {KEY}\xe9"],
    "only characters beyond ASCII": ["Authorization: Bearer \xff\xfe"],
    "two keys in one line": [f"Authorization: Bearer {KEY}, Bearer {KEY}"],
    "two different keys": [f"Authorization: Bearer {KEY}", f"Authorization: Bearer {OTHER}"],
    "a right key and a wrong one": [f"Authorization: Bearer {KEY}", "x-api-key: sk-of-nobody"],
    "a wrong key and a right one": ["x-api-key: sk-of-nobody", f"Authorization: Bearer {KEY}"],
    "a name of a key": ["Authorization: Bearer laptop"],
    "a quoted key": [f'Authorization: Bearer "{KEY}"'],
    "a very long key": [f"Authorization: Bearer {'A' * 50_000}"],
}


@pytest.mark.parametrize(("lines", "name"), LET_IN.values(), ids=LET_IN)
async def test_keys_that_are_let_in_are_logged_by_name(lines: Lines, name: str) -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEYS) as sluice:
        assert (await ask(sluice.port, lines)).status == 200
        assert (await sluice.record())["key"] == name


async def test_keys_that_are_kept_out_all_get_the_same_answer() -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEYS) as sluice:
        replies = {name: await ask(sluice.port, lines) for name, lines in KEPT_OUT.items()}
        assert {name: reply.status for name, reply in replies.items()} == dict.fromkeys(KEPT_OUT, 401)
        assert len({reply.body for reply in replies.values()}) == 1
        error = error_of(replies["a wrong key"])
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert not engine.requests


async def test_without_a_key_it_says_how_to_send_one() -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEYS) as sluice:
        for lines in ([], [f"Cookie: key={KEY}"], [f"api-key: {KEY}"], [f"Proxy-Authorization: Bearer {KEY}"]):
            reply = await ask(sluice.port, lines)
            error = error_of(reply)
            assert (reply.status, error["code"]) == (401, "missing_api_key")
            assert "Authorization: Bearer" in error["message"]
        assert (await post_json(sluice.port, f"{CHAT}?api_key={KEY}", REQ)).status == 401
        assert not engine.requests


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", CHAT, 401),
        ("POST", COMPLETIONS, 401),
        ("GET", "/v1/models", 401),
        ("GET", "/v1/models/m", 401),
        ("GET", "/v1/models/nothing-like-it", 401),
        ("GET", "/health/live", 200),
        ("GET", "/health/ready", 200),
    ],
)
async def test_what_needs_a_key(method: str, path: str, status: int) -> None:
    async with (
        ScriptedEngine([OK]) as engine,
        gateway(engine.url, server=KEYS) as sluice,
        RawClient(sluice.port) as client,
    ):
        await client.request(method, path, REQ if method == "POST" else None)
        reply = await client.finish()
        assert reply.status == status
        if status == 401:
            assert error_of(reply)["code"] == "missing_api_key"
        await client.request(method, path, REQ if method == "POST" else None, {"Authorization": f"Bearer {KEY}"})
        assert (await client.finish()).status in (200, 404)


async def test_the_key_is_looked_at_before_the_body() -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=KEYS) as sluice:
        assert (await post_json(sluice.port, CHAT, b"not JSON")).status == 401
        assert (await post_json(sluice.port, CHAT, b"x", {"Content-Encoding": "gzip"})).status == 401
        assert (await post_json(sluice.port, CHAT, b"", {"Content-Length": "999999999"})).status == 401


async def test_without_keys_in_the_config_none_is_asked_for_and_any_is_taken() -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
        for number, lines in enumerate([[], *KEPT_OUT.values()]):
            assert (await ask(sluice.port, lines)).status == 200
            assert "key" not in await sluice.record(number)
        assert (await get(sluice.port, "/v1/models")).status == 200


async def test_a_key_may_hold_blanks_between_its_characters() -> None:
    server = {"keys": [{"name": "a", "key": "four words of text"}]}
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, server=server) as sluice:
        assert (await ask(sluice.port, ["Authorization: Bearer four words of text"])).status == 200
        assert (await ask(sluice.port, ["Authorization: Bearer four"])).status == 401
