"""What `sluice demo` shows while the gateway runs: the engines getting ready, one question, and how to go on."""

import json
import shlex
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TextIO

import anyio
import msgspec

from gateway.upstream.http import httpx

CONFIG_PATH = Path(__file__).with_name("demo.yaml")
PATIENCE = 120.0
"""Seconds that the engines may take to get ready."""
POLL = 0.25
QUESTION = "Why is the sky blue? Answer in three sentences."


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class _Engine(msgspec.Struct):
    state: str
    reason: str = ""


class _Ready(msgspec.Struct):
    engines: dict[str, _Engine]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Failure(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Failure | None = None


async def tour(base_url: str, key: str, model: str, out: TextIO) -> None:
    """Waits until every engine is ready, asks `model` one question, and says how to use the gateway.

    `base_url` is the gateway's, without `/v1`. Raises DemoError if the engines do not get ready, or if the question
    is not answered.
    """
    base_url = base_url.rstrip("/")
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=60.0, trust_env=False) as client:
        await _until_ready(client, out)
        await _ask(client, model, out)
    _say(out, _how_to_go_on(f"{base_url}/v1", key, model))


async def _until_ready(client: httpx.AsyncClient, out: TextIO) -> None:
    progress = _Progress(out)
    engines: dict[str, _Engine] = {}
    with anyio.move_on_after(PATIENCE):
        while not engines or any(engine.state != "ready" for engine in engines.values()):
            await anyio.sleep(POLL)
            engines = await _engines(client)
            progress.show(engines)
    progress.end()
    missing = [f"{name}: {_words(engine)}" for name, engine in engines.items() if engine.state != "ready"]
    if missing or not engines:
        reasons = missing or ["the gateway does not answer"]
        raise DemoError("\n  ".join([f"not ready after {PATIENCE:.0f} s:", *reasons]))


async def _engines(client: httpx.AsyncClient) -> dict[str, _Engine]:
    """Each engine's state; empty while the gateway itself is not ready to tell."""
    try:
        response = await client.get("/health/ready")
        return msgspec.json.decode(response.content, type=_Ready).engines
    except (httpx.TransportError, msgspec.MsgspecError):
        return {}


class _Progress:
    """One line: rewritten in place on a terminal, written again when it has changed elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = time.monotonic()
        self._last = ""
        self._in_place = out.isatty()

    def show(self, engines: dict[str, _Engine]) -> None:
        states = " · ".join(f"{name}: {_words(engine)}" for name, engine in engines.items())
        line = f"Starting llama.cpp  {states or '...'}"
        if self._in_place:
            line = f"{line}  {time.monotonic() - self._began:.0f} s"
            self._out.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
            self._out.flush()
        elif line != self._last:
            _say(self._out, line)
        self._last = line

    def end(self) -> None:
        if self._in_place and self._last:
            _say(self._out, "")


def _words(engine: _Engine) -> str:
    return f"{engine.state} ({engine.reason})" if engine.reason else engine.state


async def _ask(client: httpx.AsyncClient, model: str, out: TextIO) -> None:
    request = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 120,
        "temperature": 0,
    }
    _say(out, f"\nYou: {QUESTION}")
    out.write(f"{model}: ")
    out.flush()
    asked = time.perf_counter()
    arrivals: list[float] = []
    tokens = 0
    try:
        async with (
            client.stream("POST", "/v1/chat/completions", json=request) as response,
            aclosing(_events(response)) as events,
        ):
            async for event in events:
                text = "".join(choice.delta.content or "" for choice in event.choices)
                if text:
                    arrivals.append(time.perf_counter())
                    out.write(text)
                    out.flush()
                if event.usage is not None:
                    tokens = event.usage.completion_tokens
    except (httpx.TransportError, msgspec.MsgspecError) as error:
        raise DemoError(f"the question was not answered: {error or type(error).__name__}") from error
    if not arrivals:
        raise DemoError("the answer was empty")
    took = arrivals[-1] - arrivals[0]
    speed = f", {((tokens or len(arrivals)) - 1) / took:.0f} tokens/s" if took > 0 else ""
    _say(out, f"\n[first token after {(arrivals[0] - asked) * 1000:.0f} ms{speed}]")


async def _events(response: httpx.Response) -> AsyncGenerator[_Event, None]:
    if response.status_code != 200:
        raise _refusal(msgspec.json.decode(await response.aread(), type=_Event))
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if data and line.startswith(b"data:"):
                event = msgspec.json.decode(data, type=_Event)
                if event.error is not None:
                    raise _refusal(event)
                yield event


def _refusal(event: _Event) -> DemoError:
    message = event.error.message if event.error is not None else "no reason was given"
    return DemoError(f"the question was not answered: {message}")


def _how_to_go_on(endpoint: str, key: str, model: str) -> str:
    messages = [{"role": "user", "content": "Hello!"}]
    body = shlex.quote(json.dumps({"model": model, "messages": messages}))
    return f"""
Sluice is running. Ctrl-C ends everything.

  endpoint  {endpoint}
  API key   {key}

With curl:

curl {endpoint}/chat/completions \\
  -H {shlex.quote(f"Authorization: Bearer {key}")} \\
  -H 'Content-Type: application/json' \\
  -d {body}

With Python (pip install openai):

from openai import OpenAI
client = OpenAI(base_url={json.dumps(endpoint)}, api_key={json.dumps(key)})
reply = client.chat.completions.create(model={json.dumps(model)}, messages={json.dumps(messages)})
print(reply.choices[0].message.content)
"""


def _say(out: TextIO, text: str) -> None:
    out.write(f"{text}\n")
    out.flush()
