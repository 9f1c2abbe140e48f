"""Ollama's native dialect as typed structs: `/api/chat`, `/api/generate` and `/api/embed`.

Source: `api/types.go` in https://github.com/ollama/ollama and its `docs/api.md`, and recordings of a real server. All
durations are nanoseconds, and every count or duration that is zero is absent.
"""

from typing import Any

import msgspec

Json = Any
"""A JSON value that is carried and not looked into."""

ABSENT = msgspec.Raw(b"")


class _Part(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Omits what is absent when it is written."""


class CalledFunction(_Part, kw_only=True):
    name: str
    arguments: msgspec.Raw = ABSENT
    """A JSON object; a string is refused."""


class ToolCall(_Part, kw_only=True):
    function: CalledFunction
    id: str | None = None


class Message(_Part, kw_only=True):
    """A message of either side. `images` are base64 without a prefix; `tool_name` and `tool_call_id` go with a result.

    `content` is always written: an empty text is one too.
    """

    role: str
    content: str
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Function(_Part, kw_only=True):
    name: str
    parameters: dict[str, Json]
    description: str | None = None


class Tool(msgspec.Struct, kw_only=True):
    function: Function
    type: str = "function"


class Options(_Part, kw_only=True):
    """How to run and sample. Another `num_ctx` than the one in force loads the model again."""

    num_ctx: int | None = None
    num_predict: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None


class ChatBody(_Part, kw_only=True):
    """A request to `/api/chat`. `stream` is true where it is absent, and so are `truncate` and `shift`."""

    model: str
    messages: list[Message]
    stream: bool
    truncate: bool
    """Whether the oldest messages are left out, without a word, when the prompt is longer than the context."""
    shift: bool
    """Whether what came first is forgotten when the answer reaches the end of the context."""
    options: Options
    tools: list[Tool] | None = None
    format: Json = None
    think: bool | str | None = None
    keep_alive: int | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class GenerateBody(_Part, kw_only=True):
    """A request to `/api/generate`; `raw` leaves the prompt as it is, without the model's template."""

    model: str
    prompt: str
    stream: bool
    truncate: bool
    shift: bool
    raw: bool
    think: bool
    options: Options
    suffix: str | None = None
    keep_alive: int | str | None = None


class EmbedBody(_Part, kw_only=True):
    """A request to `/api/embed`."""

    model: str
    input: list[str]
    truncate: bool
    options: Options
    dimensions: int | None = None
    keep_alive: int | str | None = None


class Said(msgspec.Struct):
    """The message in an answer, or a piece of it. A tool call always comes whole."""

    content: str = ""
    thinking: str = ""
    tool_calls: list[ToolCall] | None = None


class OtherToken(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(msgspec.Struct):
    """As in OpenAI's dialect, but that an empty `top_logprobs` is absent."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[OtherToken] = []


class Line(msgspec.Struct):
    """One line of a stream, or an answer in one piece, of `/api/chat` (`message`) or `/api/generate` (`response`).

    The last one is `done`. A failure in the middle is a line with `error`, after which nothing comes.
    """

    message: Said | None = None
    response: str = ""
    done: bool = False
    done_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    load_duration: int | None = None
    """From the request's coming to a model that is ready, so that it holds the wait for one as well."""
    prompt_eval_count: int | None = None
    """Tokens of the prompt, those found in the cache included."""
    prompt_eval_cached_count: int | None = None
    """Of these, those found in the cache. Absent is unknown: older servers do not tell."""
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    error: msgspec.Raw = ABSENT


class Embedded(msgspec.Struct):
    """An answer of `/api/embed`, in the order of the inputs."""

    embeddings: list[list[float]]
    prompt_eval_count: int | None = None


class Fault(msgspec.Struct, frozen=True):
    """What an error says. `prompt_tokens` and `context` are set where a prompt did not fit and the sizes are known."""

    message: str = ""
    kind: str = ""
    prompt_tokens: int | None = None
    context: int | None = None


class _RunnerError(msgspec.Struct):
    message: str = ""
    type: str = ""
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Wrapped(msgspec.Struct):
    error: msgspec.Raw


_decode_text = msgspec.json.Decoder(str).decode
_decode_wrapped = msgspec.json.Decoder(_Wrapped).decode
_decode_runner_error = msgspec.json.Decoder(_RunnerError).decode


def read_fault(error: bytes) -> Fault:
    """What a member `error` says: a text, or the error object of the process that runs the model, wrapped in a text.

    Raises:
        ValueError: it is neither.
    """
    if error.startswith(b'"'):
        text = _decode_text(error)
        try:
            return read_fault(text.encode()) if text.startswith("{") else Fault(text)
        except ValueError:
            return Fault(text)
    try:
        return read_fault(bytes(_decode_wrapped(error).error))
    except msgspec.ValidationError:
        told = _decode_runner_error(error)
        return Fault(told.message, told.type, told.n_prompt_tokens, told.n_ctx)


def read_error_body(body: bytes) -> Fault | None:
    """What the body of an answer with an error status says, or `None` if it has no form of Ollama's."""
    try:
        return read_fault(bytes(_decode_wrapped(body).error))
    except (ValueError, RecursionError):
        return None
