"""Errors that an engine itself answers with: their status, their words, and when to come back reach the client."""

import email.utils
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.answers import ANSWER, error_of
from tests.support.client import Reply, post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, RunningGateway, gateway
from tests.support.leases import in_flight
from tests.support.sse import json_reply, reply

pytestmark = pytest.mark.anyio

TEXT = "Content-Type: text/plain; charset=utf-8"


@dataclass
class Bench:
    engine: ScriptedEngine
    sluice: RunningGateway
    asked: int = 0

    async def ask(self, answer: bytes, *, stream: bool = False) -> Reply:
        self.engine.script = [answer]
        self.asked += 1
        return await post_json(self.sluice.port, CHAT, REQ | {"stream": stream})

    async def record(self) -> dict[str, Any]:
        return await self.sluice.record(self.asked - 1)


@pytest.fixture(scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with ScriptedEngine() as engine, gateway(engine.url) as sluice:
        yield Bench(engine, sluice)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("status", [400, 404, 409, 413, 415, 422, 429, 500, 501, 503, 504])
async def test_one_in_openais_form_passes_byte_for_byte(bench: Bench, status: int, stream: bool) -> None:
    body = (
        b'{"error": {"n_ctx":4, "code":%d,  "message":"too long \\ud83d\\ude00","type":"exceed_context_size_error"}}'
        % status
    )
    before = len(bench.engine.requests)
    got = await bench.ask(reply(body, "Content-Type: application/json; charset=utf-8", status=status), stream=stream)
    assert (got.status, got.body) == (status, body)
    assert got.headers.all("content-type") == ["application/json"]
    assert got.headers.get("x-sluice-engine") == "a"
    record = await bench.record()
    assert (record["outcome"], record["status"], record.get("message")) == ("engine_error", status, None)
    assert len(bench.engine.requests) == before + 1
    assert in_flight(bench.sluice) == {}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("status", [401, 403])
async def test_one_about_the_gateways_own_key_is_not_the_clients(bench: Bench, status: int, stream: bool) -> None:
    got = await bench.ask(json_reply({"error": {"message": "Invalid key sk-123", "type": "t"}}, status), stream=stream)
    error = error_of(got)
    assert (got.status, error["code"]) == (502, "engine_credentials")
    assert "sk-123" not in error["message"]


OTHER_FORMS = {
    "Ollama": (json_reply({"error": "model 'x' not found"}, 404), 404, "model 'x' not found"),
    "TGI": (json_reply({"error": "Model is overloaded", "error_type": "overloaded"}, 429), 429, "Model is overloaded"),
    "TGI's plain text": (reply(b"missing field `x`\n", TEXT, status=422), 422, "missing field `x`"),
    "vLLM": (json_reply({"error": "Bad"}, 400), 400, "Bad"),
    "old vLLM": (json_reply({"object": "error", "message": "m", "type": "T", "code": 400}, 400), 400, "m"),
    "no type": (json_reply({"error": {"message": "m"}}, 400), 400, "m"),
    "FastAPI": (json_reply({"detail": "Not Found"}, 404), 404, "Not Found"),
    "line breaks": (json_reply({"error": "a\r\nX-Injected: 1\r\n\r\nb"}, 400), 400, "a\r\nX-Injected: 1\r\n\r\nb"),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("answer", "status", "message"), OTHER_FORMS.values(), ids=OTHER_FORMS)
async def test_one_in_another_form_is_put_into_openais(
    bench: Bench, answer: bytes, status: int, message: str, stream: bool
) -> None:
    got = await bench.ask(answer, stream=stream)
    error = error_of(got)
    assert (got.status, error["message"], error["code"]) == (status, message, "engine_error")
    assert got.headers.get("x-injected") is None


SPEECHLESS = {
    "nothing": b"",
    "a page": b"<html><body>down</body></html>",
    "a long text": 400 * b"x",
    "an empty object": b"{}",
    "a list of details": json.dumps({"detail": [{"loc": ["body"], "msg": "m"}]}).encode(),
    "an empty message": json.dumps({"error": ""}).encode(),
    "no text for a message": json.dumps({"error": {"message": 7, "type": "t"}}).encode(),
}


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "text/html"])
@pytest.mark.parametrize("body", SPEECHLESS.values(), ids=SPEECHLESS)
async def test_one_without_usable_words_says_so(bench: Bench, body: bytes, content_type: str) -> None:
    got = await bench.ask(reply(body, f"Content-Type: {content_type}", status=500))
    assert got.status == 500
    assert error_of(got)["message"] == "Engine `a` answered with HTTP 500 and no explanation."


KINDS = {
    400: "invalid_request_error",
    404: "not_found_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "engine_error",
    503: "engine_error",
}


@pytest.mark.parametrize(("status", "kind"), KINDS.items())
async def test_the_type_of_one_follows_from_its_status(bench: Bench, status: int, kind: str) -> None:
    assert error_of(await bench.ask(json_reply({"error": "m"}, status)))["type"] == kind


def http_date(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


RETRY_AFTER = {
    "seconds": ("2", {"2"}),
    "none": ("0", {"0"}),
    "a date far away": ("Fri, 31 Dec 9999 23:59:59 GMT", {"3600"}),
    "a date that is none": ("Fri, 99 Dec 2031 23:59:59 GMT", {None}),
    "a negative number": ("-1", {None}),
    "a fraction": ("1.5", {None}),
    "a large number": ("99999", {"3600"}),
    "a huge number": (400 * "9", {"3600"}),
    "a number without end": (10_000 * "9", {None}),
    "nonsense": ("abc", {None}),
    "not ASCII": ("zwölf", {None}),
    "empty": ("", {None}),
}


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("sent", "received"), RETRY_AFTER.values(), ids=RETRY_AFTER)
async def test_when_to_come_back_is_passed_on_if_it_makes_sense(
    bench: Bench, sent: str, received: set[str | None], status: int
) -> None:
    body = b'{"error":{"message":"m","type":"t"}}'
    got = await bench.ask(reply(body, f"Retry-After: {sent}", status=status))
    assert (got.status, got.body) == (status, body)
    assert got.headers.get("retry-after") in received


@pytest.mark.parametrize(("ahead", "received"), [(600, range(480, 601)), (-600, [None])], ids=["to come", "past"])
async def test_a_date_to_come_back_at_is_passed_on_in_seconds(
    bench: Bench, ahead: float, received: Sequence[int | None]
) -> None:
    got = await bench.ask(reply(b"{}", f"Retry-After: {http_date(ahead)}", status=503))
    assert got.headers.get("retry-after") in [None if seconds is None else str(seconds) for seconds in received]


async def test_many_of_them_leave_the_engine_in_service(bench: Bench) -> None:
    for status in (400, 413, 422, 429, 500, 503) * 5:
        assert (await bench.ask(json_reply({"error": "m"}, status), stream=status == 400)).status == status
    assert (await bench.ask(json_reply(ANSWER))).json() == ANSWER
