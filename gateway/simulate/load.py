"""A simulation file as a checked Simulation, or as the list of all that is wrong with it."""

import os
from collections.abc import Mapping

import msgspec

from gateway.config import document
from gateway.config.document import Node, NotYaml, Scalar, read_document
from gateway.config.problems import ConfigError, Path, Problem, Problems, listed, nearest
from gateway.config.shape import Reader
from gateway.config.values import is_null
from gateway.policy.load import Setup
from gateway.simulate.fleet import builds
from gateway.simulate.schema import Box, Requests, Simulation, Speed, Tokens, Workload

MOST = 200_000
"""Requests of one simulation."""
_EMPTY = """the file is empty; this is the least that works:
workload:
  duration: 600
  rate: 0.5
  requests:
    chat: {model: NAME, prompt: 500, output: 200}"""
_LENGTH = ("workload", "requests", "NAME", "prompt")
"""Where a length stands, as `output` does."""


def parse_simulation(
    text: str, source: str, setup: Setup, *, environ: Mapping[str, str] = os.environ, rate: float | None = None
) -> Simulation:
    """Checks the simulation in `text` against the engines, models and keys of `setup`.

    Args:
        rate: goes before the one of the file.

    Raises:
        ConfigError: with every problem found.
    """
    try:
        root = read_document(text, environ)
    except NotYaml as error:
        raise ConfigError(source, [Problem(error.line, "", error.message)]) from None
    if root is None or is_null(root):
        raise ConfigError(source, [Problem(1, "", _EMPTY)])
    problems = Problems()
    shape = msgspec.inspect.type_info(Simulation)
    reader = Reader(shape, problems)
    data = reader.read(_long_form(root), shape)
    if problems.found:
        raise ConfigError(source, problems.found)
    simulation = msgspec.convert(data, Simulation)
    if rate is not None:
        simulation = msgspec.structs.replace(
            simulation, workload=msgspec.structs.replace(simulation.workload, rate=rate)
        )
    _Checks(simulation, setup, reader.places, problems).run()
    if problems.found:
        raise ConfigError(source, problems.found)
    return simulation


def known_models(setup: Setup) -> list[str]:
    """The names that clients can ask for."""
    own = (model for engine in setup.config.engines.values() for model in engine.models)
    return sorted({*setup.policies, *setup.config.models, *own})


class _Checks:
    """What the types alone cannot say."""

    def __init__(self, simulation: Simulation, setup: Setup, places: Mapping[Path, Node], problems: Problems) -> None:
        self._simulation = simulation
        self._setup = setup
        self._builds = builds(setup, {})
        self._places = places
        self._problems = problems

    def run(self) -> None:
        for name, box in self._simulation.engines.items():
            self._box(name, box)
        for name, requests in self._simulation.workload.requests.items():
            self._requests(requests, ("workload", "requests", name))
        self._workload(self._simulation.workload)

    def _box(self, name: str, box: Box) -> None:
        at: Path = ("engines", name)
        self._one_of(name, self._setup.config.engines, at, "engine")
        self._speed(box, at)
        for model, speed in box.models.items():
            if name in self._builds:
                self._one_of(model, self._builds[name].paces, (*at, "models", model), "model of this engine")
            self._speed(speed, (*at, "models", model))

    def _speed(self, speed: Speed, at: Path) -> None:
        if speed.decode is not None and speed.decode_full is not None and speed.decode_full > speed.decode:
            self._add((*at, "decode_full"), "must not be above `decode`: with others a request is not faster")

    def _requests(self, requests: Requests, at: Path) -> None:
        self._one_of(requests.model, known_models(self._setup), (*at, "model"), "model")
        self._tokens(requests.prompt, (*at, "prompt"))
        self._tokens(requests.output, (*at, "output"))
        known = [key.name for key in self._setup.config.server.keys]
        for number, key in enumerate(requests.keys):
            if known:
                self._one_of(key, known, (*at, "keys", number), "key")
        if known and not requests.keys:
            self._add(at, f"`keys` is missing: the config asks for one; its keys are {listed(known)}")

    def _tokens(self, tokens: Tokens, at: Path) -> None:
        if (tokens.median is None) == (tokens.mean is None):
            self._add(at, "expected a number, `{median: N, p95: N}` or `{mean: N}`")
        elif tokens.p95 is not None and (tokens.median is None or tokens.p95 < tokens.median):
            self._add((*at, "p95"), "stands beside `median`, and not below it")

    def _workload(self, workload: Workload) -> None:
        for number, burst in enumerate(workload.bursts):
            at: Path = ("workload", "bursts", number)
            if burst.of is not None:
                self._one_of(burst.of, workload.requests, (*at, "of"), "kind of request")
            if burst.at > workload.duration:
                self._add((*at, "at"), f"is after the end, {workload.duration:g} s (`workload.duration`)")
        count = workload.rate * workload.duration + sum(burst.requests for burst in workload.bursts)
        if count == 0:
            self._add(("workload",), "nothing is asked: give it a `rate`, or `bursts`")
        elif count > MOST:
            self._add(("workload",), f"about {count:.0f} requests, more than {MOST}: lower `rate` or `duration`")

    def _one_of(self, name: str, known: Mapping[str, object] | list[str], at: Path, what: str) -> None:
        if name not in known:
            near = nearest(name, list(known)) or f"; there are {listed(known)}"
            self._add(at, f"no {what} is named `{name}`{near}")

    def _add(self, path: Path, message: str) -> None:
        self._problems.add(self._places[path].line, path, message)


def _long_form(node: Node, path: tuple[str, ...] = ()) -> Node:
    """The tree with the short form of lengths written out: `prompt: 500` is `prompt: {median: 500}`."""
    if isinstance(node, document.Mapping) and len(path) < len(_LENGTH):
        entries = [(key, _long_form(value, (*path, _text(key)))) for key, value in node.entries]
        return document.Mapping(node.line, entries)
    is_length = len(path) == len(_LENGTH) and path[:2] == _LENGTH[:2] and path[3] in ("prompt", "output")
    if is_length and isinstance(node, Scalar | document.Listing):
        return document.Mapping(node.line, [(Scalar(node.line, "median", bare=True), node)])
    return node


def _text(key: Scalar | document.Broken) -> str:
    return key.text if isinstance(key, Scalar) else ""
