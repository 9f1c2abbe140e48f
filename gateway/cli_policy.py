"""`sluice explain` and `sluice replay`, and what `sluice check` does with a policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import anyio
import click
import msgspec

from gateway.api.question import Question, answer
from gateway.config.load import ConfigError, read_text
from gateway.config.schema import Engine
from gateway.engines import KINDS
from gateway.engines.base import EngineModel, Health, State
from gateway.errors import GatewayError
from gateway.fleet import Fleet
from gateway.policy.examples import try_examples
from gateway.policy.explain import Explanation, Given
from gateway.policy.explain_text import as_text
from gateway.policy.load import Setup, load_setup, parse_policy
from gateway.policy.replay import Replay
from gateway.policy.rules import Rules
from gateway.request import Endpoint
from gateway.router import Router
from gateway.upstream.http import httpx

_CONFIG = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path),
    default=Path("sluice.yaml"),
    show_default=True,
    help="The config file.",
)
_AMOUNT = click.IntRange(0, 1_000_000_000)
_PATIENCE = 10.0
"""Seconds that a running gateway has to explain."""


def check_policy(path: Path, setup: Setup) -> str:
    """Tries the examples of the policy that a config names; says in a few words what there is, or nothing.

    Raises:
        click.ClickException: with each example that fails.
    """
    if setup.config.policy is None:
        return ""
    file = path.parent / Path(setup.config.policy).expanduser()
    try:
        count = try_examples(read_text(file), str(file), setup.policies)
    except ConfigError as exc:
        raise click.ClickException(str(exc)) from None
    models = len(setup.policies)
    return f", a policy for {models} model{'s' * (models > 1)} with {count} example{'s' * (count != 1)}"


@click.command()
@_CONFIG
@click.option("--url", help="A running gateway to ask, such as http://127.0.0.1:8100, in place of the config file.")
@click.option("--api-key", envvar="SLUICE_KEY", help="The key to ask it with; else that in SLUICE_KEY.")
@click.option("--request", type=click.File("rb"), help="A file with a request's body, `-` for the standard input.")
@click.option("--endpoint", default="chat", help="Its name, or its path, such as /v1/messages.  [default: chat]")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of the client's.")
@click.option("--model")
@click.option("--prompt-tokens", type=_AMOUNT)
@click.option("--max-tokens", type=_AMOUNT)
@click.option("--images", type=_AMOUNT)
@click.option("--tools", type=_AMOUNT)
@click.option("--structured", is_flag=True, default=None)
@click.option("--stream", is_flag=True, default=None)
@click.option("--dialect", type=click.Choice(["openai", "anthropic", "ollama"]))
@click.option("--key", help="The name of the client's key.")
@click.option("--key-class", type=click.Choice(["high", "normal", "low"]))
@click.option("--app")
@click.option("--hour", type=click.IntRange(0, 23))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    path: Path,
    url: str | None,
    api_key: str | None,
    request: BinaryIO | None,
    endpoint: str,
    headers: tuple[str, ...],
    as_json: bool,
    **facts: Any,
) -> None:
    """Say where a request would go, and why. No engine hears of it.

    The request is a file's, or has the facts that are given; both together change the file's facts.
    """
    if request is None and facts["model"] is None:
        raise click.UsageError("give --model, or a request's body with --request")
    question = Question(
        path=_path(endpoint),
        request=_json(request) if request is not None else msgspec.UNSET,
        facts=Given(**facts),
        headers=dict(map(_header, headers)),
    )
    try:
        explanation = _ask(url, api_key, question) if url is not None else _assume(_load(path), question)
    except GatewayError as exc:
        raise click.ClickException(exc.message) from None
    click.echo(msgspec.json.format(msgspec.json.encode(explanation)).decode() if as_json else as_text(explanation))


@click.command()
@_CONFIG
@click.argument("log", type=click.File("r", encoding="utf-8", errors="replace"), default="-")
@click.option("--policy", type=click.Path(path_type=Path), help="The new policy; by default that of the config file.")
@click.option("--examples", default=3, show_default=True, type=click.IntRange(min=0), help="Of each change.")
def replay(path: Path, log: TextIO, policy: Path | None, examples: int) -> None:
    """Say what a policy would have done with the requests in LOG, the gateway's log, or its standard input."""
    setup = _load(path)
    new = setup.policies if policy is None else _policy(policy, setup)
    before = setup.policies if policy is not None else {}
    if not new:
        raise click.ClickException(f"{path} names no policy: give one with --policy")
    replayed = Replay(new, before, examples)
    for line in log:
        replayed.add(line)
    for line in replayed.text():
        click.echo(line)


def _load(path: Path) -> Setup:
    try:
        return load_setup(path, kinds=KINDS)
    except ConfigError as exc:
        raise click.ClickException(str(exc)) from None


def _policy(path: Path, setup: Setup) -> Mapping[str, Rules]:
    try:
        return parse_policy(read_text(path), str(path), setup.config)
    except ConfigError as exc:
        raise click.ClickException(str(exc)) from None


def _json(file: BinaryIO) -> msgspec.Raw:
    body = file.read()
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError as exc:
        raise click.ClickException(f"the request is not JSON: {exc}") from None
    return msgspec.Raw(body)


def _path(endpoint: str) -> str:
    if endpoint.startswith("/"):
        return endpoint
    known = {found.name.lower(): found.value for found in Endpoint}
    if endpoint not in known:
        raise click.BadParameter(
            f"{endpoint!r} is neither a path nor one of {', '.join(known)}", param_hint="--endpoint"
        )
    return known[endpoint]


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value


def _ask(url: str, api_key: str | None, question: Question) -> Explanation:
    """What a running gateway says."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        reply = httpx.post(
            f"{url.rstrip('/').removesuffix('/v1')}/admin/explain",
            content=msgspec.json.encode(question),
            headers=headers,
            timeout=_PATIENCE,
            trust_env=False,
        )
        if reply.status_code == 200:
            return msgspec.json.decode(reply.content, type=Explanation)
        raise click.ClickException(msgspec.json.decode(reply.content, type=_Failure).error.message)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise click.ClickException(f"{url}: {exc}") from None
    except msgspec.DecodeError:
        raise click.ClickException(f"{url} is no gateway that explains: it answered {reply.status_code}") from None


class _Error(msgspec.Struct):
    message: str


class _Failure(msgspec.Struct):
    error: _Error


def _assume(setup: Setup, question: Question) -> Explanation:
    """What a gateway with this config would do if all its engines were ready, idle and warm."""

    keys = setup.config.server.keys

    async def assume() -> Explanation:
        fleet = Fleet(setup.config)
        for name, backend in fleet.backends.items():
            backend.set_health(_assumed(name, setup))
        try:
            router = Router(setup.config, fleet, setup.policies)
            return answer(question, router, classes={key.name: key.priority for key in keys}, live=False)
        finally:
            for backend in fleet.backends.values():
                await backend.aclose()

    return anyio.run(assume)


def _assumed(name: str, setup: Setup) -> Health:
    """An engine that is ready and has every model that the config asks it for."""
    config = setup.config
    engine: Engine = config.engines[name]
    targets = [(alias, target) for alias, listed in config.models.items() for target in listed if target.engine == name]
    named = [target.model or alias for alias, target in targets]
    for alias, rules in setup.policies.items():
        tiers = rules.policy.tiers.values()
        named += [target.model or alias for tier in tiers for target in tier if target.engine == name]
    managed = engine.managed
    context = engine.context or (managed.context if managed is not None else None)
    models = [
        EngineModel(model, context=context)
        for model in dict.fromkeys(engine.models or ([name] if managed is not None else named))
    ]
    return Health(State.READY, models=tuple(models), slots=managed.slots if managed is not None else None)
