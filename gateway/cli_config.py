"""`sluice config`: the schema of config files, and the versions of one that were loaded."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from gateway.config import document
from gateway.config.document import NotYaml, Scalar, read_document
from gateway.config.history import Copy, History, NoVersion, replace
from gateway.config.jsonschema import json_schema, policy_json_schema
from gateway.config.load import parse_config, read_text
from gateway.config.masked import difference
from gateway.config.problems import ConfigError, Problem
from gateway.config.reload import Read
from gateway.config.values import is_null
from gateway.engines import KINDS
from gateway.policy.load import Setup, parse_policy

_CONFIG = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path),
    default=Path("sluice.yaml"),
    show_default=True,
    help="The config file.",
)


def load(path: Path, read: Read = read_text) -> Setup:
    """Reads a config file, then the policy file if it names one, and checks both.

    Raises:
        ConfigError: the one or the other cannot be used.
    """
    config = parse_config(read(path), str(path), kinds=KINDS)
    if config.policy is None:
        return Setup(config)
    file = _policy_file(path, config.policy)
    return Setup(config, parse_policy(read(file), str(file), config))


@click.group()
def config() -> None:
    """About config files, and the versions that were loaded."""


@config.command()
@click.option("--policy", is_flag=True, help="That of policy files.")
def schema(policy: bool) -> None:
    """Print the JSON Schema of config files, for editors."""
    click.echo(json.dumps(policy_json_schema() if policy else json_schema(KINDS), indent=2))


@config.command()
@_CONFIG
def history(path: Path) -> None:
    """List the versions that were loaded, the latest one first."""
    with _told():
        loads = History(path).loads()
    now = None
    with contextlib.suppress(ConfigError):
        now = _written(path).version
    if not loads:
        click.echo(f"No version of {path} is remembered.")
    for load in reversed(loads):
        mark = "*" if load.version == now else " "
        what = "; ".join(load.changes) or "only its words are others"
        click.echo(f"{mark} {load.at.astimezone():%Y-%m-%d %H:%M:%S}  {load.version}  {what}")
    if any(load.version == now for load in loads):
        click.echo("* is what the files say now.")


@config.command()
@_CONFIG
@click.argument("old", metavar="[VERSION", required=False)
@click.argument("new", metavar="[VERSION]]", required=False)
def diff(path: Path, old: str | None, new: str | None) -> None:
    """Show how the files differ from the version loaded last, or from VERSION; or how two versions differ.

    The beginning of a version's name is enough. Secrets are shown as numbers: the same one has the same number.
    """
    with _told():
        versions = History(path)
        if old is None:
            old = versions.latest()
            if old is None:
                raise NoVersion(f"no version of {path} is remembered")
        before = versions.find(old)
        after = _written(path) if new is None else versions.find(new)
        name = str(path) if new is None else f"{path} {after.version}"
        shown = difference(before, after, f"{path} {before.version}", name)
    click.echo(shown or "Nothing is different.\n", nl=False)


@config.command()
@_CONFIG
@click.argument("version")
def rollback(path: Path, version: str) -> None:
    """Write VERSION back to the config file, and to its policy file. A gateway that runs with them takes it up."""
    with _told():
        versions = History(path)
        old = versions.find(version)
        texts = _texts(path, old)
        if all(_present(file) == text for file, text in texts.items()):
            click.echo(f"The files say what {old.version} says.")
            return
        for copy in _overwritten(path, texts):
            versions.keep(copy, f"not loaded, but in the files until {old.version} was written back")
        for file, text in texts.items():
            replace(file, text.encode())
    click.echo(f"{' and '.join(map(str, texts))}: as in {old.version} again.")


def _texts(path: Path, copy: Copy) -> dict[Path, str]:
    """What a version has for which file.

    Raises:
        ConfigError: it cannot be used any longer.
    """
    texts: dict[Path, str] = {}

    def read(file: Path) -> str:
        text = copy.policy if texts else copy.config
        if text is None:  # where its policy file is came from the environment
            return read_text(file)
        texts[file] = text
        return text

    load(path, read)
    return texts


def _overwritten(path: Path, texts: Mapping[Path, str]) -> Iterator[Copy]:
    """The files as they are before `texts` are written, whatever is wrong with them; they may never have been loaded.

    Raises:
        OSError: one cannot be read.
    """
    config = _present(path)
    policy = None
    if config is not None:
        with contextlib.suppress(ConfigError):
            policy = _named_policy(path, config)
        yield Copy(config, _present(policy) if policy is not None else None)
    for file in texts:
        if file not in (path, policy) and (text := _present(file)) is not None:
            yield Copy(texts[path], text)


def _present(file: Path) -> str | None:
    """What is in a file, with marks in place of what is no text; `None` where there is none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return file.read_bytes().decode("utf-8-sig", "replace")
    except FileNotFoundError:
        return None


def _written(path: Path) -> Copy:
    """The files as they are, whether they can be used or not.

    Raises:
        ConfigError: one cannot be read.
    """
    text = read_text(path)
    policy = _named_policy(path, text)
    return Copy(text, read_text(policy) if policy is not None else None)


def _named_policy(path: Path, text: str) -> Path | None:
    """The policy file that a config names.

    Raises:
        ConfigError: it names a user that does not exist.
    """
    try:
        root = read_document(text, os.environ)
    except NotYaml:
        root = None
    entries = root.entries if isinstance(root, document.Mapping) else []
    policy = {key.text: value for key, value in entries if isinstance(key, Scalar)}.get("policy")
    if not isinstance(policy, Scalar) or is_null(policy):
        return None
    return _policy_file(path, policy.text)


def _policy_file(path: Path, name: str) -> Path:
    try:
        return path.parent / Path(name).expanduser()
    except RuntimeError as exc:
        raise ConfigError(str(path), [Problem(0, "policy", str(exc))]) from None


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ConfigError, NoVersion) as exc:
        raise click.ClickException(str(exc)) from None
    except OSError as exc:
        raise click.ClickException(f"{exc.filename}: {exc.strerror}") from None
