"""The environment that tests of the config share, and the configs in bad.txt."""

from pathlib import Path

from gateway.config.load import ConfigError, parse_config
from gateway.config.schema import Config

KINDS = frozenset({"llamacpp", "openai", "vllm"})
ENVIRON = {"PORT": "8100", "EMPTY": "", "TOKEN": "env-secret-value", "DIGITS": "12345678", "YES": "true"}
URL = "http://127.0.0.1:8080"
ONE_ENGINE = f"engines:\n  fast: {{kind: llamacpp, url: {URL}}}\n"


def parse(text: str, environ: dict[str, str] = ENVIRON) -> Config:
    return parse_config(text, "sluice.yaml", environ=environ, kinds=KINDS)


def failure(text: str, environ: dict[str, str] = ENVIRON) -> str:
    """What the loader says about `text`, or nothing when it accepts it."""
    try:
        parse(text, environ)
    except ConfigError as error:
        return str(error)
    return ""


def bad_cases(path: Path) -> dict[str, tuple[str, str]]:
    """Text and messages of each case in a file such as bad.txt, by name."""
    _, *cases = path.read_text("utf-8").split("\n== ")
    found = {}
    for case in cases:
        name, _, rest = case.partition("\n")
        text, _, messages = f"\n{rest}".rpartition("\n=>\n")
        found[name] = text.removeprefix("\n") + "\n", messages.strip()
    return found


BAD = bad_cases(Path(__file__).with_name("bad.txt"))
