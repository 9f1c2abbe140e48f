"""OpenAI's Responses dialect as typed structs, in both directions.

Source: https://platform.openai.com/docs/api-reference/responses and .../responses-streaming. A member that is not here
is not carried: of items, parts and tools it is dropped, at the top of a request it is refused, but for `DROPPED`.
"""

import re
from typing import Any

import msgspec

from gateway.errors import InvalidRequest

Json = Any
"""A JSON value that is carried and not looked into."""

DROPPED = frozenset(
    {
        "client_metadata",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
    }
)
"""Members of a request that only OpenAI's own service can make use of, and whose absence harms no answer."""


class Part(msgspec.Struct, kw_only=True):
    """One part of a message, of a thought, or of a tool's result; `type` says which field holds it.

    `image_url` is a text here, not an object as in a chat.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """One item of a conversation: a message where it has no `type`."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None

    @property
    def kind(self) -> str:
        return self.type or ("message" if self.role is not None else "item_reference")


class Tool(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None


class Format(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    schema: dict[str, Json] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, kw_only=True, omit_defaults=True):
    format: Format | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """A request for an answer. The last seven members are here to be looked at, and refused where they ask for much."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, Json] | None = None
    user: str | None = None
    previous_response_id: str | None = None
    conversation: Json = None
    background: bool | None = None
    prompt: Json = None
    truncation: str | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None


# Answers


class _Tagged(msgspec.Struct, tag_field="type", kw_only=True):
    """Its member `type` says what it is."""


class OutputText(_Tagged, tag="output_text", kw_only=True):
    text: str = ""
    annotations: list[Json] = []
    logprobs: list[Json] = []


class ReasoningText(_Tagged, tag="reasoning_text", kw_only=True):
    """What the model thought, in its own words. OpenAI's own models show a `summary` instead."""

    text: str = ""


Said = OutputText | ReasoningText


class MessageItem(_Tagged, tag="message", kw_only=True):
    id: str
    status: str = "in_progress"
    role: str = "assistant"
    content: list[Said] = []


class ReasoningItem(_Tagged, tag="reasoning", kw_only=True):
    id: str
    status: str = "in_progress"
    summary: list[Json] = []
    content: list[Said] = []


class CallItem(_Tagged, tag="function_call", kw_only=True):
    """`call_id` is what the result of the call refers to."""

    id: str
    status: str = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


Item = MessageItem | ReasoningItem | CallItem


class InputDetails(msgspec.Struct):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """Tokens. What an engine does not tell apart is 0, as clients rely on numbers."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(msgspec.Struct):
    reason: str


class Response(msgspec.Struct, kw_only=True):
    """An answer, whole or, at the start of a stream, still empty; with what was asked for. Times are in seconds."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    background: bool = False
    error: None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Json] = {}
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: Reasoning
    store: bool = False
    temperature: float | None = None
    text: TextConfig
    tool_choice: str | ToolChoice = "auto"
    tools: list[Tool] = []
    top_p: float | None = None
    truncation: str = "disabled"
    usage: Usage | None = None
    user: str | None = None


class Event(msgspec.Struct, kw_only=True):
    """One event of a stream; the writer counts them."""

    type: str
    sequence_number: int = 0


class ResponseEvent(Event, kw_only=True):
    response: Response


class ItemEvent(Event, kw_only=True):
    output_index: int
    item: Item


class _Inside(Event, kw_only=True):
    """It belongs to an item that has begun."""

    item_id: str
    output_index: int


class PartEvent(_Inside, kw_only=True):
    content_index: int = 0
    part: Said


class TextDelta(_Inside, kw_only=True):
    """A piece of a text, or of a thought, which has no `logprobs`."""

    content_index: int = 0
    delta: str
    logprobs: list[Json] | msgspec.UnsetType


class TextDone(_Inside, kw_only=True):
    content_index: int = 0
    text: str
    logprobs: list[Json] | msgspec.UnsetType


class ArgumentsDelta(_Inside, kw_only=True):
    """A piece of the JSON text of a call's arguments."""

    delta: str


class ArgumentsDone(_Inside, kw_only=True):
    name: str
    arguments: str


_decode_request = msgspec.json.Decoder(ResponsesRequest).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_KNOWN = DROPPED.union(ResponsesRequest.__struct_fields__)
_MISSING = re.compile(r"missing required field `([^`]+)`")


def encode_event(event: Event) -> bytes:
    """As it is sent: named by its type."""
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), _encode(event))


def parse_responses(body: bytes) -> ResponsesRequest:
    """Reads a body that is known to be a JSON object.

    Raises:
        InvalidRequest: a member is missing, has a type that cannot be translated, or cannot be carried at all.
    """
    try:
        request = _decode_request(body)
    except msgspec.ValidationError as exc:
        text, _, where = str(exc).partition(" - at `$.")
        missing = _MISSING.search(text)
        path = [where.rstrip("`"), missing.group(1) if missing else ""]
        param = ".".join(filter(None, path)) or None
        code = "missing_field" if missing else "invalid_type"
        raise InvalidRequest(f"{f'`{param}`: ' if param else ''}{text}.", param=param, code=code) from None
    for name, value in _decode_members(body).items():
        if name not in _KNOWN and bytes(value) not in (b"null", b"[]"):
            raise uncarried(name, "cannot be sent to the engines here")
    return request


def uncarried(where: str, why: str, code: str = "unsupported_field") -> InvalidRequest:
    """The error for what no engine here could be told; `where` is its path in the request."""
    return InvalidRequest(f"`{where}` {why}.", param=where, code=code)
