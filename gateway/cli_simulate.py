"""`sluice simulate`: what a config and a policy would do under a load, on engines that are played."""

import math
from pathlib import Path

import click
import msgspec

from gateway.config.load import ConfigError, read_text
from gateway.engines import KINDS
from gateway.policy.load import Setup, load_setup, parse_policy
from gateway.simulate.load import parse_simulation
from gateway.simulate.report import summarize
from gateway.simulate.run import simulate as run
from gateway.simulate.schema import Simulation
from gateway.simulate.table import table

_FILE = click.Path(path_type=Path)


def _number(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("`nan` is no number.")
    return value


@click.command()
@click.argument("file", type=_FILE)
@click.option(
    "--config", "-c", type=_FILE, default=Path("sluice.yaml"), show_default=True, help="The config file of the gateway."
)
@click.option("--policy", type=_FILE, help="A policy file in place of the one that the config names.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, max=100_000),
    callback=_number,
    help="Requests per second, in place of those in FILE.",
)
@click.option("--seed", type=int, help="In place of the one in FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def simulate(
    file: Path, config: Path, policy: Path | None, rate: float | None, seed: int | None, as_json: bool
) -> None:
    """Play a workload against engines of given speeds, through the gateway's own policy and queue.

    FILE says what is asked and how fast the engines are; see docs/simulate.md. Nothing is started and nothing is sent.
    """
    try:
        setup = _setup(config, policy)
        simulation = parse_simulation(read_text(file), str(file), setup, rate=rate)
    except ConfigError as exc:
        raise click.ClickException(str(exc)) from None
    report = summarize(run(setup, _seeded(simulation, seed)))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        click.echo(table(report), nl=False)


def _setup(config: Path, policy: Path | None) -> Setup:
    setup = load_setup(config, kinds=KINDS)
    if policy is None:
        return setup
    return Setup(setup.config, parse_policy(read_text(policy), str(policy), setup.config))


def _seeded(simulation: Simulation, seed: int | None) -> Simulation:
    if seed is None:
        return simulation
    return msgspec.structs.replace(simulation, workload=msgspec.structs.replace(simulation.workload, seed=seed))
