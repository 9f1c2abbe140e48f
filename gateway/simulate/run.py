"""A workload against simulated engines, through the gateway's own router, policies and queue, in virtual time."""

import asyncio
import contextlib
import math
from functools import partial
from typing import NamedTuple

import msgspec

from gateway.errors import GatewayError
from gateway.fleet import Route
from gateway.lease import PlannedLease
from gateway.policy import canary
from gateway.policy.load import Setup
from gateway.policy.rates import TokenRatio
from gateway.request import Endpoint, Features, InferenceRequest
from gateway.router import Client, Plan, Router
from gateway.simulate import virtual
from gateway.simulate.arrivals import Arrival, draw
from gateway.simulate.engine import Build, Job, SimulatedEngine
from gateway.simulate.fairness import Fairness
from gateway.simulate.fleet import TELL_LOADED, TELL_TIMES, SimulatedFleet
from gateway.simulate.schema import Simulation
from gateway.upstream.facts import EngineReport

_HOUR = 3600


class Outcome(msgspec.Struct, kw_only=True):
    """What became of a request. Times are seconds, from its arrival where nothing else is said.

    Attributes:
        at: of its arrival, from the beginning.
        tier, engine, engine_model: where it went, if it did.
        preferred: whether that was the first tier of those that the policy gives it.
        status: as the client got it; `code` is `ok`, `cut`, or that of the error.
        waited: until it had a place, or was refused one.
        output: tokens of the answer.
        cached: tokens of the prompt that were not computed.
    """

    at: float
    kind: str
    key: str
    model: str
    prompt: int
    priority: str = "normal"
    tier: str | None = None
    engine: str | None = None
    engine_model: str | None = None
    preferred: bool = True
    status: int = 200
    code: str = "ok"
    retry_after: float | None = None
    waited: float = 0.0
    ttft: float | None = None
    total: float = 0.0
    output: int = 0
    cached: int = 0

    @property
    def answered(self) -> bool:
        return self.status == 200


class Work(NamedTuple):
    """What an engine did.

    Attributes:
        places: its slots, or fewer if the gateway gives it no more requests at once.
        used: the share of those places that was taken, over the whole time.
        computed, cached, output: tokens of prompts, and of answers.
    """

    kind: str
    build: Build
    places: int
    used: float
    computed: int
    cached: int
    output: int
    loads: int


class Result(NamedTuple):
    """A whole simulation. `seconds` is how long it took until the last request had its answer."""

    seconds: float
    outcomes: list[Outcome]
    engines: dict[str, Work]
    fairness: Fairness


def simulate(setup: Setup, simulation: Simulation) -> Result:
    """Runs it to its end. The same input has the same result."""
    return virtual.run(lambda: _Run(setup, simulation).run())


class _Run:
    def __init__(self, setup: Setup, simulation: Simulation) -> None:
        self._workload = simulation.workload
        self._loop = asyncio.get_running_loop()
        self._played = SimulatedFleet(setup, simulation.engines)
        self._router = Router(
            setup.config,
            self._played.fleet,
            setup.policies,
            clock=self._loop.time,
            hour=self._hour,
            seed=self._workload.seed,
        )
        self._classes = {key.name: key.priority for key in setup.config.server.keys}
        self._fairness = Fairness()
        self._outcomes: list[Outcome] = []

    async def run(self) -> Result:
        played, router = self._played, self._router
        try:
            async with router.running(), asyncio.TaskGroup() as tasks:
                watching = [tasks.create_task(played.watch(name)) for name in played.engines]
                async with asyncio.TaskGroup() as requests:
                    for arrival in draw(self._workload):
                        await asyncio.sleep(arrival.at - self._loop.time())
                        requests.create_task(self._request(arrival))
                for watch in watching:
                    watch.cancel()
        finally:
            await played.aclose()
        ends = (one.at + one.total for one in self._outcomes)
        seconds = max(self._workload.duration, max(ends, default=0.0))
        work = {name: self._work(name, engine, seconds) for name, engine in played.engines.items()}
        return Result(seconds, self._outcomes, work, self._fairness)

    def _hour(self) -> int:
        return (self._workload.hour + int(self._loop.time() // _HOUR)) % 24

    def _work(self, name: str, engine: SimulatedEngine, seconds: float) -> Work:
        config, slots = self._played.config.engines[name], engine.build.slots
        places = min(slots, config.concurrency or slots)
        used = engine.busy / places / seconds
        return Work(
            config.kind, engine.build, places, used, engine.computed, engine.cached, engine.output, engine.loads
        )

    # One request, as `gateway.api.inference` has it

    async def _request(self, arrival: Arrival) -> None:
        outcome = Outcome(
            at=arrival.at, kind=arrival.kind, key=arrival.key, model=arrival.asked.model, prompt=arrival.prompt
        )
        self._outcomes.append(outcome)
        try:
            await self._serve(arrival, outcome)
        except GatewayError as error:
            outcome.status, outcome.code, outcome.retry_after = error.status, error.code, error.retry_after
        outcome.total = self._loop.time() - arrival.at

    async def _serve(self, arrival: Arrival, outcome: Outcome) -> None:
        request, client = _request(arrival), self._client(arrival)
        plan = self._router.plan(request, client)
        outcome.priority = plan.priority
        if (copy := self._router.copy(plan, client)) is not None:
            self._router.in_background(partial(self._send_copy, arrival, copy, request, client))
        deadline = plan.verdict.deadline
        job: Job | None = None
        try:
            async with asyncio.timeout_at(None if deadline is None else arrival.at + deadline):
                async with self._router.lease(plan, request, client) as lease:
                    while job is None:
                        claimants = await self._wait(lease, arrival, outcome)
                        job = _job(arrival, lease.place, plan, request)
                        _went(outcome, plan, lease.place)
                        if not await self._run_job(job, lease, request, claimants):
                            job = None
                            _lost(outcome)
        except TimeoutError:
            cut = plan.verdict.cut and request.stream and job is not None and job.first_token is not None
            outcome.status, outcome.code = (200, "cut") if cut else (504, "deadline_passed")
        if job is not None:
            _saw(outcome, job, stream=request.stream)
            self._judge(outcome, job, request)

    async def _wait(self, lease: PlannedLease[Plan], arrival: Arrival, outcome: Outcome) -> frozenset[str]:
        """Waits for a place. The keys that had the same claim to it are returned; none where it was free."""
        if not lease.waited:
            return frozenset()
        self._fairness.waits(lease.ask, arrival.asked.model)
        try:
            await lease.granted(math.inf)
            return self._fairness.claimants(lease.ask)
        finally:
            self._fairness.leaves(lease.ask)
            outcome.waited = self._loop.time() - arrival.at

    async def _run_job(
        self, job: Job, lease: PlannedLease[Plan], request: InferenceRequest, claimants: frozenset[str]
    ) -> bool:
        """Runs it to its end; `False` if its place was needed for a request of a higher class before."""
        place = lease.place
        engine = self._played.engines[place.backend.name]
        lease.ask.preempt = partial(engine.drop, job)
        if request.stream:
            job.begins = lease.keep
        try:
            await engine.serve(job)
        finally:
            if lease.ask.granted is place:
                self._fairness.got(lease.ask.key, claimants, job.prompt + job.output)
        if job.ended is not None:
            self._learn(job, place, request)
        return job.ended is not None

    async def _send_copy(self, arrival: Arrival, plan: Plan, request: InferenceRequest, client: Client) -> None:
        """As `gateway.api.shadow` has it: nobody waits for it, and it gives way to all others."""
        with contextlib.suppress(GatewayError):
            async with self._router.lease(plan, request, client) as lease:
                await lease.granted(math.inf)
                place, job = lease.place, _job(arrival, lease.place, plan, request)
                engine = self._played.engines[place.backend.name]
                lease.ask.preempt = partial(engine.drop, job)
                await engine.serve(job)
                if job.ended is not None:
                    self._learn(job, place, request)

    def _judge(self, outcome: Outcome, job: Job, request: InferenceRequest) -> None:
        """Has a canary know of it."""
        if outcome.tier is None:
            return
        ttft = job.first_token - job.sent if request.stream and job.first_token is not None else None
        self._router.trials.learn(request.model, outcome.tier, canary.Outcome(not outcome.answered, ttft))

    def _learn(self, job: Job, place: Route, request: InferenceRequest) -> None:
        now = self._loop.time()
        prefilling = job.sent if job.prefilling is None else job.prefilling
        first = now if job.first_token is None else job.first_token
        kind = self._played.config.engines[place.backend.name].kind
        tells = kind in TELL_TIMES
        report = EngineReport(
            prompt_tokens=job.prompt,
            completion_tokens=job.output,
            cached_tokens=job.cached,
            prefill=first - prefilling if tells else None,
            decode=now - first if tells else None,
        )
        if job.loaded is not None and kind in TELL_LOADED:
            place.backend.learn_load_time(place.model, job.loaded)
        place.rates.learn(report, held=now - job.sent, ttft=first - job.sent if request.stream else None)
        if not request.features.images:
            self._router.ratio(request.model).learn(request.features.size, job.prompt)

    def _client(self, arrival: Arrival) -> Client:
        asked = arrival.asked
        headers = {name.lower().encode(): value.encode() for name, value in asked.headers.items()}
        priority = asked.priority or self._classes.get(arrival.key, "normal")
        return Client(arrival.key, priority, asked.dialect, headers)


def _request(arrival: Arrival) -> InferenceRequest:
    asked = arrival.asked
    body = msgspec.json.encode({"max_tokens": asked.max_tokens} if asked.max_tokens else {})
    features = Features(
        size=round(arrival.prompt / TokenRatio.START),
        max_tokens=asked.max_tokens or 0,
        images=asked.images,
        tools=asked.tools,
        structured=asked.structured,
    )
    return InferenceRequest(Endpoint.CHAT, body, asked.model, asked.stream, 1, features)


def _limit(plan: Plan, request: InferenceRequest) -> int | None:
    """The most tokens that the answer may have, once rules have set or capped it."""
    if not plan.verdict.set and not plan.verdict.cap:
        return request.features.max_tokens or None
    return msgspec.json.decode(request.with_fields(plan.verdict.set, plan.verdict.cap).body, type=_Limit).max_tokens


def _job(arrival: Arrival, place: Route, plan: Plan, request: InferenceRequest) -> Job:
    output = min(arrival.output, _limit(plan, request) or arrival.output)
    return Job(place.model, arrival.prompt, output, arrival.prefix, arrival.prefix_tokens)


class _Limit(msgspec.Struct):
    max_tokens: int | None = None


def _went(outcome: Outcome, plan: Plan, place: Route) -> None:
    tier = next((name for name, places in plan.tiers if place in places), None)
    outcome.tier, outcome.engine, outcome.engine_model = tier, place.backend.name, place.model
    outcome.preferred = tier == plan.verdict.tiers[0]


def _lost(outcome: Outcome) -> None:
    """Its place was needed for another."""
    outcome.tier, outcome.engine, outcome.engine_model, outcome.preferred = None, None, None, True


def _saw(outcome: Outcome, job: Job, *, stream: bool) -> None:
    """What the client had of it; an answer in one piece comes at its end."""
    outcome.cached = job.cached
    if outcome.answered:
        outcome.output = job.produced
    first = job.first_token if stream else job.ended
    if first is not None:
        outcome.ttft = first - outcome.at
