"""Simulations from YAML text, as a user writes them."""

from collections import Counter

import msgspec

from gateway.config.load import parse_config
from gateway.engines import KINDS
from gateway.policy.load import Setup, parse_policy
from gateway.simulate.load import parse_simulation
from gateway.simulate.run import Result, simulate

ONE = """
engines:
  box: {kind: llamacpp, url: http://h, models: [m]}
"""
TWO = """
engines:
  small: {kind: llamacpp, url: http://s, models: [m]}
  large: {kind: llamacpp, url: http://l, models: [m]}
"""
TIERS = "models: {chat: {tiers: {first: small, second: large}, spill: 2}}"

# A job of 100 tokens to read and 11 to write takes 2 s.
SPEED = "prefill: 100, decode: 10, decode_full: 10"


def make_setup(config: str, policy: str = "") -> Setup:
    """A config, and the policy beside it if there is one."""
    parsed = parse_config(config, "sluice.yaml", environ={}, kinds=KINDS)
    return Setup(parsed, parse_policy(policy, "policy.yaml", parsed, environ={}) if policy else {})


def play(config: str, simulation: str, policy: str = "") -> Result:
    """The simulation of a workload on the engines of a config."""
    setup = make_setup(config, policy)
    return simulate(setup, parse_simulation(simulation, "simulation.yaml", setup, environ={}))


def workload(text: str = "", *, rate: float = 0, duration: float = 100, model: str = "m", **fields: object) -> str:
    """A workload of one kind of request, `chat`, which takes 2 s; `text` is more of the file."""
    request = {"model": model, "prompt": 100, "output": 11} | fields
    shown = msgspec.json.encode(request).decode()
    return f"workload:\n  rate: {rate}\n  duration: {duration}\n  requests: {{chat: {shown}}}\n{text}"


def burst(count: int, at: float = 0, over: float = 0) -> str:
    return f"  bursts: [{{at: {at}, requests: {count}, over: {over}}}]\n"


def engines(**boxes: str) -> str:
    lines = (f"  {name}: {{{SPEED}{', ' + more if more else ''}}}\n" for name, more in boxes.items())
    return f"engines:\n{''.join(lines)}"


def codes(result: Result) -> Counter[str]:
    return Counter(outcome.code for outcome in result.outcomes)
