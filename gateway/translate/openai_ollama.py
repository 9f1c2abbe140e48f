"""Requests in OpenAI's dialect as requests of Ollama's native one; `openai_ollama_reply.py` reads the answers.

What cannot be carried is refused with its field's name. docs/dialects.md lists what is carried, refused and dropped.
"""

import binascii
from collections.abc import Iterable

import msgspec

from gateway.errors import InvalidRequest
from gateway.translate import chat, ollama
from gateway.translate.chat import ChatRequest, arguments_object, parse_chat, unknown_fields
from gateway.translate.texts import CompletionRequest, EmbeddingRequest, parse_completion, parse_embedding

_NO_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that change nothing in an answer: they are dropped."""

_INSTEAD = {
    "format": "use `response_format`",
    "function_call": "use `tool_choice`",
    "functions": "use `tools`",
    "keep_alive": "the gateway's config sets it with `keep_alive`",
    "num_ctx": "the gateway's config sets it with `context`, as each other value would load the model again",
    "num_predict": "use `max_completion_tokens`",
    "options": "write `temperature`, `top_k` and the like beside `model`; the gateway's config sets `num_ctx` with "
    "`context`, as each other value would load the model again",
    "think": "use `reasoning_effort`",
}

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

_THINK: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
_NO_PARAMETERS = {"type": "object", "properties": {}}

_encode = msgspec.json.Encoder().encode


class Settings(msgspec.Struct, frozen=True):
    """What the config says of every request to one engine.

    `context` is in tokens, `keep_alive` in seconds or a duration such as `10m`; `None` leaves either to Ollama.
    """

    context: int | None = None
    keep_alive: int | str | None = None


def read_chat(body: bytes) -> ChatRequest:
    """A chat request that can be carried, but for its messages, which `chat_body` looks at.

    Raises:
        InvalidRequest: a field has another type than OpenAI's, or a value that Ollama has no means for.
    """
    asked = parse_chat(body)
    _refuse_unknown(body, unknown_fields(body))
    if asked.n is not None and asked.n > 1:
        raise _unsupported("n", "Ollama gives one answer to a request")
    if asked.logit_bias:
        raise _unsupported("logit_bias", "Ollama has nothing like it")
    if asked.tool_choice not in (None, "auto", "none"):
        raise _unsupported("tool_choice", "Ollama cannot be made to call a tool, so it may be `auto` or `none`")
    if asked.top_logprobs and not asked.logprobs:
        raise _unsupported("top_logprobs", "set `logprobs` too")
    return asked


def chat_body(asked: ChatRequest, model: str, settings: Settings) -> bytes:
    """The body for `/api/chat`. `stream` is always said, as Ollama streams by default.

    Raises:
        InvalidRequest: a message or another value cannot be carried; `param` says where it is.
    """
    limit = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    return _encode(
        ollama.ChatBody(
            model=model,
            messages=_messages(asked.messages),
            stream=bool(asked.stream),
            truncate=False,
            shift=False,
            options=_options(asked, limit, settings),
            tools=_tools(asked),
            format=_format(asked.response_format),
            think=_think(asked.reasoning_effort),
            keep_alive=settings.keep_alive,
            logprobs=asked.logprobs or None,
            top_logprobs=asked.top_logprobs if asked.logprobs else None,
        )
    )


def read_completion(body: bytes) -> CompletionRequest:
    """
    Raises:
        InvalidRequest: as with `read_chat`.
    """
    asked = parse_completion(body)
    _refuse_unknown(body, _beyond(body, CompletionRequest))
    if not isinstance(asked.prompt, str) or not asked.prompt:
        raise _unsupported("prompt", "Ollama takes one text that is not empty, no list and no token ids")
    if max(asked.n or 1, asked.best_of or 1) > 1:
        raise _unsupported("best_of" if asked.n in (None, 1) else "n", "Ollama gives one answer to a request")
    for name in ("echo", "logit_bias"):
        if getattr(asked, name):
            raise _unsupported(name, "Ollama has nothing like it")
    if asked.logprobs is not None:
        raise _unsupported("logprobs", "they are not translated here; the chat endpoint has them")
    return asked


def completion_body(asked: CompletionRequest, model: str, settings: Settings) -> bytes:
    """The body for `/api/generate`.

    The prompt goes without the model's chat template (`raw`), as other engines take it, and what the model then writes
    is not searched for thoughts. A suffix needs the model's own template for filling in.

    Raises:
        InvalidRequest: a value cannot be carried.
    """
    return _encode(
        ollama.GenerateBody(
            model=model,
            prompt=asked.prompt,
            suffix=asked.suffix or None,
            stream=bool(asked.stream),
            truncate=False,
            shift=False,
            raw=not asked.suffix,
            think=False,
            options=_options(asked, "max_tokens", settings),
            keep_alive=settings.keep_alive,
        )
    )


def read_embedding(body: bytes) -> tuple[EmbeddingRequest, list[str]]:
    """The request, and its input as a list.

    Raises:
        InvalidRequest: as with `read_chat`.
    """
    asked = parse_embedding(body)
    _refuse_unknown(body, _beyond(body, EmbeddingRequest))
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise _unsupported("input", "Ollama takes a text or a list of texts, none of them empty, and no token ids")
    if asked.encoding_format not in (None, "float", "base64"):
        raise _unsupported("encoding_format", "it may be `float` or `base64`")
    if asked.stream:
        raise _unsupported("stream", "embeddings come in one piece")
    return asked, texts


def embedding_body(asked: EmbeddingRequest, texts: list[str], model: str, settings: Settings) -> bytes:
    """The body for `/api/embed`."""
    return _encode(
        ollama.EmbedBody(
            model=model,
            input=texts,
            truncate=False,
            options=ollama.Options(num_ctx=settings.context),
            dimensions=asked.dimensions,
            keep_alive=settings.keep_alive,
        )
    )


def _unsupported(param: str, why: str, code: str = "unsupported_value") -> InvalidRequest:
    return InvalidRequest(f"`{param}`: {why}.", param=param, code=code)


# Fields


class _Modalities(msgspec.Struct):
    modalities: list[str]


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _beyond(body: bytes, known: type[msgspec.Struct]) -> list[str]:
    """The members that are set and have no place in `known`."""
    members = _decode_members(body)
    return [name for name, value in members.items() if name not in known.__struct_fields__ and bytes(value) != b"null"]


def _refuse_unknown(body: bytes, names: Iterable[str]) -> None:
    refused = [name for name in names if name not in _NO_EFFECT and not (name == "modalities" and _text_only(body))]
    if refused:
        hints = "".join(f"; for `{name}`, {_INSTEAD[name]}" for name in refused if name in _INSTEAD)
        raise InvalidRequest(
            f"The engine of this model (Ollama) has no means for {', '.join(f'`{name}`' for name in refused)}{hints}.",
            param=refused[0],
            code="unsupported_field",
        )


def _text_only(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Modalities).modalities == ["text"]
    except msgspec.ValidationError:
        return False


def _options(asked: ChatRequest | CompletionRequest, limit: str, settings: Settings) -> ollama.Options:
    """What is not asked for is left to the model's own defaults; `limit` is the name of the output limit's field."""
    if asked.output_limit is not None and asked.output_limit < 1:  # Ollama takes 0 and below for "without end"
        raise _unsupported(limit, "it must be at least 1")
    if not all(asked.stops):
        raise _unsupported("stop", "a stop text is empty")
    return ollama.Options(
        num_ctx=settings.context,
        num_predict=asked.output_limit,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        seed=asked.seed,
        stop=asked.stops or None,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repeat_penalty=asked.repeat_penalty,
    )


def _tools(asked: ChatRequest) -> list[ollama.Tool] | None:
    if asked.tool_choice == "none" or not asked.tools:
        return None
    for at, tool in enumerate(asked.tools):
        if tool.type != "function":
            raise _unsupported(f"tools[{at}].type", "Ollama knows tools of type `function` only")
    return [ollama.Tool(function=_function(tool.function)) for tool in asked.tools]


def _function(function: chat.Function) -> ollama.Function:
    parameters = _NO_PARAMETERS if function.parameters is None else function.parameters
    return ollama.Function(name=function.name, description=function.description, parameters=parameters)


def _format(wanted: chat.ResponseFormat | None) -> ollama.Json:
    """`"json"`, a JSON schema, or `None` for any text."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return "json"
    if wanted.type != "json_schema":
        raise _unsupported("response_format.type", "it may be `text`, `json_object` or `json_schema`")
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise _unsupported("response_format.json_schema", "its `schema` is missing", "missing_field")
    return wanted.json_schema.schema


def _think(effort: str | None) -> bool | str | None:
    if effort is None:
        return None
    if effort not in _THINK:
        raise _unsupported("reasoning_effort", f"it may be {', '.join(f'`{known}`' for known in _THINK)}")
    return _THINK[effort]


# Messages


def _messages(messages: list[chat.Message]) -> list[ollama.Message]:
    names: dict[str, str] = {}
    """Which function a call's id stands for; engines give the same id again in a later turn."""
    translated = []
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if message.role not in _ROLES:
            raise _unsupported(f"{where}.role", "it may be `system`, `developer`, `user`, `assistant` or `tool`")
        calls = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or [])]
        names.update((call.id, call.function.name) for call in calls if call.id)
        content, images = _content(message, where)
        result = message.role == "tool"
        thought = message.reasoning_content if message.reasoning_content is not None else message.reasoning
        translated.append(
            ollama.Message(
                role=_ROLES[message.role],
                content=content,
                thinking=thought or None,
                images=images or None,
                tool_calls=calls or None,
                tool_name=message.name or names.get(message.tool_call_id or "") if result else None,
                tool_call_id=message.tool_call_id if result else None,
            )
        )
    return translated


def _tool_call(call: chat.ToolCall, where: str) -> ollama.ToolCall:
    if not call.function.name:
        raise _unsupported(f"{where}.function.name", "the call names no function", "missing_field")
    arguments = arguments_object(call.function.arguments, f"{where}.function.arguments")
    function = ollama.CalledFunction(name=call.function.name, arguments=msgspec.Raw(_encode(arguments)))
    return ollama.ToolCall(id=call.id, function=function)


def _content(message: chat.Message, where: str) -> tuple[str, list[str]]:
    """A message's text, its parts joined as they are, and its images."""
    if isinstance(message.content, str):
        return message.content, []
    texts, images = [], []
    for at, part in enumerate(message.content or []):
        here = f"{where}.content[{at}]"
        if part.type in ("text", "refusal"):
            texts.append(part.text or part.refusal or "")
        elif part.type == "image_url" and part.image_url is not None:
            url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
            images.append(_image(url, f"{here}.image_url"))
        else:
            raise _unsupported(here, f"Ollama takes no content of type `{part.type}`", "unsupported_content")
    return "".join(texts) or message.refusal or "", images


def _image(url: str, where: str) -> str:
    """The base64 of a `data:` URL, or of one that is nothing but base64. Nothing is ever fetched."""
    head, comma, data = url.partition(",")
    if head[:5].lower() == "data:" and comma:
        kind, *parameters = head[5:].lower().split(";")
        if "base64" not in parameters or not (kind.startswith("image/") or not kind):
            raise _unsupported(where, "the `data:` URL is not an image in base64", "unsupported_content")
    elif ":" in url:
        raise _unsupported(
            where, "Ollama takes an image in the request itself, as `data:image/png;base64,...`", "unsupported_content"
        )
    else:
        data = url
    try:
        if not binascii.a2b_base64(data, strict_mode=True):
            raise ValueError("nothing")
    except ValueError:
        raise _unsupported(where, "the image is not valid base64", "unsupported_content") from None
    return data
