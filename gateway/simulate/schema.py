"""The shape of a simulation file: how fast the engines are, and what is asked of them. Times are seconds."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config.policy import Class, Count
from gateway.config.schema import Name, Seconds, Section

Rate = Annotated[float, Meta(ge=0.1, le=1_000_000)]
Length = Annotated[int, Meta(ge=1, le=1_000_000)]
Moment = Annotated[float, Meta(ge=0, le=86_400)]


class Speed(Section, frozen=True):
    """How fast an engine is with a model, in tokens per second. What is not set is as usual for its kind."""

    prefill: Rate | None = None
    """Of prompts, all requests together."""
    decode: Rate | None = None
    """Of the answer to a request that has the engine for itself."""
    decode_full: Rate | None = None
    """Of each answer while all slots are taken; in between, the time of a token grows evenly."""
    load: Moment | None = None
    """Seconds until the model is in memory."""


class Box(Speed, frozen=True):
    """An engine of the config, as it is played."""

    slots: Count | None = None
    """Requests that it runs at once. Those beyond wait inside it, in the order in which they came."""
    cache: Annotated[int, Meta(ge=0)] | None = None
    """Tokens of prefixes that it keeps; the one used longest ago goes first."""
    memory: Count | None = None
    """Models that are in memory at once; for another one, that used longest ago is thrown out as soon as it is idle."""
    keep_alive: Seconds | None = None
    """How long a model stays in memory after its last request."""
    cold: bool = False
    """No model is in memory at the beginning."""
    context: Count | None = None
    """Tokens, where the config does not say; not set: any prompt fits."""
    models: dict[Name, Speed] = msgspec.field(default_factory=dict)
    """Models that are faster or slower than the rest, by the engine's own names."""


class Tokens(Section, frozen=True):
    """A number of tokens: always `median`; or spread (log-normal) with 5 % above `p95`; or exponential about `mean`."""

    median: Length | None = None
    p95: Length | None = None
    mean: Length | None = None
    max: Length | None = None
    """The most."""


class Prefix(Section, frozen=True):
    """A beginning that prompts share, such as the system prompt of an app."""

    tokens: Length
    count: Count = 1
    """How many of them there are; each request has one of them, all as often."""
    by_key: bool = False
    """Whether each key has its own."""


class Requests(Section, frozen=True, rename={"priority": "class"}):
    """A kind of request."""

    model: Name
    """As clients ask for it."""
    prompt: Tokens
    """Beside the prefix."""
    output: Tokens
    """What the model would answer without a limit."""
    share: Annotated[float, Meta(gt=0)] = 1.0
    """How many of all requests are of this kind, beside the shares of the others."""
    keys: list[Name] = msgspec.field(default_factory=list)
    """Whose they are, all as often; not set: no key is asked for."""
    priority: Class | None = None
    """Not set: the class of its key."""
    max_tokens: Count | None = None
    """The limit that the client sets for the answer."""
    prefix: Prefix | None = None
    stream: bool = True
    images: Annotated[int, Meta(ge=0)] = 0
    tools: Annotated[int, Meta(ge=0)] = 0
    structured: bool = False
    dialect: Literal["openai", "anthropic", "ollama"] = "openai"
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class Burst(Section, frozen=True):
    """Requests beside the steady ones."""

    at: Moment
    requests: Count
    """How many."""
    over: Moment = 0.0
    """Seconds over which they are spread; 0 is all at once."""
    of: Name | None = None
    """The kind of request; not set: a mix as of the others."""


class Workload(Section, frozen=True):
    """What is asked of the engines."""

    duration: Seconds
    """How long requests come. Those that are under way then are finished."""
    requests: Annotated[dict[Name, Requests], Meta(min_length=1)]
    rate: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    """Requests per second, at random moments (Poisson)."""
    bursts: list[Burst] = msgspec.field(default_factory=list)
    seed: int = 0
    """The same seed, the same simulation."""
    hour: Annotated[int, Meta(ge=0, le=23)] = 12
    """Of the day, at the beginning."""


class Simulation(Section, frozen=True):
    """The whole of a simulation file."""

    workload: Workload
    engines: dict[Name, Box] = msgspec.field(default_factory=dict)
    """By their names in the config."""
