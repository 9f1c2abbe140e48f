"""A policy file as checked rules, or as the list of all that is wrong with it."""

import os
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from gateway.config import document
from gateway.config.document import Node, NotYaml, Scalar, read_document
from gateway.config.load import load_config, long_targets, read_text
from gateway.config.policy import Example, ModelPolicy, Policy, Target
from gateway.config.problems import ConfigError, Path, Problem, Problems, listed, nearest
from gateway.config.schema import Config
from gateway.config.shape import Reader
from gateway.config.values import is_null
from gateway.policy.facts import REQUEST_FACTS
from gateway.policy.rules import RuleError, Rules

Change = Callable[[Node], Node]

_TIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EMPTY = """the file is empty; this is the least that works:
models:
  chat: {tiers: {all: [local]}}"""


class Setup(NamedTuple):
    """All that a gateway is run by."""

    config: Config
    policies: Mapping[str, Rules] = {}
    """By the name that clients ask for."""


def load_setup(path: pathlib.Path, *, environ: Mapping[str, str] = os.environ, kinds: Collection[str]) -> Setup:
    """Reads and checks a config file and the policy file that it names.

    Raises:
        ConfigError: the one or the other cannot be used.
    """
    config = load_config(path, environ=environ, kinds=kinds)
    if config.policy is None:
        return Setup(config)
    file = path.parent / pathlib.Path(config.policy).expanduser()
    return Setup(config, parse_policy(read_text(file), str(file), config, environ=environ))


def parse_policy(
    text: str, source: str, config: Config, *, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Rules]:
    """Checks the policy in `text` against the engines of `config`.

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
    shape = msgspec.inspect.type_info(Policy)
    reader = Reader(shape, problems)
    data = reader.read(_long_form(root), shape)
    policies: dict[str, Rules] = {}
    if isinstance(data, dict) and isinstance(data.get("models"), dict):
        for name, raw in data["models"].items():
            if problems.none_in(("models", name)):
                checks = _Checks(name, msgspec.convert(raw, ModelPolicy), config, reader.places, problems)
                if (rules := checks.run()) is not None:
                    policies[name] = rules
    if problems.found:
        raise ConfigError(source, problems.found)
    return policies


class _Checks:
    """What the types alone cannot say of one model's policy."""

    def __init__(
        self, name: str, policy: ModelPolicy, config: Config, places: Mapping[Path, Node], problems: Problems
    ) -> None:
        self._policy = policy
        self._config = config
        self._places = places
        self._problems = problems
        self._at: Path = ("models", name)
        self._name = name

    def run(self) -> Rules | None:
        """The compiled rules, if nothing is wrong with them."""
        if self._name in self._config.models:
            self._add((), "this name is under `models` of the config file too: keep one of them")
        for tier, targets in self._policy.tiers.items():
            self._tier(tier, targets)
        self._rules()
        for at, example in enumerate(self._policy.examples):
            self._example(at, example)
        if not self._problems.none_in(self._at):
            return None
        try:
            return Rules(self._policy)
        except RuleError as exc:
            self._add(("rules", exc.at, *([exc.key] if exc.key else [])), str(exc))
        return None

    def _tier(self, name: str, targets: list[Target]) -> None:
        at = ("tiers", name)
        if not _TIER.fullmatch(name) or name in REQUEST_FACTS:
            self._add(at, "a tier's name is letters, digits and `_`, and none of a request's facts: rules use it")
        if not targets:
            self._add(at, "expected at least one engine")
        seen: set[tuple[str, str | None]] = set()
        for number, target in enumerate(targets):
            where = (*at, number)
            engine = self._config.engines.get(target.engine)
            if engine is None:
                known = self._config.engines
                near = nearest(target.engine, known) or f"; the engines are {listed(known)}"
                self._add((*where, "engine"), f"no engine is named `{target.engine}`{near}")
            elif target.model is not None and engine.models and target.model not in engine.models:
                near = nearest(target.model, engine.models) or f"; it has {listed(engine.models)}"
                self._add((*where, "model"), f"the engine `{target.engine}` has no model `{target.model}`{near}")
            if (target.engine, target.model) in seen:
                self._add(where, "this engine is in the tier already")
            seen.add((target.engine, target.model))

    def _rules(self) -> None:
        last: int | None = None
        names: set[str] = set()
        for number, rule in enumerate(self._policy.rules):
            at = ("rules", number)
            if last is not None:
                self._add(at, f"never looked at: rule {last + 1} has no `when` and is the last one for every request")
                last = None
            if rule.name is not None and rule.name in names:
                self._add((*at, "name"), "another rule has this name")
            names.add(rule.name or f"rule {number + 1}")
            if rule.route is not None and rule.reject is not None:
                self._add(at, "both `route` and `reject` are set: keep one of them")
            if rule.route is not None and not rule.route:
                self._add((*at, "route"), "expected at least one tier")
            for place, tier in enumerate(rule.route or []):
                self._known_tier(tier, (*at, "route", place))
            if rule == type(rule)(name=rule.name, when=rule.when):
                self._add(
                    at, "it does nothing: give it `route`, `reject`, `class`, `set`, `cap`, `deadline` or `spill`"
                )
            if rule.when is None and (rule.route is not None or rule.reject is not None):
                last = number

    def _example(self, number: int, example: Example) -> None:
        at = ("examples", number)
        for tier in example.tiers:
            self._known_tier(tier, (*at, "tiers", tier))
        if example.expect.tier is not None:
            self._known_tier(example.expect.tier, (*at, "expect", "tier"))
        names = [rule.name or f"rule {place + 1}" for place, rule in enumerate(self._policy.rules)]
        if example.expect.rule is not None and example.expect.rule not in names:
            self._add((*at, "expect", "rule"), f"no rule is named `{example.expect.rule}`; there are {listed(names)}")

    def _known_tier(self, name: str, at: Path) -> None:
        tiers = self._policy.tiers
        if name not in tiers:
            near = nearest(name, tiers) or f"; the tiers are {listed(tiers)}"
            self._add(at, f"no tier is named `{name}`{near}")

    def _add(self, path: Path, message: str) -> None:
        whole = (*self._at, *path)
        self._problems.add(self._places[whole].line, whole, message)


def _long_form(root: Node) -> Node:
    """The tree with the short forms of targets written out."""
    return _at(root, "models", lambda models: _each(models, lambda one: _at(one, "tiers", _tiers)))


def _tiers(node: Node) -> Node:
    return _each(node, long_targets)


def _at(node: Node, key: str, change: Change) -> Node:
    if not isinstance(node, document.Mapping):
        return node
    entries = [(k, change(v) if isinstance(k, Scalar) and k.text == key else v) for k, v in node.entries]
    return document.Mapping(node.line, entries)


def _each(node: Node, change: Change) -> Node:
    if not isinstance(node, document.Mapping):
        return node
    return document.Mapping(node.line, [(k, change(v)) for k, v in node.entries])
