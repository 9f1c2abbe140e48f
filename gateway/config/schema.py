"""The shape of `sluice.yaml`. Times are seconds, sizes are bytes, lengths are tokens."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Wait = Annotated[float, Meta(ge=0, le=86_400)]
"""Seconds, or 0 for none."""
Port = Annotated[int, Meta(ge=1, le=65_535)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the config: unknown keys are errors, so a misspelt limit cannot be switched off in silence."""


class Timeouts(Section, frozen=True):
    """How long each phase of one call to an engine may take. See docs/configuration.md, "Timeouts"."""

    connect: Seconds = 5.0
    """To a connection."""
    first_byte: Seconds = 600.0
    """From sending the request to the first byte of the reply. llama.cpp and Ollama send none while they queue."""
    ttft: Seconds = 600.0
    """From sending the request to the first output of a stream: text, reasoning or a tool call."""
    idle: Seconds = 120.0
    """Between two pieces of output, or of a reply's body. Comments that keep a connection open do not count."""
    total: Seconds = 3600.0
    """For the whole call."""


class Probe(Section, frozen=True):
    """How an engine's health is watched. Probes never generate text and never load a model."""

    interval: Seconds = 5.0
    timeout: Seconds = 3.0


class Managed(Section, frozen=True):
    """A llama.cpp server that Sluice starts as a child process and ends with itself."""

    model: Name
    """A GGUF file, or `package:NAME` for the one GGUF file inside an installed Python package."""
    context: Annotated[int, Meta(ge=128)] = 4096
    """Context length of each slot, in tokens."""
    slots: Annotated[int, Meta(ge=1, le=256)] = 1
    """Requests that run at the same time."""
    threads: Annotated[int, Meta(ge=1)] | None = None
    """CPU threads; by default the machine's cores, shared by all managed engines."""
    port: Port | None = None
    """Listening port on 127.0.0.1; by default a free one."""


class Pin(Section, frozen=True):
    """What a model must be to be used. An engine whose model is another, or does not say, takes no requests."""

    digest: Annotated[str, Meta(min_length=8)] | None = None
    """The model's bytes, such as `sha256:765525e6`; its first characters suffice (Ollama tells it)."""
    version: str | None = None
    """The engine's own version (llama.cpp's build, vLLM's and TGI's version)."""
    quantization: str | None = None
    """Such as `Q4_K_M` (llama.cpp and Ollama tell it)."""
    context: Annotated[int, Meta(ge=1)] | None = None
    """The context length in force, in tokens."""


class Engine(Section, frozen=True):
    """One backend engine: a server that runs models. Exactly one of `url` and `managed` is set."""

    kind: Name
    """Which adapter speaks to it; see `gateway/engines/`."""
    url: str | None = None
    """Base URL; a trailing `/v1` is understood."""
    managed: Managed | None = None
    models: list[Name] = []
    """Model names the engine serves. Empty: the engine is asked."""
    pins: dict[Name, Pin] = {}
    """What models must be to be used, by the engine's own names."""
    concurrency: Annotated[int, Meta(ge=1)] | None = None
    """Requests it runs at once. Not set: what the engine reports, else 1."""
    context: Annotated[int, Meta(ge=128)] | None = None
    """Context length in tokens to use. Ollama is told it with each request, so that it neither cuts nor reloads."""
    keep_alive: str | None = None
    """How long Ollama keeps a model loaded after a request, such as `10m` or `-1`."""
    speaks: list[Literal["messages", "responses"]] | None = None
    """Dialects beside OpenAI's chats in which it gets requests as they come: Anthropic's messages, OpenAI's responses.
    Not set: vLLM is asked which it has, and all others get chats."""
    api_key: str | None = None
    headers: dict[str, str] = {}
    transport: Literal["native", "httpx"] = "native"
    timeouts: Timeouts = msgspec.field(default_factory=Timeouts)
    probe: Probe = msgspec.field(default_factory=Probe)


class Target(Section, frozen=True):
    """Where requests for a model name may go."""

    engine: Name
    model: Name | None = None
    """The engine's own name for the model. Not set: the name asked for, or the engine's only model."""


class Key(Section, frozen=True, rename={"priority": "class"}):
    """A client's API key."""

    name: Name
    key: Annotated[str, Meta(min_length=8)]
    priority: Literal["high", "normal", "low"] = "normal"
    """Before whom its requests wait; policies can look at it as `key_class`, and change it."""


class Queue(Section, frozen=True):
    """How requests wait for a place at an engine."""

    limit: Annotated[int, Meta(ge=0)] = 1000
    """Requests that may wait at the same time; one more is refused (429)."""
    timeout: Seconds = 300.0
    """The longest wait of a request; then it is refused (503)."""
    comment_interval: Seconds = 10.0
    """How often a streaming client that waits is told its place, in a comment of the stream, so that nothing on the
    way takes the connection for dead. The first one comes after this time too."""


class Server(Section, frozen=True):
    """The listening side."""

    host: str = "127.0.0.1"
    port: Port = 8100
    keys: list[Key] = []
    """Empty: no key is asked for, which only a loopback address may do."""
    allow_unauthenticated: bool = False
    """Listen on another address than loopback without keys."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    max_header_bytes: Annotated[int, Meta(ge=4096)] = 64 * 1024
    max_reply_bytes: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    """Largest single event of a stream, and largest reply that is not a stream."""
    body_timeout: Seconds = 60.0
    """The longest pause while a client sends a request's body."""
    stall_timeout: Seconds = 120.0
    """How long a client may leave an answer unread before it is let go."""
    drain_timeout: Seconds = 30.0
    """How long running requests may go on after a request to stop."""


class Config(Section, frozen=True):
    """The whole of `sluice.yaml`."""

    engines: Annotated[dict[Name, Engine], Meta(min_length=1)]
    models: dict[Name, list[Target]] = {}
    """Names that clients may use besides those of the engines' own models."""
    policy: str | None = None
    """A policy file, beside which more names are routed; a path from this file's directory."""
    queue: Queue = msgspec.field(default_factory=Queue)
    server: Server = msgspec.field(default_factory=Server)
