"""What is different between two configs, in words. Values are not repeated: any of them can be a secret."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
from msgspec import structs

from gateway.config.policy import ModelPolicy
from gateway.config.problems import ConfigError, Path, Problem, dotted
from gateway.config.schema import Config, Server

T = TypeVar("T")

_ADDRESS = ("host", "port")


def changes(
    old: Config, new: Config, old_policies: Mapping[str, ModelPolicy], new_policies: Mapping[str, ModelPolicy]
) -> list[str]:
    """A line for each engine, model name, policy, key and setting that is new, gone or different."""
    old_keys, new_keys = ({key.name: key for key in config.server.keys} for config in (old, new))
    return [
        *_named("engine", old.engines, new.engines),
        *_named("model name", old.models, new.models),
        *_named("policy of", old_policies, new_policies),
        *_named("key", old_keys, new_keys),
        *_settings(old, new),
    ]


def keep_address(old: Server, new: Server) -> tuple[Server, list[str]]:
    """`new` with the address that is listened on now, and what would need a restart.

    Raises:
        ConfigError: `new` asks for no key, which is meant for another address than this one.
    """
    moved = [name for name in _ADDRESS if getattr(old, name) != getattr(new, name)]
    if not moved:
        return new, []
    if "host" in moved and old.keys and not new.keys and not new.allow_unauthenticated:
        message = "without keys, the address that is listened on now would be open to everyone: restart for this change"
        raise ConfigError("", [Problem(0, "server", message)])
    kept = structs.replace(new, host=old.host, port=old.port)
    return kept, [f"server.{name} needs a restart, and stays as it was until then" for name in moved]


def _named(what: str, old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"{what} `{name}` removed"
        elif name not in old:
            yield f"{what} `{name}` added"
        elif old[name] != new[name]:
            where = ", ".join(_different(_plain(old[name]), _plain(new[name]), ()))
            yield f"{what} `{name}` changed" + (f" ({where})" if where else "")


def _settings(old: Config, new: Config) -> Iterator[str]:
    """Keys have words of their own."""
    yield from (f"{path} changed" for path in _different(_plain(old.queue), _plain(new.queue), ("queue",)))
    before, after = (structs.replace(config.server, keys=[]) for config in (old, new))
    yield from (f"{path} changed" for path in _different(_plain(before), _plain(after), ("server",)))


def _plain(value: object) -> object:
    return msgspec.to_builtins(value)


def _different(old: object, new: object, path: Path) -> list[str]:
    """The dotted paths of what differs, each once; lists are looked at as a whole."""
    if old == new:
        return []
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [dotted(path)] if path else []
    found = (where for key in [*old, *new] for where in _different(old.get(key), new.get(key), (*path, key)))
    return list(dict.fromkeys(found))
