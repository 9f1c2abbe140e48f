"""Text completions of one prompt, which the gateway takes to TGI's own endpoints."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import openai
import pytest

from tests.support.answers import error_of
from tests.support.client import RawClient, post_json
from tests.support.engine import Connection, Request, ScriptedEngine
from tests.support.gateway import COMPLETIONS, RunningGateway
from tests.support.sse import failed, finish_reasons, is_clean, read_events
from tests.support.tgi import Fault, Tgi, sluice
from tests.support.tgi_wire import MODEL
from tests.support.waiting import eventually
from tests.support.wire import recording

pytestmark = pytest.mark.anyio

ONCE = "Once upon a time"
ROBOT = " there was a little robot who wanted to"
CAPITAL = "What is the capital of France?"
LIST = "Make a list and stop."
USAGE = {"include_usage": True}
WELL = {"/health": recording("tgi", "health").raw, "/info": recording("tgi", "info").raw}


class Setup(NamedTuple):
    engine: Any
    sluice: RunningGateway

    async def ask(self, prompt: str | list[str] = ONCE, **fields: Any) -> Any:
        return await post_json(self.sluice.port, COMPLETIONS, {"model": MODEL, "prompt": prompt, **fields})

    @property
    def asked(self) -> list[tuple[str, Any]]:
        return [(request.path, request.json()) for request in self.engine.requests]


@asynccontextmanager
async def tgi(**options: Any) -> AsyncIterator[Setup]:
    async with Tgi(**options) as engine, sluice(engine) as running:
        yield Setup(engine, running)


def text_of(body: bytes) -> str:
    return "".join(event.choice.get("text", "") for event in read_events(body))


class TestWholeReplies:
    async def test_an_answer(self) -> None:
        async with tgi() as setup:
            answer = (await setup.ask(max_tokens=8, temperature=0)).json()
            parameters = {"max_new_tokens": 8, "do_sample": False, "details": True}
            assert setup.asked == [("/generate", {"inputs": ONCE, "parameters": parameters})]
        (choice,) = answer["choices"]
        assert choice == {"index": 0, "text": ROBOT, "logprobs": None, "finish_reason": "length"}
        assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
        assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}

    @pytest.mark.parametrize(
        ("prompt", "fields", "text", "reason"),
        [
            (CAPITAL, {}, "The capital of France is Paris.", "stop"),
            (LIST, {"stop": ["END"]}, "1. apples\n2. pears\n3. plums\n", "stop"),
            (LIST, {"stop": "l", "echo": True}, f"{LIST}1. app", "stop"),
            (ONCE, {"max_tokens": 8, "echo": True}, ONCE + ROBOT, "length"),
            ("COUNT", {"max_tokens": 1030}, "x" * 1030, "length"),
        ],
        ids=["end", "stop", "stop inside a token", "echo", "long"],
    )
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
    async def test_text_and_end(
        self, prompt: str, fields: dict[str, Any], text: str, reason: str, stream: bool
    ) -> None:
        async with tgi() as setup:
            body = (await setup.ask(prompt, stream=stream, **fields)).body
        if stream:
            assert is_clean(body)
            assert (text_of(body), finish_reasons(body)) == (text, [reason])
        else:
            (choice,) = json.loads(body)["choices"]
            assert (choice["text"], choice["finish_reason"]) == (text, reason)

    async def test_the_timeline_has_the_engines_own_wait_and_counts(self) -> None:
        async with tgi(queue=5650) as setup:
            answer = await setup.ask(max_tokens=8)
            record = await setup.sluice.record()
        assert "engine-queue;dur=5650" in (answer.headers.get("server-timing") or "")
        assert (record["engine_queue"], record["prompt_tokens"], record["completion_tokens"]) == (5.65, 4, 8)
        assert "engine_prefill" not in record
        assert "timings" not in answer.json()

    async def test_several_prompts_are_gathered(self) -> None:
        async with tgi() as setup:
            answer = (await setup.ask([CAPITAL, ONCE], max_tokens=4, echo=True)).json()
            assert [(path, body["stream"]) for path, body in setup.asked] == [(COMPLETIONS, True)]
        assert [choice["text"] for choice in answer["choices"]] == [
            f"{CAPITAL}The capital of France",
            f"{ONCE} there was a little",
        ]
        assert answer["usage"] == {"prompt_tokens": 11, "completion_tokens": 8, "total_tokens": 19}


class TestStreams:
    async def test_counts_come_when_they_are_asked_for(self) -> None:
        async with tgi() as setup:
            body = (await setup.ask(max_tokens=8, stream=True, stream_options=USAGE)).body
            (path, _), *_ = setup.asked
            record = await setup.sluice.record()
        *_, last, counts, done = read_events(body)
        assert (path, done.done) == ("/generate_stream", True)
        assert "usage" not in last.json
        assert counts.json["choices"] == []
        assert counts.json["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}
        assert (record["outcome"], record["prompt_tokens"], record["completion_tokens"]) == ("ok", 4, 8)

    @pytest.mark.parametrize("name", ["generate-stream-details", "generate-stream-no-max", "generate-stream-stop"])
    async def test_one_that_comes_byte_by_byte_is_the_same(self, name: str) -> None:
        raw = recording("tgi", name).raw

        async def drip(_: Request, connection: Connection) -> None:
            for at in range(len(raw)):
                await connection.send(raw[at : at + 1])
                await asyncio.sleep(0)
            await connection.fin()

        said: list[tuple[str, list[str]]] = []
        for script in (drip, recording("tgi", name).script()):
            async with ScriptedEngine(script, probes=WELL) as engine, sluice(engine) as running:
                body = (await Setup(engine, running).ask(stream=True, stop=["END"])).body
            assert is_clean(body)
            said.append((text_of(body), finish_reasons(body)))
        assert said[0] == said[1]
        assert said[0][1]

    async def test_one_above_1024_tokens_lets_its_engine_go_at_the_limit(self) -> None:
        async with tgi() as setup:
            body = (await setup.ask("COUNT", max_tokens=1030, stream=True)).body
            assert (len(text_of(body)), finish_reasons(body)) == (1030, ["length"])
            await eventually(lambda: not setup.engine.running)

    async def test_a_client_that_leaves_lets_the_engine_go(self) -> None:
        async with tgi() as setup:
            setup.engine.fault = Fault.HANGS
            async with RawClient(setup.sluice.port) as client:
                await client.request("POST", COMPLETIONS, {"model": MODEL, "prompt": ONCE, "stream": True})
                await eventually(lambda: setup.engine.running)
                client.close()
            await setup.engine.gone(1)


class TestErrors:
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
    async def test_what_the_engine_refuses_is_the_clients_fault(self, stream: bool) -> None:
        async with tgi() as setup:
            answer = await setup.ask("word " * 5000, max_tokens=8, stream=stream)
        error = error_of(answer)
        assert answer.status == (400 if stream else 422)
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")

    @pytest.mark.parametrize("body_of", ["generate-stream-error-decode", "died-mid-generate-stream"])
    async def test_one_that_dies_in_the_middle_is_no_answer(self, body_of: str) -> None:
        recorded = recording("tgi", body_of)
        async with ScriptedEngine(recorded.script(), probes=WELL) as engine, sluice(engine) as running:
            answer = await Setup(engine, running).ask(stream=True)
            assert answer.status == 200
            assert failed(answer.body)
            assert finish_reasons(answer.body) == []

    async def test_a_reply_without_an_end_is_no_answer(self) -> None:
        """As `/generate` gives it to those who do not ask for details."""
        script = recording("tgi", "generate").script()
        async with ScriptedEngine(script, probes=WELL) as engine, sluice(engine) as running:
            answer = await Setup(engine, running).ask()
            assert (answer.status, error_of(answer)["code"]) == (502, "engine_failed")


class TestOpenAiLibrary:
    async def test_log_probabilities(self) -> None:
        async with tgi() as setup:
            http = openai.DefaultAsyncHttpxClient(trust_env=False)
            url = f"{setup.sluice.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="x", http_client=http, max_retries=0) as client:
                answer = await client.completions.create(model=MODEL, prompt=CAPITAL, logprobs=2)
                stream = await client.completions.create(model=MODEL, prompt=CAPITAL, logprobs=2, stream=True)
                said = [chunk.choices[0] async for chunk in stream]
        (choice,) = answer.choices
        told = choice.logprobs
        assert told is not None
        assert "".join(told.tokens or []) == choice.text == "The capital of France is Paris."
        assert told.token_logprobs == [-0.5] * 7
        assert [len(top) for top in told.top_logprobs or []] == [2] * 7
        assert [choice.text[at] for at in told.text_offset or []] == [token[0] for token in told.tokens or []]
        pieces = [one.logprobs for one in said if one.logprobs is not None]
        assert [token for piece in pieces for token in piece.tokens or []] == told.tokens
        assert [at for piece in pieces for at in piece.text_offset or []] == told.text_offset
