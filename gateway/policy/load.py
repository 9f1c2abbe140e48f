"""A policy file as checked rules, or as the list of all that is wrong with it."""

import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec
from msgspec import structs

from gateway.config import document
from gateway.config.document import Listing, Node, NotYaml, Scalar, read_document
from gateway.config.load import load_config, long_targets, read_text
from gateway.config.policy import Policy
from gateway.config.problems import ConfigError, Problem, Problems
from gateway.config.schema import Config
from gateway.config.shape import Reader
from gateway.config.values import is_null
from gateway.policy.checks import Checks
from gateway.policy.rules import Rules

Change = Callable[[Node], Node]

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
    models = data.get("models") if isinstance(data, dict) else None
    for name, raw in models.items() if isinstance(models, dict) else ():
        if isinstance(raw, dict):
            Checks(name, raw, config, reader.places, problems).run()
    if problems.found:
        raise ConfigError(source, problems.found)
    return {name: Rules(policy) for name, policy in msgspec.convert(data, Policy).models.items()}


def _long_form(root: Node) -> Node:
    """The tree with the short forms of targets written out, and each condition and message on one line."""
    return _at(root, "models", lambda models: _each(models, _model))


def _model(node: Node) -> Node:
    node = _at(node, "tiers", lambda tiers: _each(tiers, long_targets))
    return _at(node, "rules", _rules)


def _rules(node: Node) -> Node:
    if not isinstance(node, Listing):
        return node
    return Listing(node.line, [_at(_at(rule, "when", _one_line), "reject", _one_line) for rule in node.items])


def _one_line(node: Node) -> Node:
    if not isinstance(node, Scalar) or node.bare:
        return node
    return structs.replace(node, text=" ".join(line.strip() for line in node.text.strip().split("\n")))


def _at(node: Node, key: str, change: Change) -> Node:
    if not isinstance(node, document.Mapping):
        return node
    entries = [(k, change(v) if isinstance(k, Scalar) and k.text == key else v) for k, v in node.entries]
    return document.Mapping(node.line, entries)


def _each(node: Node, change: Change) -> Node:
    if not isinstance(node, document.Mapping):
        return node
    return document.Mapping(node.line, [(k, change(v)) for k, v in node.entries])
