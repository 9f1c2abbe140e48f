"""The engines of a config as they are played: how fast they are, and what a gateway would know of them."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import structs

from gateway.config import schema
from gateway.config.schema import Config
from gateway.engines.base import EngineModel, Health, State
from gateway.fleet import Fleet
from gateway.policy.load import Setup
from gateway.simulate.engine import Build, Pace, SimulatedEngine
from gateway.simulate.schema import Box, Speed

TELL_TIMES = frozenset({"llamacpp", "ollama"})
"""Kinds of engines that say how long prefill and decode took."""
TELL_LOADED = frozenset({"ollama"})
"""Kinds that have several models and say which are in memory, and how long one took to load."""
_TELL_SLOTS = frozenset({"llamacpp", "tgi"})


class _Usual(NamedTuple):
    slots: int
    pace: Pace
    cache: int
    memory: int | None = None
    keep_alive: float | None = None


_USUAL = {
    "llamacpp": _Usual(1, Pace(prefill=400, decode=25, decode_full=15, load=0), cache=8_192),
    "ollama": _Usual(1, Pace(prefill=800, decode=40, decode_full=25, load=8), cache=8_192, memory=1, keep_alive=300),
    "vllm": _Usual(64, Pace(prefill=8_000, decode=60, decode_full=20, load=0), cache=200_000),
    "tgi": _Usual(64, Pace(prefill=8_000, decode=60, decode_full=20, load=0), cache=100_000),
    "openai": _Usual(16, Pace(prefill=4_000, decode=50, decode_full=25, load=0), cache=0),
}
"""What an engine is taken to be like where nobody says: a guess at a common one of its kind."""


def builds(setup: Setup, boxes: Mapping[str, Box]) -> dict[str, Build]:
    """What each engine of the config is like: as `boxes` say, else as usual for its kind."""
    return {
        name: _build(engine, boxes.get(name, Box()), _models(name, engine, setup))
        for name, engine in setup.config.engines.items()
    }


def _build(engine: schema.Engine, box: Box, models: list[str]) -> Build:
    usual = _USUAL.get(engine.kind, _USUAL["openai"])
    managed = engine.managed.slots if engine.managed is not None else None
    every = _pace(box, usual.pace)
    return Build(
        slots=box.slots or managed or max(usual.slots, engine.concurrency or 0),
        paces={model: _pace(box.models[model], every) if model in box.models else every for model in models},
        cache=usual.cache if box.cache is None else box.cache,
        memory=box.memory or usual.memory,
        keep_alive=box.keep_alive or usual.keep_alive,
        cold=box.cold,
    )


def _pace(speed: Speed, usual: Pace) -> Pace:
    """Where only the speed of a request alone is known, it falls with others as usual."""
    decode = usual.decode if speed.decode is None else speed.decode
    full = usual.decode_full * decode / usual.decode if speed.decode_full is None else speed.decode_full
    return Pace(
        prefill=usual.prefill if speed.prefill is None else speed.prefill,
        decode=decode,
        decode_full=min(full, decode),
        load=usual.load if speed.load is None else speed.load,
    )


def _models(name: str, engine: schema.Engine, setup: Setup) -> list[str]:
    """The engine's models: as the config says, else those that it is asked for."""
    if engine.models:
        return list(engine.models)
    asked = [
        (target.model, alias)
        for alias, targets in setup.config.models.items()
        for target in targets
        if target.engine == name
    ] + [
        (target.model, alias)
        for alias, rules in setup.policies.items()
        for targets in rules.policy.tiers.values()
        for target in targets
        if target.engine == name
    ]
    several = engine.kind in TELL_LOADED  # all others serve one model, whatever it is called
    found = [model or alias for model, alias in asked if model is not None or several]
    return list(dict.fromkeys(found)) or [name]


class SimulatedFleet:
    """The gateway's own fleet, with engines that are played: `fleet` never sends anything.

    Args:
        boxes: as in the simulation file.
    """

    def __init__(self, setup: Setup, boxes: Mapping[str, Box]) -> None:
        self.config = setup.config
        self._boxes = boxes
        self.engines = {name: SimulatedEngine(build) for name, build in builds(setup, boxes).items()}
        self.fleet = Fleet(self._without_processes())
        for name in self.engines:
            self.probe(name)

    def _without_processes(self) -> Config:
        """The config with engines that have addresses and tell their models, none of them to be started."""
        engines = {
            name: structs.replace(
                engine, url=engine.url or "http://localhost", managed=None, models=list(self.engines[name].build.paces)
            )
            for name, engine in self.config.engines.items()
        }
        return structs.replace(self.config, engines=engines)

    def probe(self, name: str) -> None:
        """Has the gateway know of an engine what a probe would tell now."""
        config, engine = self.config.engines[name], self.engines[name]
        managed = config.managed.context if config.managed is not None else None
        context = config.context or managed or self._boxes.get(name, Box()).context
        there = engine.in_memory() if config.kind in TELL_LOADED else None
        models = tuple(
            EngineModel(model, context=context, loaded=None if there is None else model in there)
            for model in engine.build.paces
        )
        slots = engine.build.slots if config.kind in _TELL_SLOTS else None
        self.fleet.backends[name].set_health(Health(State.READY, models=models, slots=slots))

    async def watch(self, name: str) -> None:
        """Probes it for ever, as often as the config says."""
        while True:
            await asyncio.sleep(self.config.engines[name].probe.interval)
            self.probe(name)

    async def aclose(self) -> None:
        for backend in self.fleet.backends.values():
            await backend.aclose()
