"""OpenAI's chat dialect as typed structs, for translators. What passes untranslated never comes here.

Source: https://platform.openai.com/docs/api-reference/chat.
"""

from typing import Any

import msgspec

from gateway.errors import InvalidRequest

Json = Any
"""A JSON value that is carried and not looked into."""


class _Part(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Omits what is absent when it is written."""


class ImageUrl(_Part, kw_only=True):
    url: str
    detail: str | None = None


class ContentPart(_Part, kw_only=True):
    """One part of a message's content; `type` says which field holds it."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None


class FunctionCall(_Part, kw_only=True):
    name: str | None = None
    arguments: str | dict[str, Json] | None = None
    """JSON as text; some clients and engines send the object itself."""


class ToolCall(_Part, kw_only=True):
    """In a stream `index` tells which call a part belongs to, and `id` and `function.name` come with its first."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionCall = msgspec.field(default_factory=FunctionCall)


class Message(_Part, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class Function(_Part, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """Always written with its `type`, which llama.cpp does not do without."""

    function: Function
    type: str = "function"


class JsonSchema(_Part, kw_only=True):
    name: str = msgspec.field(default_factory=lambda: "answer")
    """Written always, since OpenAI and vLLM need it: a default that is made is not left out."""
    schema: dict[str, Json] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(_Part, kw_only=True):
    type: str
    json_schema: JsonSchema | None = None


class StreamOptions(_Part, kw_only=True):
    include_usage: bool | None = None


class ChatRequest(_Part, kw_only=True):
    """A chat request. Fields that no translator can carry are not here: `unknown_fields` finds them."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    user: str | None = None

    @property
    def output_limit(self) -> int | None:
        """The longest output in tokens; `max_completion_tokens` goes before the older `max_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


class Usage(_Part, kw_only=True):
    """Counts of zero are counts: a default that is made is not left out."""

    prompt_tokens: int = msgspec.field(default_factory=int)
    completion_tokens: int = msgspec.field(default_factory=int)
    total_tokens: int = msgspec.field(default_factory=int)
    prompt_tokens_details: dict[str, Json] | None = None
    completion_tokens_details: dict[str, Json] | None = None

    @property
    def cached_tokens(self) -> int | None:
        cached = (self.prompt_tokens_details or {}).get("cached_tokens")
        return cached if isinstance(cached, int) else None

    @property
    def reasoning_tokens(self) -> int | None:
        reasoning = (self.completion_tokens_details or {}).get("reasoning_tokens")
        return reasoning if isinstance(reasoning, int) else None


def make_usage(prompt: int, completion: int, cached: int | None = None) -> Usage:
    details = None if cached is None else {"cached_tokens": cached}
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=details,
    )


class Delta(_Part, kw_only=True):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def thought(self) -> str | None:
        """Reasoning, under either of the names engines have for it."""
        return self.reasoning_content if self.reasoning_content is not None else self.reasoning


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None
    logprobs: Json = None
    stop_reason: Json | msgspec.UnsetType = msgspec.UNSET
    """vLLM's: the stop text, or the id of the token, that ended the answer."""


class Timings(_Part, kw_only=True):
    """llama.cpp's `timings`, by which an engine's times reach the timeline; milliseconds."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class Chunk(_Part, kw_only=True):
    """One event of a stream."""

    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    choices: list[ChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None


class Choice(msgspec.Struct, kw_only=True):
    index: int = 0
    message: Message
    finish_reason: str | None = None
    logprobs: Json = None
    stop_reason: Json | msgspec.UnsetType = msgspec.UNSET


class Completion(_Part, kw_only=True):
    """A reply in one piece."""

    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    choices: list[Choice]
    usage: Usage | None = None
    timings: Timings | None = None


_decode_request = msgspec.json.Decoder(ChatRequest).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_KNOWN = frozenset(ChatRequest.__struct_fields__)


def invalid_type(exc: msgspec.ValidationError) -> InvalidRequest:
    """The error for a field whose type cannot be translated."""
    text, _, where = str(exc).partition(" - at `$.")
    param = where.rstrip("`") or None
    return InvalidRequest(f"`{param or 'body'}`: {text}.", param=param, code="invalid_type")


def parse_chat(body: bytes) -> ChatRequest:
    """
    Raises:
        InvalidRequest: a field has a type that cannot be translated.
    """
    try:
        return _decode_request(body)
    except msgspec.ValidationError as exc:
        raise invalid_type(exc) from None


def unknown_fields(body: bytes) -> list[str]:
    """Top-level fields of a chat request that are set and have no place in `ChatRequest`."""
    return [name for name, value in _decode_members(body).items() if name not in _KNOWN and bytes(value) != b"null"]


def text_of(message: Message) -> str:
    """A message's text in one piece, its parts joined as they are.

    Raises:
        InvalidRequest: a part is not text.
    """
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    for part in parts:
        if part.type not in ("text", "refusal"):
            raise InvalidRequest(
                f"A content part of type `{part.type}` cannot be sent to this engine here.",
                param="messages",
                code="unsupported_content",
            )
    return "".join(part.text or part.refusal or "" for part in parts)


def arguments_text(arguments: str | dict[str, Json] | None) -> str:
    """A call's arguments as JSON text, as OpenAI has them; none are `{}`."""
    if isinstance(arguments, str):
        return arguments or "{}"
    return msgspec.json.encode(arguments or {}).decode()


def arguments_object(arguments: str | dict[str, Json] | None, where: str) -> dict[str, Json]:
    """A call's arguments as an object; none are `{}`.

    Raises:
        InvalidRequest: the text is not a JSON object; `where` names the message.
    """
    if not isinstance(arguments, str):
        return arguments or {}
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"The tool call arguments in {where} are not a JSON object.", param=where, code="invalid_arguments"
        )
    return value
