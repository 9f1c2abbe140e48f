"""A configured engine at run time: its connections, its health, and what it is doing."""

import itertools
import time
from collections.abc import Callable

import anyio

from gateway.config import schema
from gateway.engines.base import Engine, EngineModel, Health, Load, State
from gateway.engines.identity import broken_pin
from gateway.engines.managed import ManagedEngine
from gateway.policy.rates import Rates
from gateway.upstream.http import httpx
from gateway.upstream.transport import NativeTransport


class Backend:
    """One engine. It owns the engine's connections; `aclose` ends them.

    Attributes:
        process: the engine's process, if Sluice runs it.
        in_flight: requests that are with the engine now.
        visitors: those beside them that take no place.
        last_used: the number of the latest request given to any engine, when it was this one's.
        engine_load: how busy the engine says it is, from whomever its requests come, if it tells.
        progressed_at: when the engine last sent something for a request (`time.perf_counter`).
    """

    def __init__(self, name: str, config: schema.Engine, engine: Engine, process: ManagedEngine | None = None) -> None:
        self.name = name
        self.config = config
        self.engine = engine
        self.process = process
        self.transport: httpx.AsyncBaseTransport = (
            NativeTransport() if config.transport == "native" else httpx.AsyncHTTPTransport(retries=0, limits=_NO_LIMIT)
        )
        self.client = httpx.AsyncClient(transport=self.transport, trust_env=False, timeout=config.probe.timeout)
        self.health = Health(State.STARTING)
        self.engine_load: Load | None = None
        self._load_times: dict[str, float] = {}
        self._rates: dict[str, Rates] = {}
        self.in_flight = 0
        self.visitors = 0
        self.last_used = 0
        self.progressed_at = 0.0
        self.on_change: Callable[[], None] = lambda: None
        self.looked_at = anyio.Event()
        """Set once the first probe has ended."""
        self._poke = anyio.Event()
        self.closed = anyio.Event()
        """Set once its connections are closed, and its process has ended."""
        self._retired: float | None = None
        self._retiring = anyio.Event()
        self._left_alone = anyio.Event()

    @property
    def ready(self) -> bool:
        return self.health.state is State.READY and self._retired is None

    @property
    def capacity(self) -> int | None:
        """How many requests it runs at once: as configured, else as it says; else not known, and without bound."""
        return self.config.concurrency or self.health.slots

    @property
    def models(self) -> list[str]:
        """The engine's own names of its models: as configured, else as it says."""
        return list(self.config.models) or [model.name for model in self.health.models]

    def model(self, name: str) -> EngineModel:
        """What is known of the model that the engine calls `name`."""
        return next((model for model in self.health.models if model.name == name), EngineModel(name))

    def rates(self, model: str) -> Rates:
        """What is learned of its speed with `model`, by its own name."""
        return self._rates.setdefault(model, Rates())

    def learn_load_time(self, model: str, seconds: float) -> None:
        """A request to `model`, by the engine's own name, had to wait until it was loaded."""
        self._load_times[self.model(model).digest or model] = seconds

    def load_time(self, model: str) -> float | None:
        """Seconds that `model` took when it was last loaded for a request."""
        return self._load_times.get(self.model(model).digest or model)

    def take(self) -> None:
        """One more request goes to it."""
        self.in_flight += 1
        self.last_used = next(_uses)

    def give_back(self) -> None:
        """One that went to it has ended."""
        self.in_flight -= 1
        self._look_around()

    def visit(self) -> None:
        """One more goes to it that takes no place."""
        self.visitors += 1

    def leave(self) -> None:
        """One that took no place has ended."""
        self.visitors -= 1
        self._look_around()

    def progressed(self) -> None:
        self.progressed_at = time.perf_counter()

    def set_health(self, health: Health) -> None:
        """Keeps the models of an engine that stopped answering, so that their names stay known."""
        before = self.health
        if health.state is not State.READY:
            health = Health(health.state, health.reason, health.models or before.models, health.slots or before.slots)
        self.health = health
        if health != before:
            self.on_change()

    def unreachable(self) -> None:
        """A request found nobody there: no further one is sent until a probe finds somebody."""
        self.set_health(self.absent())
        self.suspect()

    def absent(self) -> Health:
        """The health of an engine where nobody listens: a managed one may be on its way."""
        if self.process is None:
            return Health(State.DOWN, "it cannot be reached")
        if self.process.pid is not None or self.process.state == "not started":
            return Health(State.STARTING, "its process is starting")
        return Health(State.DOWN, self.process.state)

    def process_changed(self) -> None:
        """The engine's process has started or ended: its health is known without a probe, or soon by one."""
        if self.process is not None and self.process.pid is None:
            self.set_health(self.absent())
        self.suspect()

    def suspect(self) -> None:
        """Has the engine probed now instead of at the next interval."""
        self._poke.set()

    async def poked(self, timeout: float) -> None:
        """Waits for `suspect`, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            await self._poke.wait()
        self._poke = anyio.Event()

    def follow(self, config: schema.Engine) -> None:
        """Goes by other limits, names and pins from now on. Requests that are with it end by those they began with."""
        if config == self.config:
            return
        self.config = self.engine.config = config
        self.client.timeout = config.probe.timeout
        if self.health.state is State.READY and (reason := broken_pin(config.pins, self.health.models)):
            self.set_health(Health(State.DOWN, reason))
        self.suspect()

    def retire(self, drain: float) -> None:
        """It is not in the config any longer: it gets no further request, and `drain` seconds for those it has."""
        self._retired = drain
        self._retiring.set()
        self._look_around()

    async def drained(self) -> None:
        """Waits until it is retired, and no request is with it or their time is over."""
        await self._retiring.wait()
        with anyio.move_on_after(self._retired):
            await self._left_alone.wait()

    def _look_around(self) -> None:
        if self._retired is not None and not self.in_flight and not self.visitors:
            self._left_alone.set()

    def learn_from(self, other: "Backend") -> None:
        """Takes over what `other` has shown of the same engine's speed."""
        self._rates, self._load_times = other._rates, other._load_times

    async def aclose(self) -> None:
        try:
            await self.client.aclose()
        finally:
            self.closed.set()


_uses = itertools.count(1)
_NO_LIMIT = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=3.0)
