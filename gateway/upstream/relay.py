"""Carries an engine's answer to the client: bytes as they come, checked for being whole."""

import contextlib
import time
from typing import Protocol

import anyio

from gateway.errors import EngineFailed
from gateway.guard import Guard
from gateway.telemetry.timeline import Timeline
from gateway.upstream.attempt import Answer
from gateway.upstream.http import httpx
from gateway.upstream.refusal import read_error_event
from gateway.upstream.reply import Reply

FAREWELL = "farewell"
"""The limit in force once the answer is whole. When it passes, `StreamRelay.end` does what the engine did not."""
_FAREWELL_TIME = 10.0
"""Seconds that an engine has after the whole answer to tell its usage and give the end mark."""
_LINGER = 1.0
"""Seconds that an engine has after the end mark to end its reply properly, so that its connection can be used again."""


class Client(Protocol):
    """Where an answer goes."""

    @property
    def started(self) -> bool: ...

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    def write_now(self, data: bytes) -> bool: ...
    async def write(self, data: bytes) -> None: ...
    async def finish(self, data: bytes = b"") -> None: ...
    async def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None: ...


async def relay_whole(
    answer: Answer,
    client: Client,
    guard: Guard,
    timeline: Timeline,
    headers: list[tuple[bytes, bytes]],
    *,
    max_bytes: int,
    stall: float,
) -> None:
    """Relays an answer in one piece, once all of it is there and known to be JSON.

    Raises:
        EngineFailed: it broke off, is larger than `max_bytes`, or is not an answer.
    """
    backend = answer.backend
    idle = answer.timeouts.idle
    parts: list[bytes] = []
    size = 0
    try:
        async for data in answer.chunks:
            now = time.perf_counter()
            if timeline.first_frame is None:
                timeline.first_frame = now
            guard.until("idle", now + idle)
            backend.progressed_at = now
            parts.append(data)
            size += len(data)
            if size > max_bytes:
                raise EngineFailed(f"The answer of engine `{backend.name}` is larger than {max_bytes} bytes.")
    except httpx.RequestError as exc:
        raise answer.broken(exc) from exc
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    try:
        if answer.reader is not None:
            body = answer.reader.whole(body)
        timeline.report = answer.form.read_answer(body)
        if answer.reader is not None:
            timeline.report = timeline.report.with_more(answer.reader.report)
    except (ValueError, RecursionError):
        raise EngineFailed(f"Engine `{backend.name}` answered with something that is no answer.") from None
    timeline.first_output = timeline.last_output = timeline.done = time.perf_counter()
    head = [
        (b"content-type", answer.content_type if answer.reader is None else b"application/json"),
        *headers,
        (b"server-timing", timeline.server_timing()),
    ]
    guard.until("stall", time.perf_counter() + stall)
    await client.reply(200, head, body)
    timeline.first_delivered = timeline.done = time.perf_counter()


class StreamRelay:
    """Relays a stream of events.

    Nothing goes to the client before the first output, so that an engine which fails until then leaves no trace.
    From then on events go on as they come, and the stream ends with its end mark only if the answer is whole.
    """

    def __init__(
        self,
        answer: Answer,
        client: Client,
        guard: Guard,
        timeline: Timeline,
        headers: list[tuple[bytes, bytes]],
        *,
        choices: int,
        max_event_bytes: int,
        stall: float,
    ) -> None:
        self.scanner = answer.form.scanner(choices, max_event_bytes)
        self.scanner.hides_progress = answer.hides_progress
        self._answer = answer
        self._client = client
        self._guard = guard
        self._timeline = timeline
        self._reader = answer.reader
        self._headers = headers
        self._max_held = max_event_bytes
        self._stall = stall
        self._held = b""
        self._unsent = b""
        self._idle = answer.timeouts.idle
        self._limit = "ttft"
        self._deadline = (timeline.dispatched or timeline.received) + answer.timeouts.ttft

    async def run(self) -> None:
        """
        Raises:
            EngineFailed: the answer is not whole. What came of it has been relayed if there was any output.
        """
        if not self._answer.streams:
            raise EngineFailed(f"Engine `{self._answer.backend.name}` answered a streaming request with no stream.")
        self._guard.until(self._limit, self._deadline)
        try:
            await self._carry()
        except httpx.RequestError as exc:
            if not self.scanner.whole:
                raise self._answer.broken(exc) from exc
        finally:
            self._report()
        await self.end()

    def _report(self) -> None:
        report = self.scanner.report
        self._timeline.report = report if self._reader is None else report.with_more(self._reader.report)

    async def _carry(self) -> None:
        """Relays until the stream ends, or says that what follows does not count."""
        chunks = self._answer.chunks
        async for data in chunks:
            await self._send(self._scan(data))
            if isinstance(chunks, Reply) and self._client.started and not self._over:
                await chunks.push(self._relay_now)
                await self._write_unsent()
            if self._over:
                return

    async def _write_unsent(self) -> None:
        block, self._unsent = self._unsent, b""
        if block:
            await self._write(block)

    @property
    def _over(self) -> bool:
        scanner = self.scanner
        return bool(scanner.done or scanner.error) or scanner.too_large or len(self._held) > self._max_held

    def _scan(self, data: bytes) -> bytes:
        """Notes what `data` says and when it came; returns what may go to the client now, and holds the rest."""
        scanner, timeline = self.scanner, self._timeline
        block = scanner.feed(data if self._reader is None else self._reader.feed(data))
        now = time.perf_counter()
        self._answer.backend.progressed_at = now
        if timeline.first_frame is None:
            timeline.first_frame = now
        if timeline.prefilling is None and scanner.prefilling is not None:
            timeline.prefilling = now - scanner.prefilling
        if scanner.output:
            timeline.last_output = now
            if timeline.first_output is None:
                timeline.first_output = now
            self._limit, self._deadline = "idle", now + self._idle
            self._guard.until("idle", self._deadline)
        if scanner.whole and (scanner.output or self._limit != FAREWELL):
            self._limit, self._deadline = FAREWELL, now + _FAREWELL_TIME
            self._guard.until(FAREWELL, self._deadline)
        if scanner.done or scanner.error or not scanner.started:
            self._held += block
            return b""
        return block

    def _relay_now(self, data: bytes) -> bool:
        """Relays a chunk without waiting; `False` when there is something to wait for, or the stream is over."""
        block = self._scan(data)
        if block and not self._client.write_now(block):
            self._unsent = block
            return False
        return not self._over

    async def _send(self, block: bytes) -> None:
        if block and not (self._client.started and self._client.write_now(block)):
            await self._write(block)

    async def _write(self, block: bytes) -> None:
        """Writes what must be waited for; a block that `write_now` did not take goes here and not there again."""
        client, timeline = self._client, self._timeline
        self._guard.until("stall", time.perf_counter() + self._stall)
        if not client.started:
            block = await self._start(block)
        await client.write(block)
        now = time.perf_counter()
        if timeline.first_delivered is None:
            timeline.first_delivered = now
        if self._limit != "ttft":  # the engine was held back meanwhile: its silence was not its own
            self._deadline = max(self._deadline, now + (self._idle if self._limit == "idle" else _FAREWELL_TIME))
        self._guard.until(self._limit, self._deadline)

    async def _start(self, block: bytes) -> bytes:
        """Sends the head, and returns what was held before `block` together with it."""
        await self._client.start(
            200,
            [
                (b"content-type", self._answer.content_type if self._reader is None else b"text/event-stream"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                *self._headers,
                (b"server-timing", self._timeline.server_timing()),
            ],
        )
        block, self._held = self._held + block, b""
        return block

    async def end(self) -> None:
        """Ends the client's stream as the engine's has ended, or as it should have after a whole answer."""
        scanner = self.scanner
        await self._write_unsent()
        if scanner.too_large or len(self._held) > self._max_held:
            raise EngineFailed(f"Engine `{self._answer.backend.name}` sent an event above {self._max_held} bytes.")
        last = scanner.feed(self._reader.flush()) if self._reader is not None else b""
        last += scanner.flush()
        self._report()
        if scanner.error:
            if self._client.started and self._held:
                await self._client.write(self._held)
            raise read_error_event(self._answer.backend.name, scanner.error)
        if not scanner.whole:
            if self._client.started and (held := self._held + last):
                await self._client.write(held)
            raise EngineFailed(f"Engine `{self._answer.backend.name}` ended its stream before its answer was whole.")
        self._guard.until("stall", time.perf_counter() + self._stall)
        if not self._client.started:
            last = await self._start(last)
        await self._client.finish(self._held + last + (scanner.done or scanner.END))
        if self._timeline.first_delivered is None:
            self._timeline.first_delivered = time.perf_counter()
        self._timeline.done = time.perf_counter()
        await self._linger()

    async def cut_short(self) -> bool:
        """Ends a stream that has begun as if it had reached its limit; `False` where that cannot be done."""
        end = self.scanner.cut_short() if self._client.started else b""
        if not end:
            return False
        await self._write_unsent()
        await self._client.finish(self._held + end + self.scanner.END)
        self.scanner.finish_reason = "length"
        self._timeline.done = time.perf_counter()
        return True

    async def _linger(self) -> None:
        with anyio.move_on_after(_LINGER):
            with contextlib.suppress(httpx.RequestError):
                async for data in self._answer.chunks:
                    if data.strip():
                        return
