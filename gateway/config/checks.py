"""What the types alone cannot say: values that must fit each other, or a protocol."""

import ipaddress
import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from gateway.config.document import Node, Scalar
from gateway.config.problems import Path, Problems, listed, nearest
from gateway.config.schema import Engine, Server, Target
from gateway.config.values import shown

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_SPEAKING = frozenset({"llamacpp", "openai", "vllm"})
_OWN_HEADERS = frozenset({"connection", "content-length", "host", "transfer-encoding"})
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_UNFIT_TO_SEND = "cannot be sent in a header: only ASCII letters, digits, marks, and spaces between them can"


class Checks:
    """Checks sections that fit the schema by themselves, and adds what it finds to `problems`."""

    def __init__(self, places: Mapping[Path, Node], problems: Problems, kinds: Collection[str]) -> None:
        self._places = places
        self._problems = problems
        self._kinds = sorted(kinds)

    def engine(self, name: str, engine: Engine) -> None:
        path = ("engines", name)
        if self._problems.none_in(path):
            self._url_or_managed(engine, path)
        if engine.kind not in self._kinds:
            at = (*path, "kind")
            near = nearest(engine.kind, self._kinds)
            self._add(at, f"unknown kind {self._shown(at)}; known kinds: {listed(self._kinds)}{near}")
        elif engine.managed and engine.kind != "llamacpp":
            self._add((*path, "managed"), "only an engine of kind `llamacpp` can be managed")
        if engine.url is not None and (wrong := _wrong_with_url(engine.url)):
            self._add((*path, "url"), wrong)
        if engine.speaks and engine.kind not in _SPEAKING:
            at = (*path, "speaks")
            self._add(at, f"an engine of kind {self._shown((*path, 'kind'))} gets every request through its own API")
        if engine.api_key is not None:
            self._credential(engine.api_key, (*path, "api_key"))
        self._headers(engine.headers, (*path, "headers"))

    def model(self, alias: str, targets: list[Target], names: Collection[str], engines: Mapping[str, Engine]) -> None:
        """`names` are those of all engines in the file, `engines` holds those that could be read."""
        path = ("models", alias)
        if not targets:
            self._add(path, "expected at least one target, an engine's name or `{engine: NAME, model: NAME}`")
        for i, target in enumerate(targets):
            at = (*path, i, "engine")
            if target.engine not in names:
                near = nearest(target.engine, names)
                self._add(at, f"no engine is named {self._shown(at)}{near or f'; the engines are {listed(names)}'}")
            elif target.engine in engines:
                self._served(alias, target, engines[target.engine].models, (*path, i))

    def server(self, server: Server) -> None:
        at = ("server", "host")
        if not server.host:
            self._add(at, "must not be empty: `127.0.0.1` is this machine alone, `0.0.0.0` every address")
        elif self._problems.none_in(("server",)) and not (
            server.keys or server.allow_unauthenticated or _is_loopback(server.host)
        ):
            self._add(
                at,
                "not a loopback address, and no client would need a key: list keys under `server.keys`, or set "
                "`server.allow_unauthenticated: true` to let everyone in",
            )
        names: dict[str, int] = {}
        values: dict[str, int] = {}
        for i, key in enumerate(server.keys):
            path = ("server", "keys", i)
            self._once(key.name, names, (*path, "name"), "another key has this name")
            self._once(key.key, values, (*path, "key"), "another entry has the same key")
            self._credential(key.key, (*path, "key"))

    def _url_or_managed(self, engine: Engine, path: Path) -> None:
        if engine.managed and engine.url is not None:
            self._add(
                path,
                "both `url` and `managed` are set: keep `url` for a server that runs already, or `managed` for one "
                "that Sluice starts",
            )
        elif not engine.managed and engine.url is None:
            self._add(
                path,
                "one of `url` (a server that runs already) and `managed` (a llama.cpp server that Sluice starts) is "
                "missing",
            )

    def _served(self, alias: str, target: Target, models: list[str], path: Path) -> None:
        if not models or (target.model or alias) in models or (target.model is None and len(models) == 1):
            return
        places = [("engines", target.engine, "models", i) for i in range(len(models))]
        there = f"; it has {', '.join(map(self._shown, places))}"
        engine = f"the engine {self._shown((*path, 'engine'))}"
        if target.model is None:
            self._add((*path, "engine"), f"{engine} has no model `{alias}`: say which one is meant with `model`{there}")
            return
        written = [name for name, at in zip(models, places, strict=True) if not self._from_environment(at)]
        at = (*path, "model")
        self._add(at, f"{engine} has no model {self._shown(at)}{nearest(target.model, written) or there}")

    def _headers(self, headers: Mapping[str, str], path: Path) -> None:
        seen: dict[str, int] = {}
        for name, value in headers.items():
            at = (*path, name)
            if not _HEADER_NAME.fullmatch(name):
                self._add(at, "a header's name is letters, digits and `-`; write it as `Name: value`")
                continue
            if name.lower() in _OWN_HEADERS:
                self._add(at, f"`{name}` is set by Sluice itself")
            if not _HEADER_VALUE.fullmatch(value):
                self._add(at, f"the value of `{name}` {_UNFIT_TO_SEND}")
            self._once(name.lower(), seen, at, f"`{name}` is the same header as another")

    def _credential(self, value: str, path: Path) -> None:
        if not value:
            self._add(path, "must not be empty; leave the key out for none")
        elif not _HEADER_VALUE.fullmatch(value):
            self._add(path, f"the value {_UNFIT_TO_SEND}")

    def _once(self, value: str, seen: dict[str, int], path: Path, message: str) -> None:
        if value in seen:
            self._add(path, f"{message}, on line {seen[value]}")
        seen.setdefault(value, self._places[path].line)

    def _add(self, path: Path, message: str) -> None:
        self._problems.add(self._places[path].line, path, message)

    def _shown(self, path: Path) -> str:
        return shown(self._places[path])

    def _from_environment(self, path: Path) -> bool:
        node = self._places[path]
        return isinstance(node, Scalar) and bool(node.variables)


def _wrong_with_url(url: str) -> str | None:
    """Why `url` cannot be an engine's; never repeats it, as it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "the URL's host or port is not valid"
    if parts.scheme not in {"http", "https"}:
        return "expected a URL that starts with `http://` or `https://`"
    if "@" in parts.netloc:
        return "a user or password in a URL is not read; use `api_key`, or an `Authorization` under `headers`"
    if "?" in url or "#" in url:
        return "an engine's URL has no `?` and no `#`"
    if not url.isascii() or " " in url:
        return "a URL holds ASCII characters only, and no spaces"
    if not parts.hostname or not _is_host(parts.hostname) or port == 0:
        return "the URL's host or port is missing or not valid"
    return None


def _is_host(host: str) -> bool:
    return bool(_HOST.fullmatch(host)) or (":" in host and _address(host) is not None)


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" or bool(address and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
