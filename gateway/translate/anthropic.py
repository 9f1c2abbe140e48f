"""Anthropic's Messages dialect as typed structs, in both directions.

Source: https://docs.anthropic.com/en/api/messages. A member that is not here is not carried: of blocks and tools it is
dropped (marks for prompt caches, signatures, citations), at the top of a request it is refused, but for `DROPPED`.
"""

from typing import Annotated, Any, Literal

import msgspec

from gateway.errors import InvalidRequest

Json = Any
"""A JSON value that is carried and not looked into."""

DROPPED = frozenset({"cache_control", "context_management", "diagnostics", "inference_geo", "service_tier", "speed"})
"""Members of a request that only Anthropic's own service can make use of, and whose absence harms no answer."""


NO_THREADS = "thread_unsupported_request"
"""The code for a conversation that the server is to keep. Anthropic's SDKs then send the whole of it each time; their
tool runners always ask first. Source: `lib/threads` in https://github.com/anthropics/anthropic-sdk-python."""


class _Tagged(msgspec.Struct, tag_field="type", kw_only=True):
    """Its member `type` says what it is."""


class Text(_Tagged, tag="text", kw_only=True):
    text: str = ""


class Base64Source(_Tagged, tag="base64", kw_only=True):
    media_type: str
    data: str


class UrlSource(_Tagged, tag="url", kw_only=True):
    url: str


class Image(_Tagged, tag="image", kw_only=True):
    source: Base64Source | UrlSource


class Thinking(_Tagged, tag="thinking", kw_only=True):
    """`signature` would prove to Anthropic that the text is the model's own; here it is empty."""

    thinking: str = ""
    signature: str = ""


class RedactedThinking(_Tagged, tag="redacted_thinking", kw_only=True):
    """Thoughts that nobody but Anthropic can read."""


class ToolUse(_Tagged, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: dict[str, Json]


class ToolResult(_Tagged, tag="tool_result", kw_only=True):
    tool_use_id: str
    content: str | list[Text | Image] | None = None
    is_error: bool | None = None


Block = Text | Image | Thinking | RedactedThinking | ToolUse | ToolResult


class Message(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        return [Text(text=self.content)] if isinstance(self.content, str) else self.content


class Tool(msgspec.Struct, kw_only=True):
    """A tool of the client's own is of the type `custom`, or of none; all others run at Anthropic's."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Json] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Json]


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class MessagesRequest(msgspec.Struct, kw_only=True):
    """A request for an answer."""

    model: str
    messages: list[Message]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    system: str | list[Text] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the client wants to see what the model thinks; one that does not say gets it."""
        thinking = self.thinking
        return thinking is None or (thinking.type != "disabled" and thinking.display != "omitted")


class Usage(msgspec.Struct, kw_only=True):
    """Tokens; those read from a cache are not among `input_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Reply(_Tagged, tag="message", kw_only=True):
    """An answer, whole or, at the start of a stream, still empty."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Text | Thinking | ToolUse] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage


class MessageStart(_Tagged, tag="message_start", kw_only=True):
    message: Reply


class BlockStart(_Tagged, tag="content_block_start", kw_only=True):
    index: int
    content_block: Text | Thinking | ToolUse


class TextDelta(_Tagged, tag="text_delta", kw_only=True):
    text: str


class ThinkingDelta(_Tagged, tag="thinking_delta", kw_only=True):
    thinking: str


class InputDelta(_Tagged, tag="input_json_delta", kw_only=True):
    """A piece of the JSON text of a tool's `input`."""

    partial_json: str


class BlockDelta(_Tagged, tag="content_block_delta", kw_only=True):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(_Tagged, tag="content_block_stop", kw_only=True):
    index: int


class Stop(msgspec.Struct, kw_only=True):
    """Why the answer ended."""

    stop_reason: str
    stop_sequence: str | None = None


class MessageDelta(_Tagged, tag="message_delta", kw_only=True):
    delta: Stop
    usage: Usage


class MessageStop(_Tagged, tag="message_stop", kw_only=True):
    pass


class ErrorDetails(msgspec.Struct, kw_only=True):
    error_code: str


class Error(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str
    message: str
    details: ErrorDetails | None = None


class ErrorReply(_Tagged, tag="error", kw_only=True):
    """The body of an answer that is an error, and the event that ends a failed stream."""

    error: Error


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | ErrorReply

_encode = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(MessagesRequest).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_KNOWN = DROPPED.union(MessagesRequest.__struct_fields__)


def encode_event(event: Event) -> bytes:
    """As it is sent: named by its type."""
    return b"event: %b\ndata: %b\n\n" % (str(event.__struct_config__.tag).encode(), _encode(event))


def parse_messages(body: bytes) -> MessagesRequest:
    """Reads a body that is known to be a JSON object.

    Raises:
        InvalidRequest: a member is missing, has a type that cannot be translated, or cannot be carried at all.
    """
    try:
        request = _decode_request(body)
    except msgspec.ValidationError as exc:
        text, _, where = str(exc).partition(" - at `$.")
        param = where.rstrip("`") or None
        raise InvalidRequest(f"{f'`{param}`: ' if param else ''}{text}.", param=param, code="invalid_type") from None
    for name, value in _decode_members(body).items():
        if name not in _KNOWN and bytes(value) not in (b"null", b"[]"):
            code = NO_THREADS if name == "thread" else "unsupported_field"
            raise uncarried(name, "cannot be sent to the engines here", code)
    return request


def uncarried(where: str, why: str, code: str) -> InvalidRequest:
    """The error for what no engine here could be told; `where` is its path in the request."""
    return InvalidRequest(f"`{where}` {why}.", param=where, code=code)
