"""One timeline a request: what happened when, beside what the engine says of its own work."""

import time

from gateway.upstream.facts import EngineReport

now = time.perf_counter


class Timeline:
    """Moments are `time.perf_counter` seconds; `None` has not happened. Spans, metrics and logs are made from it.

    received: the request's head was read.
    routed: its body was read, and it is known where it may go.
    admitted: it had a place at an engine, if it had to wait for one.
    dispatched: the request was given to the engine's transport.
    first_frame: the first bytes of the reply's body came.
    prefilling: the engine began to work on the prompt, if it tells; until then it let the request wait.
    first_output: the first text, reasoning or tool call came (for a reply in one piece: the reply).
    first_delivered: the first output had been handed to the client's connection.
    last_output: the latest output came.
    done: nothing more is sent or read.
    """

    __slots__ = (
        "admitted",
        "dispatched",
        "done",
        "first_delivered",
        "first_frame",
        "first_output",
        "last_output",
        "prefilling",
        "received",
        "report",
        "routed",
        "started_at",
    )

    def __init__(self) -> None:
        self.started_at = time.time()
        self.received = now()
        self.routed: float | None = None
        self.admitted: float | None = None
        self.dispatched: float | None = None
        self.first_frame: float | None = None
        self.prefilling: float | None = None
        self.first_output: float | None = None
        self.first_delivered: float | None = None
        self.last_output: float | None = None
        self.done: float | None = None
        self.report = EngineReport()

    def again(self) -> None:
        """The request has lost its place before anything of its answer was sent, and waits for another."""
        self.admitted = self.dispatched = self.first_frame = self.prefilling = self.first_output = None
        self.last_output = self.done = None
        self.report = EngineReport()

    def since(self, moment: float | None, start: float | None) -> float | None:
        """Seconds from `start` to `moment`, if both happened."""
        return None if moment is None or start is None else moment - start

    @property
    def ttft(self) -> float | None:
        """Time to first token as the client has it: from the request's head to its first output, in seconds."""
        return self.since(self.first_output, self.received)

    @property
    def queued(self) -> float | None:
        """How long it waited for a place at an engine, in seconds; `None` if it had not to."""
        return self.since(self.admitted, self.routed)

    @property
    def engine_queue(self) -> float | None:
        """How long the engine let the request wait, in seconds: as it says, or as its first word on prefill shows."""
        told = self.report.queue
        if told is not None or self.prefilling is None or self.dispatched is None:
            return told
        return max(0.0, self.prefilling - self.dispatched)

    def server_timing(self) -> bytes:
        """The value of a `Server-Timing` header (milliseconds), with the phases known so far."""
        report = self.report
        own = self.since(self.dispatched, self.received)
        if own is not None and self.queued is not None:
            own -= self.queued
        phases = (
            ("gateway", own),
            ("queue", self.queued),
            ("ttft", self.ttft),
            ("total", self.since(self.done, self.received)),
            ("engine-queue", self.engine_queue),
            ("engine-load", report.load),
            ("engine-prefill", report.prefill),
            ("engine-decode", report.decode),
        )
        return ", ".join([f"{name};dur={took * 1000:.2f}" for name, took in phases if took is not None]).encode()
