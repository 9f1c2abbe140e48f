"""The config that tests of policies share, and the policies in bad.txt."""

from collections.abc import Mapping
from pathlib import Path

from gateway.config.load import ConfigError, parse_config
from gateway.policy.load import parse_policy
from gateway.policy.rules import Rules
from tests.unit.config.cases import bad_cases

CONFIG = parse_config(
    """
engines:
  fast: {kind: llamacpp, url: http://127.0.0.1:8080}
  gpu: {kind: vllm, url: http://127.0.0.1:8000, models: [qwen, llama]}
models:
  alias: fast
""",
    "sluice.yaml",
    environ={},
    kinds={"llamacpp", "vllm"},
)
ENVIRON = {"LIMIT": "500", "TIER": "small"}


def parse(text: str) -> Mapping[str, Rules]:
    return parse_policy(text, "policy.yaml", CONFIG, environ=ENVIRON)


def failure(text: str) -> str:
    """What the loader says about `text`, or nothing when it accepts it."""
    try:
        parse(text)
    except ConfigError as error:
        return str(error)
    return ""


BAD = bad_cases(Path(__file__).with_name("bad.txt"))
