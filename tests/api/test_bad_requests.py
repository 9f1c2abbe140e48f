"""What can be wrong with a request's body, what its client is told, and what is left for the engine to judge."""

import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answers import OK, error_of
from tests.support.client import RawClient, Reply, post_json
from tests.support.engine import Request, ScriptedEngine
from tests.support.gateway import CHAT, COMPLETIONS, RunningGateway, gateway

pytestmark = pytest.mark.anyio

MESSAGES = '"messages":[{"role":"user","content":"hi"}]'


def chat(members: str) -> bytes:
    """A good chat request with further members."""
    return f'{{"model":"m",{MESSAGES},{members}}}'.encode()


def says(content: str) -> bytes:
    """A chat request whose only message is this JSON string, as it is written."""
    return f'{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}'.encode()


def nested(levels: int, opening: str = "[", closing: str = "]") -> bytes:
    return f'{{"model":"m","messages":[{{"x":{opening * levels}1{closing * levels}}}]}}'.encode()


@dataclass
class Served:
    """An engine that takes anything, behind a gateway that also knows its model as `alias`."""

    engine: ScriptedEngine
    sluice: RunningGateway

    async def post(self, body: bytes, path: str = CHAT, headers: dict[str, str] | None = None) -> Reply:
        return await post_json(self.sluice.port, path, body, headers)

    def taken(self) -> list[Request]:
        """The requests that the engine got since this was asked last."""
        requests, self.engine.requests = self.engine.requests, []
        return requests


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    models = {"alias": [{"engine": "a", "model": "m"}]}
    async with ScriptedEngine([OK]) as engine, gateway(engine.url, models=models) as sluice:
        yield Served(engine, sluice)


NOT_JSON = {
    "nothing": b"",
    "blanks": b" \r\n\t",
    "cut off": b"{",
    "cut off in a string": b'{"model":"m',
    "single quotes": b"{'model':'m'}",
    "a trailing comma": chat('"a":1,'),
    "bytes after the end": chat('"a":1') + b" x",
    "two objects": chat('"a":1') * 2,
    "a comment": chat('/* why */"a":1'),
    "NaN": chat('"a":NaN'),
    "Infinity": chat('"a":Infinity'),
    "-Infinity": chat('"a":-Infinity'),
    "True": chat('"a":True'),
    "a leading zero": chat('"a":01'),
    "a bare point": chat('"a":.5'),
    "a plus sign": chat('"a":+1'),
    "an unknown escape": says(r"\x41"),
    "a short escape": says(r"\u12"),
    "a line break in a string": says("a\nb"),
    "a NUL byte in a string": says("a\0b"),
    "a NUL byte between members": chat('\0"a":1'),
    "half a surrogate pair": says(r"bad \ud83e x"),
    "the other half": says(r"\udd8a"),
    "halves in the wrong order": says(r"\udd8a\ud83e"),
    "half a surrogate pair as a name": chat(r'"\ud83e":1'),
    "half a surrogate pair in the model": rb'{"model":"\ud83e","messages":[1]}',
    "a byte order mark": b"\xef\xbb\xbf" + chat('"a":1'),
    "UTF-16": chat('"a":1').decode().encode("utf-16"),
    "a byte that is not UTF-8": says("a\xff").decode().encode("latin-1"),
    "a surrogate in UTF-8": chat('"a":"?"').replace(b"?", b"\xed\xa0\x80"),
    "an overlong encoding": chat('"a":"?"').replace(b"?", b"\xc0\xaf"),
    "a form": b"model=m&messages=hi",
    "500,000 lists in each other": nested(500_000),
    "500,000 objects in each other": nested(500_000, '{"a":', "}"),
    "100,000 lists never closed": b'{"model":"m","messages":' + b"[" * 100_000,
    "500,000 lists where nobody looks": chat(f'"x":{"[" * 500_000}{"]" * 500_000}'),
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
async def test_a_body_that_is_not_json_in_utf8(served: Served, body: bytes) -> None:
    reply = await served.post(body)
    error = error_of(reply)
    assert (reply.status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_json")
    assert not served.taken()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ("[]", "invalid_type", None),
        ("null", "invalid_type", None),
        ('"x"', "invalid_type", None),
        ("7", "invalid_type", None),
        ("{}", "missing_field", "model"),
        (f"{{{MESSAGES}}}", "missing_field", "model"),
        (f'{{"Model":"m",{MESSAGES}}}', "missing_field", "model"),
        (f'{{"model":5,{MESSAGES}}}', "invalid_type", "model"),
        (f'{{"model":null,{MESSAGES}}}', "invalid_type", "model"),
        (f'{{"model":["m"],{MESSAGES}}}', "invalid_type", "model"),
        (f'{{"model":"",{MESSAGES}}}', "invalid_request", "model"),
        (f'{{"model":"m",{MESSAGES},"stream":"yes"}}', "invalid_type", "stream"),
        (f'{{"model":"m",{MESSAGES},"stream":1}}', "invalid_type", "stream"),
        (f'{{"model":"m",{MESSAGES},"n":0}}', "invalid_request", "n"),
        (f'{{"model":"m",{MESSAGES},"n":-1}}', "invalid_request", "n"),
        (f'{{"model":"m",{MESSAGES},"n":1.5}}', "invalid_type", "n"),
        (f'{{"model":"m",{MESSAGES},"n":"2"}}', "invalid_type", "n"),
        (f'{{"model":"m",{MESSAGES},"n":true}}', "invalid_type", "n"),
        (f'{{"model":"m",{MESSAGES},"n":{"9" * 5000}}}', "invalid_type", "n"),
    ],
)
async def test_a_wrong_value_in_what_routing_reads(
    served: Served, path: str, body: str, code: str, param: str | None
) -> None:
    reply = await served.post(body.encode(), path)
    error = error_of(reply)
    assert (reply.status, error["code"], error["param"]) == (400, code, param)
    assert not served.taken()


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ("", "missing_field"),
        (',"messages":null', "invalid_type"),
        (',"messages":{}', "invalid_type"),
        (',"messages":"hi"', "invalid_type"),
        (',"messages":[]', "invalid_request"),
    ],
)
async def test_a_chat_needs_a_message(served: Served, messages: str, code: str) -> None:
    reply = await served.post(f'{{"model":"m"{messages}}}'.encode())
    error = error_of(reply)
    assert (reply.status, error["code"], error["param"]) == (400, code, "messages")
    assert not served.taken()


async def test_a_model_that_nobody_has(served: Served) -> None:
    reply = await served.post(b'{"model":"alas","messages":[{"role":"user","content":"hi"}]}')
    error = error_of(reply)
    assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "`alias`" in error["message"]
    assert not served.taken()


FOR_THE_ENGINE = {
    "an unknown role": b'{"model":"m","messages":[{"role":"wizard","content":"hi"}]}',
    "a message that is no object": b'{"model":"m","messages":[7]}',
    "stream: null": chat('"stream":null'),
    "n: null": chat('"n":null'),
    "unknown and null members": chat('"x_new":{"a":[1,null,"\\u00e9"]},"stop":null'),
    "a member twice": chat('"seed":1,"seed":2'),
    "the model twice, the last one known": b'{"model":"other","model":"m","messages":[1]}',
    "a surrogate pair": says(r"ok \ud83e\udd8a x"),
    "an escaped NUL": says(r"\u0000"),
    "an escaped slash": says(r"a\/b"),
    "a long integer": chat(f'"seed":{"9" * 5000}'),
    "a number beyond a double": chat('"seed":1e999999'),
    "blanks and line breaks": b' {\r\n"model" :\t"m" , "messages":[ 1 ] } \n',
    "an empty name": chat('"":1'),
    "200 lists in each other": nested(200),
}


@pytest.mark.parametrize("body", FOR_THE_ENGINE.values(), ids=FOR_THE_ENGINE)
async def test_what_only_the_engine_can_judge_reaches_it_as_it_came(served: Served, body: bytes) -> None:
    assert (await served.post(body)).status == 200
    (request,) = served.taken()
    assert request.body == body


@pytest.mark.parametrize(
    "prompt", ['"a"', '["a","b"]', "[1,2,3]", "[[1,2],[3]]", '""', "[]", "null", "7", '{"a":1}', ' [ "a" , 1 ]']
)
async def test_a_completion_takes_any_prompt(served: Served, prompt: str) -> None:
    body = f'{{"model":"m","prompt":{prompt},"echo":true}}'.encode()
    assert (await served.post(body, COMPLETIONS)).status == 200
    (request,) = served.taken()
    assert (request.path, request.body) == (COMPLETIONS, body)


async def test_a_completion_needs_no_prompt_as_far_as_the_gateway_knows(served: Served) -> None:
    assert (await served.post(b'{"model":"m"}', COMPLETIONS)).status == 200
    assert len(served.taken()) == 1


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/json; charset=latin1", "application/x-www-form-urlencoded", "nonsense"],
)
async def test_the_content_type_does_not_matter(served: Served, content_type: str | None) -> None:
    body = chat('"user":"ü"')
    line = "" if content_type is None else f"Content-Type: {content_type}\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{line}Content-Length: {len(body)}\r\n\r\n"
    async with RawClient(served.sluice.port) as client:
        await client.send(head.encode() + body)
        assert (await client.finish()).status == 200
    (request,) = served.taken()
    assert (request.body, request.headers.all("content-type")) == (body, ["application/json"])


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, identity", "unheard-of"])
async def test_a_compressed_body_is_refused(served: Served, encoding: str) -> None:
    reply = await served.post(gzip.compress(chat('"a":1')), headers={"Content-Encoding": encoding})
    assert (reply.status, error_of(reply)["code"]) == (415, "unsupported_encoding")
    assert not served.taken()


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_a_body_said_to_be_uncompressed_is_taken(served: Served, encoding: str) -> None:
    assert (await served.post(chat('"a":1'), headers={"Content-Encoding": encoding})).status == 200
    assert len(served.taken()) == 1


@pytest.mark.parametrize("levels", [500, 900, 1_000, 5_000, 10_000, 50_000])
async def test_however_deep_a_body_is_nested_it_is_passed_on_or_refused(served: Served, levels: int) -> None:
    """How deep it may be depends on the version of Python."""
    for body in (nested(levels), nested(levels).replace(b'"m"', b'"alias"')):
        reply = await served.post(body)
        assert (reply.status, len(served.taken())) in [(200, 1), (400, 0)]


# Anything at all

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)
NAMES = st.sampled_from(["model", "messages", "stream", "n", "prompt", "model ", "x"]) | st.text()
MEMBERS = st.dictionaries(NAMES, VALUES).filter(lambda members: members.get("stream") is not True)
"""Members for a request whose answer is not a stream."""


@st.composite
def nearly_good(draw: st.DrawFn) -> bytes:
    """A good request with some of its bytes replaced."""
    body = chat(r'"stream":null,"n":2,"user":"\ud83e\udd8a"').replace(b"hi", "hé".encode())
    start = draw(st.integers(0, len(body)))
    return body[:start] + draw(st.binary(max_size=4)) + body[start + draw(st.integers(0, 5)) :]


@given(
    body=st.binary()
    | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
    | VALUES.map(lambda value: json.dumps(value).encode())
    | MEMBERS.map(lambda members: json.dumps({"model": "m", "messages": [1], **members}).encode())
    | nearly_good(),
    path=st.sampled_from([CHAT, COMPLETIONS]),
)
async def test_whatever_comes_is_refused_or_passed_on_as_it_is(served: Served, body: bytes, path: str) -> None:
    reply = await served.post(body, path)
    taken = served.taken()
    if reply.status == 200:
        assert [request.body for request in taken] == [body]
    else:
        assert reply.status in (400, 404)
        error_of(reply)
        assert not taken


@given(members=MEMBERS)
async def test_another_name_for_the_model_changes_nothing_else(served: Served, members: dict[str, Any]) -> None:
    body = {"messages": [1], **members, "model": "alias"}
    reply = await served.post(json.dumps(body).encode())
    if reply.status == 200:
        (request,) = served.taken()
        assert request.json() == {**body, "model": "m"}
        assert list(request.json()) == list(body)
    else:
        assert reply.status == 400
        assert not served.taken()
