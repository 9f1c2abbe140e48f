"""The shape of a policy file: how requests for each model are routed, and how they wait. Times are seconds."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.config.schema import Name, Seconds, Section, Wait

Class = Literal["high", "normal", "low"]
Dialect = Literal["openai", "anthropic", "ollama"]
Endpoint = Literal["chat", "completions", "embeddings", "rerank", "tokenize", "responses", "messages", "count_tokens"]
Message = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]


class TargetTimeouts(Section, frozen=True):
    """Limits in place of the engine's own `timeouts`; see there. What is not named stays."""

    connect: Seconds | None = None
    first_byte: Seconds | None = None
    ttft: Seconds | None = None
    idle: Seconds | None = None
    total: Seconds | None = None


class Target(Section, frozen=True):
    """An engine of a tier, and the model that it is asked for."""

    engine: Name
    model: Name | None = None
    """The engine's own name for the model. Not set: the name asked for, or the engine's only model."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """How often it is chosen beside the others of its tier, with `score: weighted`."""
    timeouts: TargetTimeouts = TargetTimeouts()


class Fields(Section, frozen=True):
    """Values for fields of a request. What is not named stays as the client sent it."""

    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: int | None = None


class Cap(Section, frozen=True):
    """The most that a field of a request may be; a request without it gets this."""

    max_tokens: Count | None = None


class Rule(Section, frozen=True, rename={"priority": "class"}):
    """What is done with requests for which `when` holds; without it, with all.

    Rules are looked at in order. What they set adds up, a later one going before an earlier one; the first one that
    routes or rejects is the last one looked at.
    """

    name: Name | None = None
    """For decisions and explanations; by default the rule's number."""
    when: str | None = None
    """A condition in CEL; see docs/policies.md."""
    route: list[Name] | None = None
    """Tiers, the preferred one first."""
    reject: Message | None = None
    """A message for the client, who gets it with the status 403."""
    priority: Class | None = None
    """Before whom it waits."""
    set: Fields | None = None
    cap: Cap | None = None
    deadline: Seconds | None = None
    """From the request's arrival to the end of its answer."""
    on_deadline: Literal["error", "cut"] | None = None
    """What becomes of a stream that has begun: an error, or an end as if `max_tokens` were reached."""
    spill: Wait | None = None
    """The wait that is predicted at a tier beyond which the next one is used too."""


class Expected(Section, frozen=True, rename={"priority": "class"}):
    """What a policy is expected to do with an example. What is not named is not looked at."""

    tier: Name | None = None
    """The first one of the plan."""
    rule: Name | None = None
    rejected: bool = False
    priority: Class | None = None
    max_tokens: int | None = None


class Situation(Section, frozen=True):
    """Facts of an example; what is not named is as for the smallest request."""

    prompt_tokens: Number = 10
    max_tokens: Number = 0
    images: Number = 0
    tools: Number = 0
    structured: bool = False
    stream: bool = False
    dialect: Dialect = "openai"
    endpoint: Endpoint = "chat"
    key: str = ""
    key_class: Class = "normal"
    app: str = ""
    hour: Annotated[int, Meta(ge=0, le=23)] = 12
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class TierSituation(Section, frozen=True):
    """Live facts of a tier in an example."""

    healthy: bool = True
    queue: Number = 0
    running: Number = 0
    predicted_wait_s: Wait = 0.0
    predicted_ttft_s: Wait = 0.0
    warm: bool = True
    prefix_hit: Annotated[float, Meta(ge=0, le=1)] = 0.0


class Example(Section, frozen=True):
    """A request, and what is expected of the policy for it. `sluice check` tries each."""

    expect: Expected
    request: Situation = msgspec.field(default_factory=Situation)
    tiers: dict[Name, TierSituation] = msgspec.field(default_factory=dict)


class Back(Section, frozen=True):
    """When a canary gets no more traffic. The latest requests that it answered are looked at."""

    errors: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """The share of them that its engines failed on, beyond which it is over."""
    ttft: Seconds | None = None
    """The median time to their first token beyond which it is over. Not set: that does not matter."""
    least: Count = 20
    """How many there must be before anything is concluded."""
    window: Count = 100
    """How many of the latest are looked at."""


class Canary(Section, frozen=True):
    """A tier that gets a share of the traffic, until it does badly; then none, until this section changes."""

    tier: Name
    """Other requests do not use it, unless a rule routes them there alone."""
    share: Share = 0.05
    back: Back = msgspec.field(default_factory=Back)


class Shadow(Section, frozen=True):
    """A tier that gets copies of a share of the requests. Its answers are dropped."""

    tier: Name
    """Requests themselves do not use it, unless a rule routes them there alone."""
    share: Share = 0.1


class ModelPolicy(Section, frozen=True):
    """How requests for one name are routed."""

    tiers: Annotated[dict[Name, list[Target]], Meta(min_length=1)]
    """Groups of engines that serve as one another's equals. Their order is that in which they are used."""
    rules: list[Rule] = msgspec.field(default_factory=list)
    score: Literal["predicted_ttft", "least_loaded", "round_robin", "weighted", "hash"] = "predicted_ttft"
    """By what a tier's engine is chosen."""
    spill: Wait = 2.0
    """The wait that is predicted at a tier beyond which the next one is used too."""
    canary: Canary | None = None
    shadow: Shadow | None = None
    examples: list[Example] = msgspec.field(default_factory=list)


class Policy(Section, frozen=True):
    """The whole of a policy file."""

    models: Annotated[dict[Name, ModelPolicy], Meta(min_length=1)]
