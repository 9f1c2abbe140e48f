"""TGI's router on a real socket: it answers what it is asked, or fails as the real one was recorded to.

async with Tgi() as engine: ...
async with Tgi(fault=Fault.DIES) as engine: ...
"""

import enum
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import zip_longest
from typing import Any

import msgspec

from tests.support.engine import Connection, Request, ScriptedEngine
from tests.support.gateway import RunningGateway, gateway
from tests.support.sse import LAST_CHUNK, chunk, http_ok, json_reply, reply
from tests.support.tgi_wire import FORMS, CompletionForm, Forms, Token, complaint, generate
from tests.support.wire import recording


class Fault(enum.Enum):
    """What is wrong with it; the model runs in a process of its own, the shard."""

    DEAD = "the shard is gone"
    DIES = "the shard dies after three tokens"
    BREAKS = "the router itself breaks off after three tokens"
    HANGS = "the shard stands still: nothing comes but comments"


_CORS = (
    "vary: origin, access-control-request-method, access-control-request-headers",
    "access-control-allow-origin: *",
)
_COMPUTED = "x-compute-type: gpu+optimized"
_STATUSES = {"overloaded": 429, "validation": 422, "generation": 424}
_DEAD = "Request failed during generation: Server error: error trying to connect: Connection refused (os error 111)"
_DIED = "Request failed during generation: Server error: transport error"
_BEFORE = 3
"""Tokens until a fault shows."""
_TOKEN_TIME = 10
"""Milliseconds that a token takes, as the headers tell."""


class Tgi(ScriptedEngine):
    """
    Args:
        slots: how many requests it takes at once.
        fault: what is wrong with it, to be changed as a test goes on.
        key: what it wants as a bearer token.
        queue: milliseconds that a request waits, as the headers tell.
        pause: seconds before each token of a stream.
        comments: seconds between the comments of a stream that has nothing to say.
    """

    def __init__(
        self,
        *,
        slots: int = 128,
        fault: Fault | None = None,
        key: str | None = None,
        queue: int = 0,
        pause: float = 0.0,
        comments: float = 0.02,
        port: int = 0,
    ) -> None:
        super().__init__(self._answer, port=port)
        self.fault = fault
        self._slots = slots
        self._key = key
        self._queue = queue
        self._pause = pause
        self._comments = comments
        info = recording("tgi", "info").reply.json()
        self._pages = {
            "/info": json_reply({**info, "max_concurrent_requests": slots}),
            "/v1/models": recording("tgi", "models").raw,
        }

    async def serve(self, request: Request) -> None:
        if request.method == "GET":
            self.probes.append(request)
            await self._page(request.path, request.connection)
        else:
            await super().serve(request)

    async def _page(self, path: str, connection: Connection) -> None:
        if path not in ("/health", "/ping", "/", "/metrics"):
            await connection.send(self._pages.get(path) or reply(b"", *_CORS, status=404))
        elif path == "/metrics":
            await connection.send(reply(self._metrics(), "content-type: text/plain; charset=utf-8", *_CORS))
        elif self.fault is Fault.HANGS:
            await connection.wait_closed()
        else:
            await connection.send(recording("tgi", "dead-health" if self.fault is Fault.DEAD else "health").raw)

    def _metrics(self) -> bytes:
        """The gauges, which are not there before the first request."""
        if not self.requests:
            return b""
        running = min(self.running, self._slots)
        return (
            "# HELP tgi_batch_current_size Current batch size\n# TYPE tgi_batch_current_size gauge\n"
            f"tgi_batch_current_size {running}\n\n"
            "# HELP tgi_queue_size Current queue size\n# TYPE tgi_queue_size gauge\n"
            f"tgi_queue_size {self.running - running}\n\n"
        ).encode()

    async def _answer(self, request: Request, connection: Connection) -> None:
        if self._key is not None and request.headers.get("authorization") != f"Bearer {self._key}":
            await connection.send(reply(b"", *_CORS, status=401))
            return
        if request.path not in FORMS:
            await connection.send(reply(b"", *_CORS, status=404))
            return
        try:
            form = FORMS[request.path](request.path, request.body)
        except msgspec.ValidationError as exc:
            text = f"Failed to deserialize the JSON body into the target type: {exc}"
            await connection.send(_plain(text, 422))
        except msgspec.DecodeError as exc:
            await connection.send(_plain(f"Failed to parse the request body as JSON: {exc}", 400))
        else:
            await (self._stream if form.stream else self._whole)(form, connection)

    def _failure(self, form: Forms) -> tuple[str, str] | None:
        """The type and the text of what keeps it from beginning."""
        if self.running > self._slots:
            return "overloaded", "Model is overloaded"
        for prompt in form.prompts:
            if text := complaint(prompt, form.wanted, stream=form.stream):
                return "validation", text
        return ("generation", _DEAD) if self.fault is Fault.DEAD else None

    async def _whole(self, form: Forms, connection: Connection) -> None:
        failure = self._failure(form)
        if failure is None and self.fault is Fault.HANGS:
            await connection.wait_closed()
            return
        if failure is None and self.fault is Fault.BREAKS:
            await connection.reset()
            return
        if failure is None and self.fault is Fault.DIES:
            failure = "generation", _DIED
        if failure is not None:
            kind, text = failure
            await connection.send(json_reply({"error": text, "error_type": kind}, _STATUSES[kind], *_CORS))
            return
        answers = [generate(prompt, form.wanted) for prompt in form.prompts]
        await connection.send(json_reply(form.whole(answers), 200, *self._times(form, answers), *_CORS))

    def _times(self, form: Forms, answers: Sequence[Sequence[Token]]) -> list[str]:
        """`/v1/completions` has no `x-compute-time`."""
        number = sum(map(len, answers))
        inference = number * _TOKEN_TIME
        total = self._queue + inference
        told: dict[str, Any] = {
            "x-compute-type": "gpu+optimized",
            "x-compute-time": total / 1000,
            "x-compute-characters": form.characters,
            "x-total-time": total,
            "x-validation-time": 0,
            "x-queue-time": self._queue,
            "x-inference-time": inference,
            "x-time-per-token": inference // number,
            "x-prompt-tokens": sum(map(form.length, form.prompts)),
            "x-generated-tokens": number,
        }
        if isinstance(form, CompletionForm):
            del told["x-compute-time"]
        return [f"{name}: {value}" for name, value in told.items()]

    async def _stream(self, form: Forms, connection: Connection) -> None:
        """The head comes at once, whatever follows."""
        characters = f"x-compute-characters: {form.characters}"
        head = ("content-type: text/event-stream", "cache-control: no-cache", _COMPUTED, characters)
        await connection.send(http_ok(*head, "x-accel-buffering: no", *_CORS, "transfer-encoding: chunked"))
        failure = self._failure(form)
        if failure is None:
            failure = await self._tokens(form, connection)
        if failure is not None:
            await connection.send(_event(form.error(*failure)))
        if form.done:
            await connection.send(chunk(form.done))
        await connection.send(LAST_CHUNK)

    async def _tokens(self, form: Forms, connection: Connection) -> tuple[str, str] | None:
        """What went wrong."""
        answers = [generate(prompt, form.wanted) for prompt in form.prompts]
        for number, round_ in enumerate(zip_longest(*answers)):
            await connection.do(self._pause)
            if number == _BEFORE and self.fault is Fault.DIES:
                return "generation", _DIED
            if number == _BEFORE and self.fault is Fault.BREAKS:
                await connection.reset()
            if self.fault is Fault.HANGS:
                await self._comment(connection)
            for at, token in enumerate(round_):
                for event in form.events(at, token) if token is not None else ():
                    await connection.send(_event(event))
        return None

    async def _comment(self, connection: Connection) -> None:
        """Until the shard goes on, or the peer leaves."""
        while self.fault is Fault.HANGS:
            await connection.do(self._comments)
            await connection.send(chunk(b":\n\n"))


def _event(payload: object) -> bytes:
    return chunk(b"data: " + msgspec.json.encode(payload) + b"\n\n")


def _plain(text: str, status: int) -> bytes:
    return reply(text.encode(), "content-type: text/plain; charset=utf-8", *_CORS, status=status)


@asynccontextmanager
async def sluice(engine: ScriptedEngine, **fields: Any) -> AsyncIterator[RunningGateway]:
    """A gateway with this engine alone, `local`, which it asks for its model; that is also known as `alias`."""
    config = {"kind": "tgi", "url": engine.url, "probe": {"interval": 60}, **fields}
    async with gateway(engines={"local": config}, models={"alias": [{"engine": "local"}]}) as running:
        yield running
