"""What is told of each request: one JSON line in the log and `Server-Timing` on the answer, and never a word of it."""

import asyncio
import hashlib
import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.telemetry.logs import JsonFormatter
from tests.support.answers import ANSWER, OK
from tests.support.client import RawClient, Reply, get, post_json
from tests.support.command import AT_DEBUG_LEVEL, serving
from tests.support.engine import ScriptedEngine, Step
from tests.support.gateway import CHAT, COMPLETIONS, REQ, gateway
from tests.support.sse import (
    DONE,
    ERROR,
    FIN,
    ROLE,
    SSE_HEAD,
    USE,
    T,
    chunk,
    data,
    envelope,
    json_reply,
    reply,
    sse_reply,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

STREAM = {**REQ, "stream": True}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
TIMINGS = {"cache_n": 3, "prompt_n": 4, "prompt_ms": 12.5, "predicted_n": 2, "predicted_ms": 40.0, "odd": "x"}

ALWAYS = {"time", "level", "event", "request_id", "path", "status", "outcome", "duration"}
ROUTED = ALWAYS | {"model", "engine", "engine_model", "attempt", "routed", "dispatched"}
ANSWERED = ROUTED | {"first_frame", "ttft", "first_delivered", "last_output"}
IN_ORDER = ("routed", "dispatched", "first_frame", "ttft", "last_output", "duration")


def in_order(record: dict[str, Any]) -> bool:
    """Whether the times that a record holds follow one another."""
    times = [record[name] for name in IN_ORDER if name in record]
    return times == sorted(times) and times[0] >= 0


class TestOneLineARequest:
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_for_an_answer_in_one_piece(self, path: str) -> None:
        server = {"keys": [{"name": "laptop", "key": "sk-of-a-client"}]}
        async with ScriptedEngine([OK], model="real") as engine:
            models = {"alias": [{"engine": "a", "model": "m"}]}
            async with gateway(engine.url, server=server, models=models) as sluice:
                headers = {"x-api-key": "sk-of-a-client", "X-Request-Id": "one:of.my-own_1"}
                answer = await post_json(sluice.port, path, {**REQ, "model": "alias"}, headers)
                record = await sluice.record()
        assert record.keys() == ANSWERED | {"key"}
        assert {name: record[name] for name in ("event", "level", "status", "outcome")} == {
            "event": "request",
            "level": "info",
            "status": 200,
            "outcome": "ok",
        }
        assert (record["path"], record["key"], record["model"]) == (path, "laptop", "alias")
        assert (record["engine"], record["engine_model"], record["attempt"]) == ("a", "m", 1)
        assert record["request_id"] == answer.headers.get("x-request-id") == "one:of.my-own_1"
        assert in_order(record)

    async def test_for_a_stream(self) -> None:
        script = [
            SSE_HEAD,
            chunk(ROLE),
            0.05,
            chunk(T("a")),
            0.05,
            chunk(T("b") + FIN("stop") + USE(7, 2) + DONE),
            b"0\r\n\r\n",
        ]
        async with ScriptedEngine(script) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, CHAT, STREAM)
            record = await sluice.record()
        assert record.keys() == ANSWERED | {"stream", "finish_reason", "events", "prompt_tokens", "completion_tokens"}
        assert (record["outcome"], record["stream"]) == ("ok", True)
        assert (record["prompt_tokens"], record["completion_tokens"]) == (7, 2)
        assert in_order(record)
        assert record["first_frame"] < record["ttft"] < record["last_output"]
        assert record["ttft"] <= record["first_delivered"] <= record["last_output"]

    async def test_without_a_query(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, f"{CHAT}?key=sk-in-the-query", REQ)
            await sluice.record()
            assert "sk-in-the-query" not in sluice.log.getvalue()

    async def test_and_none_for_anything_else(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            for path in ("/v1/models", "/v1/models/m", "/health/live", "/health/ready", "/nothing"):
                await get(sluice.port, path)
            for _ in range(3):
                await post_json(sluice.port, CHAT, REQ)
            await sluice.record(2)
            assert [record["path"] for record in sluice.records()] == [CHAT] * 3
            assert len({record["request_id"] for record in sluice.records()}) == 3

    async def test_by_itself_and_soon(self) -> None:
        async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
            await post_json(sluice.port, CHAT, REQ)
            await eventually(lambda: sluice.log.getvalue().endswith("}\n"))


FAILURES: dict[str, tuple[object, list[bytes | float | Step], int, str, str, set[str]]] = {
    "not JSON": (b"{", [OK], 400, "invalid_json", "info", ALWAYS | {"message"}),
    "a wrong type": (b'{"model":7,"messages":[1]}', [OK], 400, "invalid_type", "info", ALWAYS | {"message"}),
    "no such model": ({**REQ, "model": "x"}, [OK], 404, "model_not_found", "info", ALWAYS | {"message", "model"}),
    "a refusal": (REQ, [json_reply({"error": {"message": "no"}}, 422)], 422, "engine_error", "info", ROUTED),
    "a failure": (REQ, [json_reply({"error": {"message": "no"}}, 500)], 500, "engine_error", "warning", ROUTED),
    "a connection that breaks": (REQ, [Step.RESET], 502, "engine_failed", "warning", ROUTED | {"message"}),
    "nonsense": (REQ, [reply(b"<html>")], 502, "engine_failed", "warning", ROUTED | {"message", "first_frame"}),
    "silence": (REQ, [Step.HANG], 504, "engine_timeout", "warning", ROUTED | {"message"}),
    "an error in a stream": (
        STREAM,
        [SSE_HEAD, chunk(ROLE + T("a")), 0.05, chunk(ERROR("no")), b"0\r\n\r\n"],
        200,
        "engine_error",
        "warning",
        ANSWERED | {"stream", "events"},
    ),
    "a stream cut off": (
        STREAM,
        [SSE_HEAD, chunk(ROLE + T("a")), 0.05, Step.RESET],
        200,
        "engine_failed",
        "warning",
        ANSWERED | {"stream", "events", "message"},
    ),
}


@pytest.mark.parametrize(("body", "script", "status", "outcome", "level", "fields"), FAILURES.values(), ids=FAILURES)
async def test_the_line_of_a_request_that_failed(
    body: object, script: list[bytes | float | Step], status: int, outcome: str, level: str, fields: set[str]
) -> None:
    async with ScriptedEngine(script) as engine, gateway(engine.url, timeouts={"first_byte": 0.2}) as sluice:
        assert (await post_json(sluice.port, CHAT, body)).status == status
        record = await sluice.record()
        assert (record["status"], record["outcome"], record["level"]) == (status, outcome, level)
        assert record.keys() == fields
        assert in_order(record)
        assert len(sluice.records()) == 1


class TestTheLineOfAClientThatLeft:
    async def test_before_its_answer(self) -> None:
        async with (
            ScriptedEngine([Step.HANG]) as engine,
            gateway(engine.url) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, REQ)
            await eventually(lambda: engine.running == 1)
            client.close()
            record = await sluice.record()
        assert (record["status"], record["outcome"], record["level"]) == (499, "cancelled", "info")
        assert record.keys() == ROUTED
        assert in_order(record)

    async def test_in_the_middle_of_it(self) -> None:
        async with (
            ScriptedEngine([SSE_HEAD, chunk(ROLE + T("a")), Step.HANG]) as engine,
            gateway(engine.url) as sluice,
            RawClient(sluice.port) as client,
        ):
            await client.request("POST", CHAT, STREAM)
            await client.read_until(b'"a"')
            client.close()
            record = await sluice.record()
        assert (record["status"], record["outcome"], record["level"]) == (200, "cancelled", "info")
        assert record.keys() == ANSWERED | {"stream", "events"}
        assert in_order(record)


class TestWhatTheEngineCounted:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, {}),
            ({"usage": None, "timings": None}, {}),
            ({"usage": USAGE}, {"prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 0}),
            ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, {"prompt_tokens": 0, "completion_tokens": 0}),
            (
                {"timings": TIMINGS},
                {
                    "prompt_tokens": 7,
                    "completion_tokens": 2,
                    "cached_tokens": 3,
                    "engine_prefill": 0.0125,
                    "engine_decode": 0.04,
                },
            ),
        ],
    )
    async def test_is_in_the_line_and_nothing_is_made_up(
        self, fields: dict[str, Any], expected: dict[str, Any]
    ) -> None:
        names = {"prompt_tokens", "completion_tokens", "cached_tokens", "engine_prefill", "engine_decode"}
        last = data(envelope({"index": 0, "delta": {}, "finish_reason": "stop"}, **fields))
        scripts = [json_reply({**ANSWER, **fields})], [sse_reply(ROLE, T("a"), last, DONE)]
        async with ScriptedEngine(scripts) as engine, gateway(engine.url) as sluice:
            for number, body in enumerate((REQ, STREAM)):
                await post_json(sluice.port, CHAT, body)
                record = await sluice.record(number)
                assert {name: value for name, value in record.items() if name in names} == expected


class TestServerTiming:
    PHASE = r"[a-z-]+;dur=\d+\.\d\d"

    def phases(self, answer: Reply) -> dict[str, float]:
        (value,) = answer.headers.all("server-timing")
        assert re.fullmatch(rf"{self.PHASE}(, {self.PHASE})*", value)
        return {name: float(took) for name, took in re.findall(r"([a-z-]+);dur=([\d.]+)", value)}

    async def test_is_on_every_answer_with_the_engine_s_own_times(self) -> None:
        async with (
            ScriptedEngine([0.05, json_reply({**ANSWER, "timings": TIMINGS})]) as engine,
            gateway(engine.url) as sluice,
        ):
            phases = self.phases(await post_json(sluice.port, CHAT, REQ))
        assert list(phases) == ["gateway", "ttft", "total", "engine-prefill", "engine-decode"]
        assert (phases["engine-prefill"], phases["engine-decode"]) == (12.5, 40.0)
        assert phases["gateway"] < 50 <= phases["ttft"] <= phases["total"]

    async def test_holds_what_is_known_when_the_head_is_sent(self) -> None:
        stream = [0.05, sse_reply(ROLE, T("a"), FIN("stop"), DONE)]
        async with ScriptedEngine([[OK], stream]) as engine, gateway(engine.url) as sluice:
            assert list(self.phases(await post_json(sluice.port, CHAT, REQ))) == ["gateway", "ttft", "total"]
            phases = self.phases(await post_json(sluice.port, CHAT, STREAM))
            assert list(phases) == ["gateway", "ttft"]
            assert phases["ttft"] >= 50


class TestSecrets:
    """Nothing that was said, no key and no address is in any output, whatever fails and whatever is logged."""

    CLIENT_KEY = "sk-CLIENT-0123456789abcdef"
    ENGINE_KEY = "sk-ENGINE-0123456789abcdef"
    HEADER = "HEADER-0123456789abcdef"
    WRONG_KEY = "sk-WRONG-0123456789abcdef"
    PROMPT = "PROMPT-0123456789abcdef"
    SAID = "ANSWER-0123456789abcdef"

    def scripts(self) -> list[list[bytes | float | Step]]:
        quoting = {"error": {"message": f"{self.PROMPT} {self.ENGINE_KEY}", "type": "x"}}
        said = chunk(ROLE + T(self.SAID))
        return [
            [json_reply({**ANSWER, "choices": [{"index": 0, "message": {"content": self.SAID}}]})],
            [SSE_HEAD, said, chunk(FIN("stop") + DONE), b"0\r\n\r\n"],
            [SSE_HEAD, said, Step.RESET],
            [SSE_HEAD, said, chunk(data({"error": {"message": self.PROMPT}})), b"0\r\n\r\n"],
            [SSE_HEAD, said, chunk(b"data: {" + self.SAID.encode() + b"\n\n" + FIN("stop") + DONE), b"0\r\n\r\n"],
            [json_reply(quoting, 401)],
            [json_reply({"error": {"message": self.PROMPT, "type": "x"}}, 400)],
            [json_reply({"detail": self.PROMPT}, 500)],
            [reply(f"<html>{self.SAID} {self.ENGINE_KEY}".encode())],
            [f"{self.SAID} {self.ENGINE_KEY}\r\n\r\n".encode(), Step.FIN],
            [Step.RESET],
            [Step.HANG],
        ]

    async def test_are_nowhere(self, tmp_path: Path) -> None:
        messages = [{"role": "user", "content": f"{self.PROMPT} {self.WRONG_KEY}"}]
        auth = {"Authorization": f"Bearer {self.CLIENT_KEY}"}
        replies: list[tuple[object, Reply]] = []
        engine = ScriptedEngine()
        async with engine:
            fields = {"api_key": self.ENGINE_KEY, "headers": {"X-Secret": self.HEADER}, "timeouts": {"first_byte": 0.3}}
            engines = {
                "a": {"kind": "llamacpp", "url": engine.url, "models": ["m"], **fields},
                "b": {"kind": "vllm", "url": "http://127.0.0.1:9", "models": ["gone"], **fields},
            }
            keys = [{"name": "laptop", "key": self.CLIENT_KEY}]
            async with serving(tmp_path, engines, command=AT_DEBUG_LEVEL, keys=keys) as sluice:

                async def ask(body: object, headers: dict[str, str] = auth, path: str = CHAT) -> None:
                    replies.append((body, await post_json(sluice.port, path, body, headers)))

                for script in self.scripts():
                    engine.script, reached = script, len(engine.requests)
                    await ask({"model": "m", "messages": messages, "stream": script[0] == SSE_HEAD})
                    assert len(engine.requests) > reached
                await ask({"model": "gone", "messages": messages})
                await ask({"model": "m", "messages": messages, "n": self.PROMPT})
                await ask({"model": "m", "messages": self.PROMPT})
                await ask(json.dumps({"model": "m", "messages": messages}).encode()[:-1])
                await ask(b'{"model":"m","messages":[' + b"[" * 200_000 + self.PROMPT.encode())
                await ask({"model": "m", "messages": messages}, {"Authorization": f"Bearer {self.WRONG_KEY}"})
                await ask({"model": "m", "messages": messages}, {"x-api-key": f" {self.WRONG_KEY}"})
                await ask({"model": "m", "messages": messages}, {"Authorization": f"Basic {self.WRONG_KEY}"})
                await ask({"model": "m", "messages": messages}, {}, f"{CHAT}?api_key={self.WRONG_KEY}")
                async with RawClient(sluice.port) as client:
                    await client.request(
                        "GET", f"/health/live?k={self.WRONG_KEY}", None, {"X-A": self.WRONG_KEY + "\0"}
                    )
                    replies.append((None, await client.finish()))
                replies.append((None, await get(sluice.port, "/v1/models", auth)))
                replies.append((None, await get(sluice.port, "/health/ready")))
                assert await sluice.stop() == 0
                log = sluice.log.read_text()

        lines = [json.loads(line) for line in log.splitlines()]
        assert sum(line["event"] == "request" for line in lines) == len(replies) - 3
        assert "Traceback" not in log
        keys_in_full = (self.CLIENT_KEY, self.ENGINE_KEY, self.HEADER)
        secrets = [*keys_in_full, self.WRONG_KEY, self.PROMPT, self.SAID, *[digest(key) for key in keys_in_full]]
        fragments = {secret[at : at + 12] for secret in secrets for at in (0, len(secret) - 12)}
        assert not [fragment for fragment in fragments if fragment in log]
        assert f":{engine.port}" not in log
        for body, answer in replies:
            told = answer.raw.decode()
            allowed = (self.PROMPT, self.SAID) if answer.headers.get("x-sluice-engine") else ()
            assert not [f for f in fragments if f in told and not any(f in text for text in allowed)], (body, told)
            assert f":{engine.port}" not in told


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_other_lines_of_the_log_are_json_too() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("sluice.test")
    logger.addHandler(handler)
    logger.warning("two\nlines of %s", "é\udcff")
    try:
        raise LookupError("gone")
    except LookupError:
        logger.exception("it failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first.keys() == {"time", "level", "event", "logger", "message"}
    assert (first["level"], first["event"], first["logger"]) == ("warning", "log", "sluice.test")
    assert first["message"] == "two\nlines of é?"
    assert second["level"] == "error"
    assert "LookupError: gone" in second["traceback"]


async def test_lines_are_whole_however_many_requests_end_at_once() -> None:
    async with ScriptedEngine([OK]) as engine, gateway(engine.url) as sluice:
        await asyncio.gather(*[post_json(sluice.port, CHAT, REQ) for _ in range(50)])
        await sluice.record(49)
        assert len({record["request_id"] for record in sluice.records()}) == 50
