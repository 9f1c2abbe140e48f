#!/usr/bin/env python3
"""Which score is best where: the five of them in a few fleets, on the same requests, in the simulator.

usage: compare_scores.py [--fleet NAME ...] [--plots FOLDER]

Prints a table in Markdown: seconds to the first token, the mean of the whole, and the tokens of prompts that were in a
cache. --plots draws one SVG file per fleet too; docs/policies.md shows those that are in docs/img. Seeds are fixed, so
that two runs say the same.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from gateway.config.load import parse_config
from gateway.engines import KINDS
from gateway.policy.load import Setup, parse_policy
from gateway.policy.score import SCORES
from gateway.simulate.load import parse_simulation
from gateway.simulate.run import Outcome, simulate

SEEDS = (1, 2, 3)
HEAD = ("engines", "score", "TTFT p50", "p95", "p99", "mean total", "cached")


class Fleet(NamedTuple):
    """Engines and what is asked of them.

    Attributes:
        engines: of sluice.yaml.
        models: by the names that clients ask for, the engines' own.
        weights: of the engines, with `score: weighted`.
        simulation: all but the seed.
    """

    title: str
    engines: str
    models: dict[str, str]
    weights: tuple[int, ...]
    simulation: str


def _boxes(count: int, kind: str = "llamacpp", more: str = "models: [m]") -> str:
    return "".join(f"  box{n}: {{kind: {kind}, url: 'http://box{n}', {more}}}\n" for n in range(1, count + 1))


_KEYS = ", ".join(f"k{number}" for number in range(24))

FLEETS = {
    "equal": Fleet(
        "Four equal boxes",
        _boxes(4),
        {"chat": "m"},
        (1, 1, 1, 1),
        f"""
  duration: 3600
  rate: 0.4
  requests:
    chat: {{model: chat, keys: [{_KEYS}], prompt: {{median: 600, p95: 4000}}, output: {{median: 150, p95: 500}}}}
engines:
  box1: &box {{slots: 2, prefill: 900, decode: 35, decode_full: 25}}
  box2: *box
  box3: *box
  box4: *box
""",
    ),
    "fast-and-slow": Fleet(
        "A fast box and a slow one",
        _boxes(2),
        {"chat": "m"},
        (4, 1),
        f"""
  duration: 3600
  rate: 0.25
  requests:
    chat: {{model: chat, keys: [{_KEYS}], prompt: {{median: 600, p95: 4000}}, output: {{median: 150, p95: 500}}}}
engines:
  box1: {{slots: 4, prefill: 3000, decode: 60, decode_full: 40}}
  box2: {{slots: 4, prefill: 300, decode: 15, decode_full: 10}}
""",
    ),
    "prefix-heavy": Fleet(
        "Four equal boxes, and a long prefix for each key",
        _boxes(4),
        {"chat": "m"},
        (1, 1, 1, 1),
        f"""
  duration: 3600
  rate: 0.3
  requests:
    chat:
      model: chat
      keys: [{_KEYS}]
      prefix: {{tokens: 4000, by_key: true}}
      prompt: {{median: 200, p95: 800}}
      output: {{median: 150, p95: 500}}
engines:
  box1: &box {{slots: 2, prefill: 900, decode: 35, decode_full: 25, cache: 32000}}
  box2: *box
  box3: *box
  box4: *box
""",
    ),
    "cold-model": Fleet(
        "Two models, and two boxes with memory for one of them each",
        _boxes(2, "ollama", "models: [a, b], concurrency: 2"),
        {"a-chat": "a", "b-chat": "b"},
        (1, 1),
        f"""
  duration: 3600
  rate: 0.1
  requests:
    a: {{model: a-chat, keys: [{_KEYS}], prompt: {{median: 600, p95: 2000}}, output: {{median: 150, p95: 500}}}}
    b: {{model: b-chat, keys: [{_KEYS}], prompt: {{median: 600, p95: 2000}}, output: {{median: 150, p95: 500}}}}
engines:
  box1: &box {{slots: 2, prefill: 900, decode: 45, decode_full: 30, load: 12, memory: 1}}
  box2: *box
""",
    ),
}


class Figures(NamedTuple):
    """Of all requests with one score; times are seconds, `cached` is the share of the tokens in prompts."""

    p50: float
    p95: float
    p99: float
    total: float
    cached: float


def compare(fleet: Fleet) -> dict[str, Figures]:
    """The figures of each score, over all seeds."""
    return {score: figures([one for seed in SEEDS for one in play(fleet, score, seed)]) for score in SCORES}


def play(fleet: Fleet, score: str, seed: int) -> list[Outcome]:
    """What becomes of each request of the fleet's workload."""
    config = parse_config(f"engines:\n{fleet.engines}", "sluice.yaml", environ={}, kinds=KINDS)
    models = "".join(_model(fleet, name, score) for name in fleet.models)
    setup = Setup(config, parse_policy(f"models:\n{models}", "policy.yaml", config, environ={}))
    text = f"workload:\n  seed: {seed}{fleet.simulation}"
    return simulate(setup, parse_simulation(text, "simulation.yaml", setup, environ={})).outcomes


def _model(fleet: Fleet, name: str, score: str) -> str:
    """A model's entry in the policy: all engines are in one tier."""
    weights = [f", weight: {weight}" if score == "weighted" else "" for weight in fleet.weights]
    targets = [f"{{engine: box{at}, model: {fleet.models[name]}{weight}}}" for at, weight in enumerate(weights, 1)]
    return f"  {name}: {{tiers: {{all: [{', '.join(targets)}]}}, score: {score}}}\n"


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """All of them must have been answered: those that were not would make the rest look better."""
    assert all(one.answered for one in outcomes)
    times = sorted(one.ttft for one in outcomes if one.ttft is not None)
    p50, p95, p99 = (times[math.ceil(part * len(times)) - 1] for part in (0.50, 0.95, 0.99))
    total = sum(one.total for one in outcomes) / len(outcomes)
    return Figures(p50, p95, p99, total, sum(one.cached for one in outcomes) / sum(one.prompt for one in outcomes))


def table(compared: dict[str, dict[str, Figures]]) -> str:
    """The figures of some fleets, by their names in `FLEETS`, as Markdown."""
    rows = [
        (
            FLEETS[name].title,
            f"`{score}`",
            *(f"{time:.2f} s" for time in (one.p50, one.p95, one.p99, one.total)),
            f"{one.cached:.0%}",
        )
        for name, scores in compared.items()
        for score, one in scores.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * len(HEAD), *rows))


# The plot: for each score a bar from 0 to p95, a darker one to p50, and a line at p99

_LEFT, _WIDTH, _TOP, _ROW = 130, 460, 50, 34


def plot(title: str, compared: dict[str, Figures]) -> str:
    """Times to the first token as SVG."""
    longest = max(one.p99 for one in compared.values())
    step = _step(longest)
    scale = _WIDTH / (math.ceil(longest / step) * step)
    bottom = _TOP + _ROW * len(compared)
    parts = ['<rect width="100%" height="100%" fill="#fff"/>', _text(12, 24, title, "start", "bold")]
    for number in range(math.ceil(longest / step) + 1):
        x = _LEFT + number * step * scale
        parts += [_line(x, _TOP - 6, x, bottom, "#ddd", 1), _text(x, bottom + 18, f"{number * step:g}", "middle")]
    for row, (score, one) in enumerate(compared.items()):
        y = _TOP + row * _ROW
        parts.append(_text(_LEFT - 8, y + 16, score, "end"))
        parts += [_bar(y, one.p95 * scale, "#9ecae1"), _bar(y, one.p50 * scale, "#2171b5")]
        parts.append(_line(_LEFT + one.p99 * scale, y, _LEFT + one.p99 * scale, y + 22, "#cb181d", 2))
    parts.append(
        _text(
            _LEFT + _WIDTH / 2,
            bottom + 40,
            "seconds to the first token; dark: half of the requests, light: 95 %, red line: 99 %",
            "middle",
        )
    )
    size = f'width="{_LEFT + _WIDTH + 30}" height="{bottom + 54}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">\n{body}\n</svg>\n'


def _step(longest: float) -> float:
    """A round number of seconds that fits in it at most eight times."""
    least = longest / 8
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="#333">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" stroke="{colour}" stroke-width="{width}"/>'


def _bar(y: float, width: float, colour: str) -> str:
    return f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="22" fill="{colour}"/>'


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", nargs="+", choices=FLEETS, default=list(FLEETS))
    parser.add_argument("--plots", type=Path, help="a folder that is there")
    options = parser.parse_args(None if arguments is None else list(arguments))
    compared = {name: compare(FLEETS[name]) for name in options.fleet}
    print(table(compared))
    if options.plots is not None:
        for name, scores in compared.items():
            (options.plots / f"scores-{name}.svg").write_text(plot(FLEETS[name].title, scores))


if __name__ == "__main__":
    main()
