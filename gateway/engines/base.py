"""What Sluice needs of an engine. One more engine is one file with a subclass, and one entry in `engines.KINDS`."""

import enum
from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from gateway.config import schema
from gateway.engines.call import Call
from gateway.errors import GatewayError, InvalidRequest
from gateway.request import Endpoint, InferenceRequest
from gateway.upstream.http import httpx
from gateway.upstream.refusal import read_refusal

SPOKEN = {
    "messages": frozenset({Endpoint.MESSAGES, Endpoint.COUNT_TOKENS}),
    "responses": frozenset({Endpoint.RESPONSES}),
}
"""The endpoints that `speaks` in the config stands for."""


class State(enum.Enum):
    """Whether an engine can take requests."""

    STARTING = "starting"
    """Not looked at yet, or its process is being started."""
    LOADING = "loading"
    """It answers, and is loading its model."""
    READY = "ready"
    DOWN = "down"


class EngineModel(msgspec.Struct, frozen=True):
    """A model that an engine serves, under the engine's own name; `context` is in tokens.

    `digest` stands for the model's exact bytes, `quantization` is such as `Q4_K_M`, `version` is the engine's own, and
    `loaded` says whether it is in memory. `capabilities` are Ollama's words: `completion`, `tools`, `vision`,
    `thinking`, `embedding`, `insert`, and `audio`. `None` is what the engine does not tell.
    """

    name: str
    context: int | None = None
    digest: str | None = None
    quantization: str | None = None
    version: str | None = None
    loaded: bool | None = None
    capabilities: frozenset[str] | None = None


class Health(msgspec.Struct, frozen=True):
    """What a probe found. `reason` is for people and names no address.

    `slots` is how many requests the engine says it runs at once.
    """

    state: State
    reason: str = ""
    models: tuple[EngineModel, ...] = ()
    slots: int | None = None


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """How busy an engine says it is. `None` is what it does not tell.

    `running` and `waiting` count requests, from whomever they came. `kv_usage` is the share of its KV cache that is
    taken, from 0 to 1, and `kv_tokens` how many tokens that holds in all. `prefix_queries` and `prefix_hits` count the
    prompt tokens looked for in that cache since the engine started, and those found.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None


class Ability(enum.Enum):
    """What an engine can do beyond answering, by the field or interface with which it is asked for."""

    CONTINUE = "continue"
    """Takes up an unfinished message of the assistant where it ends."""
    PRIORITY = "priority"
    """Orders its own queue by `priority`, if it was started to."""
    CACHE_SALT = "cache_salt"
    """Shares cached prefixes only among requests with the same `cache_salt`."""
    CACHED_TOKENS = "cached_tokens"
    """Tells how many tokens of a prompt it had cached."""
    PREFILL_PROGRESS = "prefill_progress"
    """Tells when it begins with a prompt, and how far it is."""
    SLOT_FILES = "slot_files"
    """Saves a slot's KV cache to a file and restores it, if it was started to."""


class Engine:
    """An engine that speaks the OpenAI dialect at `url`. Subclasses say how it is probed.

    Args:
        url: the base URL; a trailing `/v1` and slash are understood.
        config: its `api_key` is sent as a bearer token, and its `headers` with each request; a client's own are never
            passed on.
    """

    kind: ClassVar[str]
    serves: frozenset[Endpoint] = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS})
    """The endpoints it has. Whether a model can use one is for the engine to say."""
    abilities: ClassVar[frozenset[Ability]] = frozenset()

    def __init__(self, url: str, config: schema.Engine) -> None:
        self.config = config
        self.serves = self.serves | {endpoint for name in config.speaks or () for endpoint in SPOKEN[name]}
        base = url.rstrip("/")
        base = base.removesuffix("/v1").rstrip("/")
        self.base = httpx.URL(base)
        host = urlsplit(base).netloc.encode("idna" if not base.isascii() else "ascii")
        auth = [(b"authorization", b"Bearer " + config.api_key.encode())] if config.api_key else []
        extra = [(name.lower().encode(), value.encode()) for name, value in config.headers.items()]
        self._headers = [
            (b"host", host),
            (b"content-type", b"application/json"),
            (b"accept-encoding", b"identity"),
            (b"user-agent", b"sluice"),
            *auth,
            *extra,
        ]
        self._urls: dict[str, httpx.URL] = {}

    def call(self, request: InferenceRequest, model: str) -> Call:
        """What to send for `request`, whose model the engine calls `model`.

        Raises:
            InvalidRequest: the engine has no such endpoint, or cannot carry a field that is set.
        """
        if request.endpoint not in self.serves:
            raise self.lacks(request.endpoint)
        return Call(self.request(request.endpoint.value, request.body_for(model)))

    def lacks(self, endpoint: Endpoint) -> InvalidRequest:
        return InvalidRequest(
            f"The engine of this model ({self.kind}) has no {endpoint.value}.", status=501, code="unsupported_endpoint"
        )

    def refusal(self, name: str, status: int, headers: Mapping[bytes, bytes], body: bytes) -> GatewayError:
        """The error that an answer with a status other than 200 stands for; `name` is the engine's in the config."""
        return read_refusal(name, status, headers, body)

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

    async def read_load(self, client: httpx.AsyncClient) -> Load | None:  # noqa: ARG002 - for subclasses
        """How busy it says it is; `None` where it does not tell.

        Raises:
            httpx.HTTPError: it could not be reached or did not answer in time.
        """
        return None

    async def get(self, client: httpx.AsyncClient, path: str) -> httpx.Response:
        """A GET of the engine's `path` with its credentials."""
        return await client.get(self.url(path), headers=self._headers)
