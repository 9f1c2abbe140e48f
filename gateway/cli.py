"""The `sluice` command."""

import contextlib
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Sized
from pathlib import Path

import anyio
import click
import uvloop

from gateway import __version__
from gateway import demo as tour
from gateway.cli_config import config, load
from gateway.cli_policy import check_policy, explain, replay
from gateway.cli_simulate import simulate
from gateway.config.history import History
from gateway.config.load import ConfigError
from gateway.config.reload import POLL, Reloader
from gateway.config.schema import Config
from gateway.engines import KINDS
from gateway.engines.managed import ManagedError, find_model
from gateway.policy.load import Setup, load_setup
from gateway.server import Server, create_server, listen
from gateway.telemetry.logs import RequestLog, configure_logging

_CONFIG = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path),
    default=Path("sluice.yaml"),
    show_default=True,
    help="The config file.",
)


@click.group()
@click.version_option(__version__, prog_name="sluice")
def main() -> None:
    """One endpoint in front of all the language-model engines you run yourself."""


@main.command()
@_CONFIG
@click.option("--no-reload", is_flag=True, help="Keep the config as it is now, whatever becomes of its files.")
def serve(path: Path, no_reload: bool) -> None:
    """Run the gateway until it is told to stop. It follows its config files as they change, and SIGHUP."""
    configure_logging()
    reloader = Reloader(path, load, history=History(path), poll=None if no_reload else POLL)
    try:
        setup = reloader.first()
    except ConfigError as exc:
        raise click.ClickException(str(exc)) from None
    _run(setup, reloader)


@main.command()
@_CONFIG
def check(path: Path) -> None:
    """Check a config file and say what is wrong with it, without starting anything."""
    setup = _load(path)
    config = setup.config
    for name, engine in config.engines.items():
        if engine.managed is not None:
            try:
                find_model(engine.managed.model)
            except ManagedError as exc:
                raise click.ClickException(f"{path}: engines.{name}.managed.model: {exc}") from None
    policy = check_policy(path, setup)
    models = _count(config.models, "model name")
    click.echo(f"{path}: {_count(config.engines, 'engine')}, {models}{policy}, nothing wrong.")


@main.command()
def demo() -> None:
    """Start two small real engines behind the gateway, ask them something, and stay up to be tried."""
    configure_logging(logging.ERROR)
    setup = _load(tour.CONFIG_PATH)
    _run(setup, request_log=Path(os.devnull), beside=_tour(setup.config))


main.add_command(config)
main.add_command(explain)
main.add_command(replay)
main.add_command(simulate)


def _load(path: Path) -> Setup:
    try:
        return load_setup(path, kinds=KINDS)
    except ConfigError as exc:
        raise click.ClickException(str(exc)) from None


def _count(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _tour(config: Config) -> Callable[[], Awaitable[None]]:
    server = config.server
    url = f"http://{server.host}:{server.port}"
    return lambda: tour.tour(url, server.keys[0].key, next(iter(config.models)), sys.stdout)


def _run(
    setup: Setup,
    reloader: Reloader[Setup] | None = None,
    *,
    request_log: Path | None = None,
    beside: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serves until a signal comes, with the task `beside` next to it."""
    address = setup.config.server
    try:
        listener = listen(address.host, address.port)
    except OSError as exc:
        raise click.ClickException(
            f"cannot listen on {address.host} port {address.port}: {os.strerror(exc.errno or 0)}"
        ) from None
    with listener, open(request_log or sys.stderr.fileno(), "w", closefd=request_log is not None) as out:
        server = create_server(setup, RequestLog(out), reloader)
        _spare_the_collector()
        _allow_open_files()
        try:
            uvloop.run(_serve(server, listener, beside))
        except tour.DemoError as exc:
            raise click.ClickException(str(exc)) from None
    if not server.started:
        raise SystemExit(3)


def _allow_open_files() -> None:
    """Each stream takes two: the soft limit, often 1024, is raised to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _spare_the_collector() -> None:
    """What start-up made lives as long as the process, so the garbage collector need not look at it again.

    Requests make little garbage in cycles: collecting less often costs no memory to speak of (docs/performance.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _serve(server: Server, listener: socket.socket, beside: Callable[[], Awaitable[None]] | None) -> None:
    failure: tour.DemoError | None = None

    async def stand_beside() -> None:
        nonlocal failure
        try:
            if beside is not None:
                await beside()
        except tour.DemoError as exc:
            failure = exc
            server.should_exit = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stand_beside)
        await server.serve([listener])
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


if __name__ == "__main__":
    main()
