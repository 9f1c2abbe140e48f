"""What Sluice needs of an engine. One more engine is one file with a subclass, and one entry in `engines.KINDS`."""

import enum
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from gateway.upstream.http import httpx


class State(enum.Enum):
    """Whether an engine can take requests."""

    STARTING = "starting"
    """Not looked at yet, or its process is being started."""
    LOADING = "loading"
    """It answers, and is loading its model."""
    READY = "ready"
    DOWN = "down"


class EngineModel(msgspec.Struct, frozen=True):
    """A model that an engine serves, under the engine's own name; `context` is in tokens, `None` if unknown."""

    name: str
    context: int | None = None


class Health(msgspec.Struct, frozen=True):
    """What a probe found. `reason` is for people and names no address.

    `slots` is how many requests the engine says it runs at once.
    """

    state: State
    reason: str = ""
    models: tuple[EngineModel, ...] = ()
    slots: int | None = None


class Engine:
    """An engine that speaks the OpenAI dialect at `url`. Subclasses say how it is probed.

    Args:
        url: the base URL; a trailing `/v1` and slash are understood.
        api_key: sent as a bearer token; the client's own is never passed on.
        headers: further headers for each request.
    """

    kind: ClassVar[str]

    def __init__(self, url: str, api_key: str | None, headers: dict[str, str]) -> None:
        base = url.rstrip("/")
        base = base.removesuffix("/v1").rstrip("/")
        self.base = httpx.URL(base)
        host = urlsplit(base).netloc.encode("idna" if not base.isascii() else "ascii")
        auth = [(b"authorization", b"Bearer " + api_key.encode())] if api_key else []
        extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._headers = [
            (b"host", host),
            (b"content-type", b"application/json"),
            (b"accept-encoding", b"identity"),
            (b"user-agent", b"sluice"),
            *auth,
            *extra,
        ]
        self._urls: dict[str, httpx.URL] = {}

    def request(self, path: str, body: bytes) -> httpx.Request:
        """A POST of `body` to the engine's `path`, which begins with `/`."""
        return httpx.Request(
            "POST",
            self.url(path),
            headers=[*self._headers, (b"content-length", b"%d" % len(body))],
            stream=httpx.ByteStream(body),
        )

    def url(self, path: str) -> httpx.URL:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = httpx.URL(str(self.base) + path)
        return url

    async def probe(self, client: httpx.AsyncClient) -> Health:
        """Looks whether the engine can take requests, by means that never generate or load anything.

        Raises:
            httpx.HTTPError: it could not be reached or did not answer in time.
        """
        raise NotImplementedError

    async def get(self, client: httpx.AsyncClient, path: str) -> httpx.Response:
        """A GET of the engine's `path` with its credentials."""
        return await client.get(self.url(path), headers=self._headers)
