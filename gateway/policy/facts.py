"""What conditions can look at: facts of a request, and live facts of a tier. All are flat and typed."""

import math
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from gateway.config.policy import Class, Dialect, Endpoint


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one request.

    Attributes:
        model: the name that the client asked for.
        prompt_tokens: an estimate; the engine alone knows. See `rates.TokenRatio`.
        max_tokens: the limit that the client set for the answer; 0 is none.
        images, tools: how many of them it holds.
        structured: whether the answer must fit a schema or be JSON.
        dialect: `openai`, `anthropic` or `ollama`.
        endpoint: `chat`, `completions`, `embeddings`, `rerank`, `tokenize`, `messages`, `responses`, `count_tokens`.
        key: the name of the client's key; empty where none is asked for.
        key_class: of the client's key: `high`, `normal` or `low`.
        app: the header `X-Sluice-App`, else the program that `User-Agent` begins with.
        hour: of the gateway's local time, 0 to 23.
    """

    model: str = ""
    prompt_tokens: int = 0
    max_tokens: int = 0
    images: int = 0
    tools: int = 0
    structured: bool = False
    stream: bool = False
    dialect: str = "openai"
    endpoint: str = "chat"
    key: str = ""
    key_class: str = "normal"
    app: str = ""
    hour: int = 0


class TierFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Live facts of a tier, of the best of its targets that could take the request.

    Attributes:
        healthy: whether any target can take requests.
        queue: requests that wait for this tier.
        running: requests that its engines have from here.
        predicted_wait_s: how long a request would wait for a place; endless where nothing is healthy.
        predicted_ttft_s: the same until its first token.
        warm: whether a target that is healthy has the model in memory, or does not say that it has not.
        prefix_hit: the share of the prompt that a target is believed to have cached, from 0 to 1.
    """

    healthy: bool = True
    queue: int = 0
    running: int = 0
    predicted_wait_s: float = 0.0
    predicted_ttft_s: float = 0.0
    warm: bool = True
    prefix_hit: float = 0.0


REQUEST_FACTS: Mapping[str, Any] = {field.name: field.default for field in msgspec.structs.fields(Facts)}
TIER_FACTS: Mapping[str, Any] = {field.name: field.default for field in msgspec.structs.fields(TierFacts)}
"""Names of facts with an example of each, by which the types of conditions are checked."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "dialect": get_args(Dialect),
    "endpoint": get_args(Endpoint),
    "key_class": get_args(Class),
}
"""All that some texts can be, so that a condition which can never hold is found."""

ENDLESS = math.inf
