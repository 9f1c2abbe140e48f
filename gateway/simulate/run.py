"""A workload against simulated engines, through the gateway's own router, policies and queue, in virtual time."""

import asyncio
import math
from typing import NamedTuple

import msgspec

from gateway.admission import Lease
from gateway.errors import GatewayError
from gateway.fleet import Route
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
        used: the share of its slots that was taken, over the whole time.
        computed, cached, output: tokens of prompts, and of answers.
    """

    kind: str
    build: Build
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
        seconds = max(self._workload.duration, max(one.at + one.total for one in self._outcomes))
        work = {name: self._work(name, engine, seconds) for name, engine in played.engines.items()}
        return Result(seconds, self._outcomes, work, self._fairness)

    def _hour(self) -> int:
        return (self._workload.hour + int(self._loop.time() // _HOUR)) % 24

    def _work(self, name: str, engine: SimulatedEngine, seconds: float) -> Work:
        kind = self._played.config.engines[name].kind
        used = engine.busy / engine.build.slots / seconds
        return Work(kind, engine.build, used, engine.computed, engine.cached, engine.output, engine.loads)

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
        deadline = plan.verdict.deadline
        job: Job | None = None
        try:
            async with asyncio.timeout_at(None if deadline is None else arrival.at + deadline):
                async with self._router.lease(plan, request, client) as lease:
                    try:
                        await self._wait(lease, arrival)
                    finally:
                        outcome.waited = self._loop.time() - arrival.at
                    place = lease.place
                    job = Job(
                        place.model,
                        arrival.prompt,
                        min(arrival.output, _limit(plan, request) or arrival.output),
                        arrival.prefix,
                        arrival.prefix_tokens,
                    )
                    _went(outcome, plan, place)
                    await self._run_job(job, place, request)
        except TimeoutError:
            cut = plan.verdict.cut and request.stream and job is not None and job.first_token is not None
            outcome.status, outcome.code = (200, "cut") if cut else (504, "deadline_passed")
        if job is not None:
            _saw(outcome, job, stream=request.stream)

    async def _wait(self, lease: Lease[Route], arrival: Arrival) -> None:
        if not lease.waited:
            return
        self._fairness.waits(lease.ask, arrival.asked.model)
        try:
            await lease.granted(math.inf)
            self._fairness.granted(lease.ask, arrival.prompt + arrival.output)
        finally:
            self._fairness.leaves(lease.ask)

    async def _run_job(self, job: Job, place: Route, request: InferenceRequest) -> None:
        dispatched = self._loop.time()
        await self._played.engines[place.backend.name].serve(job)
        self._learn(job, place, request, dispatched)

    def _learn(self, job: Job, place: Route, request: InferenceRequest, dispatched: float) -> None:
        now = self._loop.time()
        prefilling = dispatched if job.prefilling is None else job.prefilling
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
        place.rates.learn(report, held=now - dispatched, ttft=first - dispatched if request.stream else None)
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


class _Limit(msgspec.Struct):
    max_tokens: int | None = None


def _went(outcome: Outcome, plan: Plan, place: Route) -> None:
    tier = next((name for name, places in plan.tiers if place in places), None)
    outcome.tier, outcome.engine, outcome.engine_model = tier, place.backend.name, place.model
    outcome.preferred = tier == plan.verdict.tiers[0]


def _saw(outcome: Outcome, job: Job, *, stream: bool) -> None:
    """What the client had of it; an answer in one piece comes at its end."""
    outcome.cached = job.cached
    if outcome.answered:
        outcome.output = job.produced
    first = job.first_token if stream else job.ended
    if first is not None:
        outcome.ttft = first - outcome.at
