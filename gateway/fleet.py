"""All engines together: started and stopped here, found by model name, and lent to one request at a time."""

import difflib
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Self

import anyio
import msgspec
from msgspec import structs

from gateway.backend import Backend
from gateway.config.policy import Target
from gateway.config.schema import Config, Timeouts
from gateway.config.schema import Engine as EngineConfig
from gateway.engines import KINDS
from gateway.engines.identity import describe
from gateway.engines.managed import ManagedEngine
from gateway.errors import ModelNotFound, NoEngine
from gateway.health.monitor import watch

_LONGEST_NAME = 200
"""No model has a longer name, so that one is neither looked for nor repeated."""
_FIRST_LOOK = 2.0
"""Seconds that the first probes are waited for, so that engines which are well are known from the first request."""


class Route:
    """An engine that serves a model, and the name it has there: a place where a request can go.

    `identity` is what is known of the model there, and `headers` are those by which clients are told of all that.
    """

    def __init__(self, backend: Backend, model: str, weight: float = 1.0, timeouts: Timeouts | None = None) -> None:
        self.backend = backend
        self.timeouts = timeouts or backend.config.timeouts
        self.model = model
        self.weight = weight
        self.name = backend.name
        known = backend.model(model)
        self.context = known.context
        self.warm = known.loaded is not False
        self.rates = backend.rates(model)
        self.identity = describe(known)
        self.headers = [(b"x-sluice-engine", header_value(backend.name)), (b"x-sluice-model", header_value(model))]
        if self.identity:
            self.headers.append((b"x-sluice-identity", header_value(self.identity)))

    @property
    def ready(self) -> bool:
        return self.backend.ready

    @property
    def capacity(self) -> int | None:
        return self.backend.capacity

    @property
    def in_flight(self) -> int:
        return self.backend.in_flight

    @property
    def last_used(self) -> int:
        return self.backend.last_used

    @property
    def load_time(self) -> float | None:
        return self.backend.load_time(self.model)

    def take(self) -> None:
        self.backend.take()

    def give_back(self) -> None:
        self.backend.give_back()


class ModelCard(msgspec.Struct, frozen=True):
    """A name that clients may ask for.

    `context` is the largest context among its engines, in tokens, and `capabilities` are what at least one of them
    can do with it, `None` where one does not tell. `quantization` is there if all have the same.
    """

    name: str
    engines: list[str]
    ready: bool
    context: int | None
    capabilities: frozenset[str] | None
    quantization: str | None = None


class Fleet:
    """The engines of a config."""

    def __init__(self, config: Config) -> None:
        self._aliases = config.models
        threads = _threads(config)
        self.backends = {name: self._backend(name, engine, threads) for name, engine in config.engines.items()}
        self._leaving: set[Backend] = set()
        """Engines that are not in the config any longer, and have not ended yet."""
        self._routes: dict[str, list[Route]] = {}
        self.changes = 0
        """How often what is known of the engines has changed, for those who keep a `target`."""
        self._update_routes()

    def _backend(self, name: str, config: EngineConfig, threads: int) -> Backend:
        process = None
        if config.managed is not None:
            spec = structs.replace(config.managed, threads=config.managed.threads or threads)
            process = ManagedEngine(name, spec, config.models[0] if config.models else name)
        url = process.url if process is not None else config.url or ""
        backend = Backend(name, config, KINDS[config.kind](url, config), process)
        backend.on_change = self._update_routes
        if process is not None:
            process.on_change = backend.process_changed
        return backend

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Starts managed engines and probes, and ends both and every connection with the block."""
        async with anyio.create_task_group() as self._tasks:
            self._start(self.backends.values())
            await _first_look(self.backends.values())
            yield self
            self._tasks.cancel_scope.cancel()

    async def update(self, config: Config) -> None:
        """Puts another config in force. Engines of which it has no more than other limits keep all that they have.

        New ones are started and looked at first, so that requests find them ready. Then all changes at once, as the
        last thing that is done here.
        """
        threads = _threads(config)
        kept = {
            name: backend
            for name, backend in self.backends.items()
            if name in config.engines and _may_stay(backend.config, config.engines[name])
        }
        new = {
            name: self._backend(name, engine, threads) for name, engine in config.engines.items() if name not in kept
        }
        self._start(new.values())
        await _first_look(new.values())

        gone = {backend for name, backend in self.backends.items() if name not in kept}
        self._aliases = config.models
        self.backends = {name: kept.get(name) or new[name] for name in config.engines}
        for name, backend in kept.items():
            backend.follow(config.engines[name])
        self._update_routes()
        self._leaving |= gone
        for backend in gone:
            backend.retire(config.server.drain_timeout)

    def _start(self, backends: Iterable[Backend]) -> None:
        for backend in backends:
            before = self.backends.get(backend.name, backend)
            if _is_same(before.config, backend.config):
                backend.learn_from(before)
            earlier = {other for other in (*self._leaving, before) if other.name == backend.name} - {backend}
            self._tasks.start_soon(self._keep, backend, [other.closed for other in earlier])

    async def _keep(self, backend: Backend, earlier: Iterable[anyio.Event]) -> None:
        """Probes an engine, and runs its process once all `earlier` ones of its name are closed, until it is let go."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, backend)
                if backend.process is not None:
                    tasks.start_soon(_run, backend.process, earlier)
                await backend.drained()
                tasks.cancel_scope.cancel()
        finally:
            self._leaving.discard(backend)
            with anyio.CancelScope(shield=True):
                await backend.aclose()

    # Names

    def _update_routes(self) -> None:
        routes: dict[str, list[Route]] = {}
        for backend in self.backends.values():
            for model in backend.models:
                routes.setdefault(model, []).append(Route(backend, model))
        for alias, targets in self._aliases.items():
            routes[alias] = []
            for target in targets:
                backend = self.backends[target.engine]
                own_name = target.model or _own_name(backend, alias)
                if own_name is not None:
                    routes[alias].append(Route(backend, own_name))
        self._routes = routes
        self.changes += 1

    def models(self) -> list[ModelCard]:
        """Every name that clients may ask for, in order."""
        return [card(name, routes) for name, routes in sorted(self._routes.items())]

    def model(self, name: str) -> ModelCard:
        """
        Raises:
            ModelNotFound: no engine is known to have it.
        """
        routes = self._routes.get(name)
        if routes is None:
            raise self._unknown(name)
        return card(name, routes)

    def routes(self, model: str) -> list[Route]:
        """Every place of a model that is no policy's.

        Raises:
            ModelNotFound: no engine is known to have it; the message names the nearest names.
            NoEngine: an engine that may have it has never answered.
        """
        routes = self._routes.get(model)
        if routes is None:
            raise self._unknown(model)
        return routes

    def target(self, alias: str, target: Target) -> Route | None:
        """A place that a policy names, or `None` while its engine has not told the model's name."""
        backend = self.backends[target.engine]
        own_name = target.model or _own_name(backend, alias)
        if own_name is None:
            return None
        limits = structs.asdict(target.timeouts)
        given = {name: limit for name, limit in limits.items() if limit is not None}
        return Route(backend, own_name, target.weight, structs.replace(backend.config.timeouts, **given))

    def none_ready(self, model: str, backends: Sequence[Backend] | None = None) -> NoEngine:
        """The error for a model whose engines are all away."""
        return NoEngine(
            _why_none(model, backends or self._engines_of(model, self._routes.get(model, []))), retry_after=2
        )

    def _engines_of(self, model: str, routes: Sequence[Route]) -> list[Backend]:
        """Those that have `model`, or may have it."""
        named = [self.backends[target.engine] for target in self._aliases.get(model, [])]
        return named or [route.backend for route in routes]

    def _unknown(self, model: str) -> ModelNotFound | NoEngine:
        if len(model) > _LONGEST_NAME:
            return ModelNotFound(f"The model `{model[:_LONGEST_NAME]}...` does not exist.", param="model")
        silent = [b.name for b in self.backends.values() if not b.models]
        if silent:
            return NoEngine(
                f"The model `{model}` is not known yet: the models of {_names(silent)} are not known, "
                "because it has not answered so far.",
                retry_after=2,
            )
        near = difflib.get_close_matches(model, self._routes, n=3, cutoff=0.4)
        hint = f" Did you mean {_names(near, 'or')}?" if near else " GET /v1/models lists those there are."
        return ModelNotFound(f"The model `{model}` does not exist.{hint}", param="model")


def _threads(config: Config) -> int:
    """For each managed engine that does not say: more threads than cores make all of them many times slower."""
    managed = sum(engine.managed is not None for engine in config.engines.values())
    return max(1, (os.cpu_count() or 1) // max(1, managed))


def _may_stay(one: EngineConfig, other: EngineConfig) -> bool:
    """Whether the engine is spoken to as before, by requests that run and by those that come.

    Sluice gives a managed one the name of its model when it starts it.
    """
    models = one.models if one.managed is not None else other.models
    limits = {name: getattr(other, name) for name in ("concurrency", "pins", "probe", "timeouts")}
    return structs.replace(one, models=models, **limits) == other


def _is_same(one: EngineConfig, other: EngineConfig) -> bool:
    """Whether it is the same server, so that it is as fast as before."""
    return (one.kind, one.url, one.managed) == (other.kind, other.url, other.managed)


async def _first_look(backends: Iterable[Backend]) -> None:
    with anyio.move_on_after(_FIRST_LOOK):
        for backend in backends:
            await backend.looked_at.wait()


async def _run(process: ManagedEngine, earlier: Iterable[anyio.Event]) -> None:
    """Runs it when others have ended that may have its port, or the memory that it needs."""
    for closed in earlier:
        await closed.wait()
    await process.run()


_VISIBLE = bytes(code if 0x20 <= code < 0x7F else ord("?") for code in range(256))


def header_value(text: str) -> bytes:
    """`text` as a header may carry it: names can hold anything, a header line only visible ASCII."""
    return text.encode("ascii", "replace").translate(_VISIBLE)


def _own_name(backend: Backend, alias: str) -> str | None:
    """What an engine calls the model that clients call `alias`, or `None` while that is not known."""
    models = backend.models
    if alias in models:
        return alias
    distinct = {backend.model(name).digest or name for name in models}  # Ollama has two names for one
    return models[0] if len(distinct) == 1 else None


def card(name: str, routes: Sequence[Route]) -> ModelCard:
    models = [route.backend.model(route.model) for route in routes]
    told = [model.capabilities for model in models if model.capabilities is not None]
    return ModelCard(
        name,
        [route.backend.name for route in routes],
        any(route.backend.ready for route in routes),
        max((model.context for model in models if model.context is not None), default=None),
        frozenset().union(*told) if told and len(told) == len(models) else None,
        models[0].quantization if len({model.quantization for model in models}) == 1 else None,
    )


def _why_none(model: str, backends: Sequence[Backend]) -> str:
    states = "; ".join(
        f"engine {backend.name} is {backend.health.state.value}"
        + (f" ({backend.health.reason})" if backend.health.reason else "")
        for backend in backends
    )
    return f"No engine can serve the model `{model}` now: {states}."


def _names(names: Sequence[str], word: str = "and") -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"
