"""A simulated engine: slots, a queue, models to load, a cache of prefixes, and speeds that fall with load."""

import asyncio
import enum
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

_INSTANT = 1e-9
"""Seconds that are less than what can be told apart."""


class Pace(msgspec.Struct, frozen=True):
    """How fast an engine is with a model; see `gateway.simulate.schema.Speed`."""

    prefill: float
    decode: float
    decode_full: float
    load: float


class Build(NamedTuple):
    """What an engine is like; see `gateway.simulate.schema.Box`.

    Attributes:
        paces: by the names of its models.
        memory: `None` is room for all.
        keep_alive: `None` is for ever.
        cold: whether no model is in memory at the beginning.
    """

    slots: int
    paces: dict[str, Pace]
    cache: int = 0
    memory: int | None = None
    keep_alive: float | None = None
    cold: bool = False


class _Phase(enum.Enum):
    LOAD = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()


class Job:
    """A request at an engine, and when what happened to it. Times are those of the loop.

    Attributes:
        begins: called when it has its first token.
        cached: tokens of the prompt that were not computed.
        sent: when it was made.
        loaded: seconds for which it waited until its model was in memory, if it had to.
        prefilling, first_token, ended: `None` until then.
    """

    def __init__(self, model: str, prompt: int, output: int, prefix: str = "", prefix_tokens: int = 0) -> None:
        self.model = model
        self.prompt = prompt
        self.output = output
        self.prefix = prefix
        self.prefix_tokens = prefix_tokens
        self.begins: Callable[[], None] | None = None
        self.cached = 0
        self.sent = asyncio.get_running_loop().time()
        self.loaded: float | None = None
        self.prefilling: float | None = None
        self.first_token: float | None = None
        self.ended: float | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.phase = _Phase.LOAD
        self.left = 0.0
        """Tokens of the phase, or seconds of a load."""
        self.rate = 1.0
        """How many of them go by in a second."""

    @property
    def produced(self) -> int:
        """Tokens of the answer so far."""
        if self.first_token is None:
            return 0
        return self.output if self.ended is not None else self.output - math.ceil(self.left)


class SimulatedEngine:
    """Runs jobs in the time of the running loop.

    Attributes:
        busy: seconds of its slots that were taken.
        computed, cached, output: tokens of prompts, and of answers.
        loads: how often a model was loaded.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self.busy = 0.0
        self.computed = 0
        self.cached = 0
        self.output = 0
        self.loads = 0
        self._loop = asyncio.get_running_loop()
        self._then = self._loop.time()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._timer: asyncio.TimerHandle | None = None
        self._prefixes = _Prefixes(build.cache)
        room = 0 if build.cold else len(build.paces) if build.memory is None else build.memory
        self._memory = OrderedDict((model, _Resident(self._then)) for model in list(build.paces)[:room])
        """Models in memory or on their way there, the one used longest ago first."""

    async def serve(self, job: Job) -> None:
        """Runs it to its end, or until it is dropped; a caller that is cancelled takes it out."""
        self._waiting.append(job)
        self._advance()
        try:
            await job.done
        finally:
            if job.ended is None:
                self._take_out(job)

    def drop(self, job: Job) -> None:
        """Has `serve` return now, without the end of the job."""
        if not job.done.done():
            self._take_out(job)
            job.done.set_result(None)

    def in_memory(self) -> frozenset[str]:
        """Models that are there now."""
        now = self._loop.time()
        return frozenset(
            model for model, one in self._memory.items() if one.ready_at <= now and not self._expired(model, now)
        )

    def _take_out(self, job: Job) -> None:
        if job in self._running:
            self._advance()
        if job in self._running:
            self._running.remove(job)
            self._rest(job)
        elif job in self._waiting:
            self._waiting.remove(job)
        self._advance()

    # Time

    def _advance(self) -> None:
        """Brings all jobs to the present, and sets a timer for the next one that has done a phase."""
        now = self._loop.time()
        elapsed, self._then = now - self._then, now
        self.busy += elapsed * len(self._running)
        for job in self._running:
            job.left -= elapsed * job.rate
        for job in list(self._running):
            while job.ended is None and job.left <= job.rate * _INSTANT:
                self._next_phase(job, now)
        self._admit(now)
        self._set_rates()
        if self._timer is not None:
            self._timer.cancel()
        wait = min((job.left / job.rate for job in self._running), default=math.inf)
        self._timer = self._loop.call_at(now + wait, self._advance) if math.isfinite(wait) else None

    def _set_rates(self) -> None:
        active = sum(job.phase is not _Phase.LOAD for job in self._running)
        prefilling = sum(job.phase is _Phase.PREFILL for job in self._running)
        crowd = (active - 1) / (self.build.slots - 1) if self.build.slots > 1 else 0.0
        for job in self._running:
            pace = self.build.paces[job.model]
            if job.phase is _Phase.PREFILL:
                job.rate = pace.prefill / prefilling
            elif job.phase is _Phase.DECODE:
                job.rate = 1 / (1 / pace.decode + crowd * (1 / pace.decode_full - 1 / pace.decode))

    def _next_phase(self, job: Job, now: float) -> None:
        if job.phase is _Phase.LOAD:
            self._begin(job, now)
        elif job.phase is _Phase.PREFILL:
            self._prefixes.keep(job.model, job.prefix, job.prefix_tokens)
            job.first_token = now
            job.phase, job.left = _Phase.DECODE, job.output - 1
            self.computed += job.prompt - job.cached
            self.cached += job.cached
            if job.begins is not None:
                job.begins()
        else:
            job.ended = now
            self.output += job.output
            self._running.remove(job)
            self._rest(job)
            if not job.done.done():
                job.done.set_result(None)

    def _begin(self, job: Job, now: float) -> None:
        job.prefilling = now
        job.cached = min(job.prefix_tokens, self._prefixes.find(job.model, job.prefix))
        job.phase, job.left = _Phase.PREFILL, job.prompt - job.cached

    # Slots and memory

    def _admit(self, now: float) -> None:
        """In the order in which they came: where the first must wait for memory, so must those behind it."""
        while self._waiting and len(self._running) < self.build.slots:
            job = self._waiting[0]
            resident = self._make_resident(job.model, now)
            if resident is None:
                return
            self._running.append(self._waiting.popleft())
            resident.jobs += 1
            if resident.ready_at > now:
                job.loaded = job.left = resident.ready_at - now
            else:
                self._begin(job, now)

    def _make_resident(self, model: str, now: float) -> "_Resident | None":
        """The model in memory, or on its way there; `None` while all memory is taken by models at work."""
        for old in [one for one in self._memory if self._expired(one, now)]:
            self._unload(old)
        if model not in self._memory:
            if self.build.memory is not None and len(self._memory) >= self.build.memory:
                idle = next((old for old, one in self._memory.items() if not one.jobs), None)
                if idle is None:
                    return None
                self._unload(idle)
            load = self.build.paces[model].load
            self.loads += load > 0
            self._memory[model] = _Resident(now + load)
        self._memory.move_to_end(model)
        return self._memory[model]

    def _rest(self, job: Job) -> None:
        if job.model in self._memory and self._memory[job.model].jobs:
            self._memory[job.model].jobs -= 1
            self._memory[job.model].used_at = self._loop.time()

    def _expired(self, model: str, now: float) -> bool:
        one, limit = self._memory[model], self.build.keep_alive
        return limit is not None and not one.jobs and now - max(one.used_at, one.ready_at) > limit

    def _unload(self, model: str) -> None:
        del self._memory[model]
        self._prefixes.forget(model)


class _Prefixes:
    """Beginnings of prompts whose computation is kept; that used longest ago makes room."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._taken = 0
        self._kept: OrderedDict[tuple[str, str], int] = OrderedDict()

    def find(self, model: str, prefix: str) -> int:
        """How many of its tokens are there."""
        if (model, prefix) in self._kept:
            self._kept.move_to_end((model, prefix))
        return self._kept.get((model, prefix), 0)

    def keep(self, model: str, prefix: str, tokens: int) -> None:
        if not 0 < tokens <= self._room:
            return
        self._taken += tokens - self._kept.pop((model, prefix), 0)
        self._kept[model, prefix] = tokens
        while self._taken > self._room:
            self._taken -= self._kept.popitem(last=False)[1]

    def forget(self, model: str) -> None:
        for kept in [kept for kept in self._kept if kept[0] == model]:
            self._taken -= self._kept.pop(kept)


class _Resident:
    """A model in memory, or on its way there."""

    def __init__(self, ready_at: float) -> None:
        self.ready_at = ready_at
        self.used_at = ready_at
        self.jobs = 0
