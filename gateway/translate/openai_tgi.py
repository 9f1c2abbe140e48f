"""OpenAI's requests as Hugging Face's text-generation-inference (TGI) takes them.

TGI has OpenAI's endpoints, but refuses or misreads much of what is usual there. A text completion of one prompt goes to
its own `/generate` instead, which is more exact (`openai_tgi_generate`). Sources: `router/src/lib.rs` in
https://github.com/huggingface/text-generation-inference, and recordings of its router.
"""

import re
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.request import Endpoint, InferenceRequest
from gateway.translate.chat import (
    ContentPart,
    FunctionCall,
    ImageUrl,
    Json,
    JsonSchema,
    Message,
    StreamOptions,
    Tool,
    ToolCall,
    arguments_text,
    invalid_type,
)
from gateway.translate.chunks import new_id
from gateway.translate.openai_tgi_generate import to_generate

MAX_STOPS = 4
"""How many stop strings TGI takes, unless it is started with another `--max-stop-sequences`."""
_LARGEST_KEPT = 1024
"""Up to here TGI keeps `max_tokens`; above, it goes on to a multiple of it."""
_MOST_LOGPROBS = 5
"""How many of the likeliest tokens OpenAI tells for each place, and TGI too unless it is started otherwise."""
_NO_PARAMETERS = {"type": "object", "properties": {}}
_FETCHED = re.compile(rb"!\[\]\((?=https?:)", re.IGNORECASE)
"""The beginning of an image that a vision model's router would fetch, wherever in the prompt it stands."""
_DATA_URL = re.compile(r"data:[^()\s]*")
"""An image in the request itself. TGI puts the URL between the parentheses of `![]()`."""

_CANNOT: dict[str, tuple[Json, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),  # TGI would take 0.5 for a repetition penalty of 2.5
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Fields of OpenAI's that TGI ignores or refuses although they change the answer, with the values that ask for
nothing."""


class Asked(NamedTuple):
    """What an answer's translation depends on.

    `choices` counts the prompts. `limit` is the longest output in tokens, `usage` whether a stream is to end with the
    token counts, and `tools` whether the model may call any. `echo` holds the prompts if they are to be part of their
    texts, and `logprobs` is whether a text completion has any.
    """

    endpoint: Endpoint
    model: str
    choices: int = 1
    stops: tuple[str, ...] = ()
    limit: int | None = None
    usage: bool = False
    tools: bool = False
    echo: tuple[str, ...] = ()
    logprobs: bool = False


class Sent(NamedTuple):
    """A request in TGI's form: the endpoint's path, the body, and what the answer's translation depends on."""

    path: str
    body: bytes
    asked: Asked


class _Format(msgspec.Struct, kw_only=True):
    """`value` is TGI's own member for the schema or the regular expression."""

    type: str
    json_schema: JsonSchema | None = None
    value: Json = None


class _Fields(msgspec.Struct, kw_only=True):
    """The members that are looked at; all others go on as they came."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    top_p: float | None = None
    seed: int | None = None
    stream_options: StreamOptions | None = None


class _ChatFields(_Fields, kw_only=True):
    messages: list[Message]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    response_format: _Format | None = None


class _CompletionFields(_Fields, kw_only=True):
    prompt: str | list[Json] | None = None
    temperature: float | None = None
    echo: bool = False
    logprobs: int | None = None
    response_format: _Format | None = None


_AnyFields = TypeVar("_AnyFields", bound=_Fields)


def to_tgi(request: InferenceRequest, model: str, max_stops: int = MAX_STOPS) -> Sent:
    """What to send for `request`. `model` is the name that the answer gets.

    An answer in one piece is asked for as a stream where only streams tell the truth: with tools the whole reply may
    have the end and the counts of a draft that was thrown away, and above 1024 tokens a limit has to be kept here,
    token by token. So is one of several prompts, for which TGI would not look into its prefix cache otherwise.

    Raises:
        InvalidRequest: TGI cannot carry a field that is set; `param` names it.
    """
    body = _members(request.body)
    for name, neutral in _CANNOT.items():
        if name in body and body.pop(name) not in neutral:
            raise InvalidRequest(
                f"The engine of this model (tgi) has no means for `{name}`.", param=name, code="unsupported_field"
            )
    fields: _ChatFields | _CompletionFields
    prompts: tuple[str, ...] = ()
    tools = False
    if request.endpoint is Endpoint.CHAT:
        fields = _typed(body, _ChatFields)
        tools = _set_chat(body, fields)
    else:
        fields = _typed(body, _CompletionFields)
        prompts = _set_completion(body, fields)
    stops = _set_stops(body, fields, max_stops)
    limit = _set_limit(body, fields)
    _set_sampling(body, fields)
    gathered = tools or len(prompts) > 1 or (limit or 0) > _LARGEST_KEPT
    usage = _set_stream(body, fields, request.stream, gathered=gathered)
    asked = Asked(request.endpoint, model, request.choices, stops, limit, usage, tools)
    if isinstance(fields, _CompletionFields):
        asked = asked._replace(echo=prompts if fields.echo else (), logprobs=fields.logprobs is not None)
    path = request.endpoint.value
    if len(prompts) == 1:
        path, body = to_generate(body, prompts[0])
    else:
        body["model"] = "tgi"  # any other name is taken for an adapter's, and an unknown one ignored
    return Sent(path, _FETCHED.sub(rb"![ ](", msgspec.json.encode(body)), asked)


def _members(body: bytes) -> dict[str, Json]:
    """The members that are not null: TGI refuses some nulls, and takes the others for absence."""
    try:
        members = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidRequest(f"The request body cannot be read: {exc}.", code="invalid_json") from None
    return {name: value for name, value in members.items() if value is not None}


def _typed(members: dict[str, Json], kind: type[_AnyFields]) -> _AnyFields:
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as exc:
        raise invalid_type(exc) from None


def _unsupported(param: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, param=param, code="unsupported_value")


# Messages


def _message(message: Message, at: int) -> list[Message]:
    """The message as TGI reads it. One with text and calls becomes two, since TGI would drop the calls."""
    where = f"messages[{at}]"
    role = "system" if message.role == "developer" else message.role
    content = _content(message, where)
    said = msgspec.structs.replace(message, role=role, content=content, tool_calls=None)
    if not message.tool_calls:
        return [said]
    called = msgspec.structs.replace(said, content=None, tool_calls=[_call(call) for call in message.tool_calls])
    return [said, called] if content else [called]


def _call(call: ToolCall) -> ToolCall:
    function = FunctionCall(name=call.function.name, arguments=arguments_text(call.function.arguments))
    return ToolCall(id=call.id or new_id("call_"), type="function", function=function)


def _content(message: Message, where: str) -> str | list[ContentPart]:
    """Text that comes in pieces is joined, as TGI itself does, so that nothing can hide on a seam."""
    if not isinstance(message.content, list):
        return message.content or message.refusal or ""
    parts: list[ContentPart] = []
    for part in message.content:
        if part.type == "image_url":
            parts.append(_image(part, where))
        elif part.type not in ("text", "refusal"):
            raise InvalidRequest(
                f"`{where}`: the engine of this model (tgi) takes no content part of type `{part.type}`.",
                param="messages",
                code="unsupported_content",
            )
        elif parts and parts[-1].type == "text":
            parts[-1].text = f"{parts[-1].text}{part.text or part.refusal or ''}"
        else:
            parts.append(ContentPart(type="text", text=part.text or part.refusal or ""))
    if any(part.type != "text" for part in parts):
        return parts
    return parts[0].text or "" if parts else ""


def _image(part: ContentPart, where: str) -> ContentPart:
    url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url or ""
    if not _DATA_URL.fullmatch(url):
        raise InvalidRequest(
            f"`{where}`: an image must be a `data:` URL, since any other address would be fetched from where the "
            "engine runs.",
            param="messages",
            code="unsupported_content",
        )
    return ContentPart(type="image_url", image_url=ImageUrl(url=url))


# Tools and formats


def _set_chat(body: dict[str, Json], chat: _ChatFields) -> bool:
    """Whether tools are offered."""
    body["messages"] = [part for at, message in enumerate(chat.messages) for part in _message(message, at)]
    tools = _set_tools(body, chat)
    _set_format(body, chat.response_format, tools)
    return tools


def _set_tools(body: dict[str, Json], chat: _ChatFields) -> bool:
    """Whether tools are offered. Without any, TGI would still have the model choose, and throw the choice away."""
    choice = chat.tool_choice or "auto"
    if not chat.tools or choice == "none":
        if choice not in ("auto", "none"):
            raise InvalidRequest("`tool_choice` names a tool, but there are no `tools`.", param="tool_choice")
        body.pop("tools", None)
        body.pop("tool_choice", None)
        return False
    for tool in body["tools"]:
        if tool["function"].get("parameters") is None:
            tool["function"]["parameters"] = _NO_PARAMETERS
    return True


def _set_format(body: dict[str, Json], wanted: _Format | None, tools: bool) -> None:
    if wanted is None or wanted.type == "text":
        body.pop("response_format", None)
        return
    if tools:
        raise _unsupported(
            "response_format",
            "`response_format` and `tools` cannot be used together on the engine of this model (tgi): "
            'leave one out, or set `tool_choice` to "none".',
        )
    if wanted.value is not None:  # TGI's own form
        return
    schema = wanted.json_schema.schema if wanted.json_schema is not None else None
    if wanted.type not in ("json_schema", "json_object"):
        raise _unsupported("response_format", f"`response_format` has an unknown type `{wanted.type}`.")
    if not schema or "properties" not in schema:
        raise _unsupported(
            "response_format",
            "`response_format` needs the type `json_schema` and a schema with `properties` on the engine of this "
            f"model (tgi), which has no other way to hold its output to JSON; this is `{wanted.type}`.",
        )
    body["response_format"] = {"type": "json", "value": schema}


# Text completions


def _set_completion(body: dict[str, Json], text: _CompletionFields) -> tuple[str, ...]:
    """The prompts."""
    given = [text.prompt] if isinstance(text.prompt, str) else text.prompt or []
    prompts = tuple(one for one in given if isinstance(one, str))
    if len(prompts) < len(given):
        raise _unsupported("prompt", "The engine of this model (tgi) takes prompts as text, not as token ids.")
    _check_logprobs(text)
    body.pop("echo", None)
    _set_format(body, text.response_format, tools=False)
    for name in ("logprobs", "response_format") if len(prompts) > 1 else ():
        if name in body:
            raise _unsupported(name, f"The engine of this model (tgi) has `{name}` for one prompt at a time only.")
    return prompts


def _check_logprobs(text: _CompletionFields) -> None:
    if text.logprobs is None:
        return
    if not 0 <= text.logprobs <= _MOST_LOGPROBS:
        raise _unsupported("logprobs", f"`logprobs` must be from 0 to {_MOST_LOGPROBS}.")
    if text.echo:
        raise _unsupported("logprobs", "The engine of this model (tgi) has no `logprobs` of a prompt, with `echo`.")


# Both


def _set_stops(body: dict[str, Json], fields: _Fields, most: int) -> tuple[str, ...]:
    """An empty string would end TGI's answer after its first token, and is left out."""
    given = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    stops = tuple(stop for stop in given if stop)
    if len(stops) > most:
        raise _unsupported("stop", f"`stop` has {len(stops)} strings; the engine of this model takes at most {most}.")
    body.pop("stop", None)
    if stops:
        body["stop"] = stops
    return stops


def _set_limit(body: dict[str, Json], fields: _Fields) -> int | None:
    """`max_completion_tokens` goes before the older `max_tokens`; TGI refuses the two together."""
    name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    limit = getattr(fields, name)
    body.pop("max_completion_tokens", None)
    if limit is None:
        return None
    if limit < 1:
        raise InvalidRequest(f"`{name}` must be at least 1.", param=name)
    body["max_tokens"] = limit
    return int(limit)


def _set_sampling(body: dict[str, Json], fields: _Fields) -> None:
    if fields.top_p == 1:  # all tokens, which is what no `top_p` means; TGI refuses it
        del body["top_p"]
    if fields.seed is not None and fields.seed < 0:  # TGI's are unsigned; any one-to-one mapping keeps runs repeatable
        body["seed"] = fields.seed % 2**64


def _set_stream(body: dict[str, Json], fields: _Fields, stream: bool, *, gathered: bool) -> bool:
    """Whether the client wants the token counts in its stream. An answer that is gathered here always has them."""
    usage = stream and fields.stream_options is not None and bool(fields.stream_options.include_usage)
    body.pop("stream", None)
    body.pop("stream_options", None)
    if stream or gathered:
        body["stream"] = True
    if usage or (gathered and not stream):
        body["stream_options"] = {"include_usage": True}
    return usage
