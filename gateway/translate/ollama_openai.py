"""Requests of Ollama's native dialect as OpenAI's. Their answers go back by `ollama_openai_answers.py`.

Source: `api/types.go` and `docs/api.md` in https://github.com/ollama/ollama, and recordings of a real server. What has
no counterpart is refused by its name, or dropped where it is about how a model is run; docs/dialects.md lists both.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.request import Endpoint, InferenceRequest, parse_request
from gateway.translate.chat import (
    ChatRequest,
    ContentPart,
    FunctionCall,
    ImageUrl,
    JsonSchema,
    Message,
    ResponseFormat,
    StreamOptions,
    Tool,
    ToolCall,
    arguments_text,
    invalid_type,
)
from gateway.translate.texts import CompletionRequest, EmbeddingRequest

Json = Any
"""A JSON value that is carried and not looked into."""

_NOW = (0, "0", "0s", "0m", "0h")
"""Values of `keep_alive` by which a model is unloaded at once."""


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`options`: first those that are carried. A name that Ollama never had is refused: it is likely misspelt."""

    num_predict: int | None = None
    """The longest output in tokens; without one where it is not positive."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    num_ctx: int | None = None
    """Tokens of context. An engine's own is fixed, so that this only says how much is needed."""
    reasoning_effort: str | None = None
    """Not Ollama's, as `logit_bias`: Open WebUI puts them here."""
    logit_bias: dict[str, float] | None = None

    # Dropped: how a model is run is for its engine to say, and these of sampling have no counterpart.
    draft_num_predict: Json = None
    embedding_only: Json = None
    f16_kv: Json = None
    logits_all: Json = None
    low_vram: Json = None
    main_gpu: Json = None
    mirostat: Json = None
    mirostat_eta: Json = None
    mirostat_tau: Json = None
    num_batch: Json = None
    num_gpu: Json = None
    num_gqa: Json = None
    num_keep: Json = None
    num_thread: Json = None
    numa: Json = None
    penalize_newline: Json = None
    repeat_last_n: Json = None
    rope_frequency_base: Json = None
    rope_frequency_scale: Json = None
    tfs_z: Json = None
    typical_p: Json = None
    use_mlock: Json = None
    use_mmap: Json = None
    vocab_only: Json = None


_SAME = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repeat_penalty")
"""Options that have the same name and meaning in both dialects."""


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Json] | None = None
    """An object; the JSON text of one is understood as well."""


class OllamaToolCall(msgspec.Struct, kw_only=True):
    function: CalledFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """A message; `images` are base64, and a result of role `tool` names its call by id, by function, or by order."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaRequest(msgspec.Struct, kw_only=True):
    """What all requests have. Members that Ollama has not are ignored, as it ignores them."""

    model: str
    keep_alive: int | float | str | None = None
    options: Options | None = None

    @property
    def num_ctx(self) -> int | None:
        return self.options.num_ctx if self.options is not None else None

    @property
    def empty(self) -> bool:
        """Whether nothing is asked: such a request only has the model loaded, or unloaded."""
        raise NotImplementedError

    @property
    def done_reason(self) -> str:
        """What the answer to an empty request says."""
        return "unload" if self.keep_alive in _NOW else "load"

    def to_openai(self, model: str) -> InferenceRequest:
        """The request as engines are given it, for the model that Sluice knows as `model`.

        Raises:
            InvalidRequest: it asks for what cannot be carried.
        """
        raise NotImplementedError


class Generation(OllamaRequest, kw_only=True):
    """What requests for text have. `stream` is true where it is absent."""

    stream: bool | None = None
    format: Json = None
    """`"json"`, or a JSON schema."""
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class Chat(Generation, kw_only=True):
    """`POST /api/chat`."""

    messages: list[OllamaMessage] | None = None
    tools: list[Tool] | None = None

    @property
    def empty(self) -> bool:
        return not self.messages

    def to_openai(self, model: str) -> InferenceRequest:
        return _chat(self, model, list(_messages(self.messages or [])), self.tools)


class Generate(Generation, kw_only=True):
    """`POST /api/generate`: a chat of one message, or with `raw` or `suffix` a completion."""

    prompt: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None

    @property
    def empty(self) -> bool:
        return not self.prompt

    def to_openai(self, model: str) -> InferenceRequest:
        self._refuse("template", "context", why="the engine has its own template and keeps no tokens for later")
        prompt = self.prompt or ""
        if self.raw or self.suffix:
            beside = "it cannot go with `raw` or `suffix`, which leave the prompt as it is"
            self._refuse("system", "images", "format", "logprobs", why=beside)
            request = CompletionRequest(model=model, prompt=prompt, suffix=self.suffix or None)
            return _request(self, request, Endpoint.COMPLETIONS)
        messages = [Message(role="system", content=self.system)] if self.system else []
        messages.append(Message(role="user", content=_content(prompt, self.images)))
        return _chat(self, model, messages)

    def _refuse(self, *names: str, why: str) -> None:
        for name in names:
            if getattr(self, name):
                raise InvalidRequest(f"`{name}`: {why}.", param=name, code="unsupported_field")


class Embed(OllamaRequest, kw_only=True):
    """`POST /api/embed`."""

    input: str | list[str]
    dimensions: int | None = None

    @property
    def empty(self) -> bool:
        return not self.input

    def to_openai(self, model: str) -> InferenceRequest:
        return _embedding(model, self.input, self.dimensions)


class Embeddings(OllamaRequest, kw_only=True):
    """`POST /api/embeddings`, the older way to one embedding."""

    prompt: str | None = None

    @property
    def empty(self) -> bool:
        return not self.prompt

    def to_openai(self, model: str) -> InferenceRequest:
        return _embedding(model, self.prompt or "")


_Any = TypeVar("_Any")


def parse(kind: type[_Any], body: bytes) -> _Any:
    """
    Raises:
        InvalidRequest: `body` is not JSON, lacks a field, or has one of another type or a name that is not known.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise invalid_type(exc) from None
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"The request body is not valid JSON: {exc}.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.", code="invalid_json") from None


# What an engine is sent


def _chat(asked: Generation, model: str, messages: list[Message], tools: list[Tool] | None = None) -> InferenceRequest:
    options = asked.options or Options()
    request = ChatRequest(
        model=model,
        messages=messages,
        tools=tools or None,
        response_format=_response_format(asked.format),
        logprobs=asked.logprobs or None,
        top_logprobs=asked.top_logprobs if asked.logprobs else None,
        reasoning_effort=_effort(asked.think) or options.reasoning_effort,
        logit_bias=options.logit_bias,
    )
    return _request(asked, request, Endpoint.CHAT)


def _request(asked: Generation, request: ChatRequest | CompletionRequest, endpoint: Endpoint) -> InferenceRequest:
    options = asked.options or Options()
    for name in _SAME:
        setattr(request, name, getattr(options, name))
    request.stop = options.stop or None
    request.max_tokens = options.num_predict if (options.num_predict or 0) > 0 else None
    if asked.stream is not False:
        request.stream = True
        request.stream_options = StreamOptions(include_usage=True)
    return parse_request(endpoint, msgspec.json.encode(request))


def _embedding(model: str, text: str | list[str], dimensions: int | None = None) -> InferenceRequest:
    request = EmbeddingRequest(model=model, input=text, encoding_format="float", dimensions=dimensions)
    return parse_request(Endpoint.EMBEDDINGS, msgspec.json.encode(request))


def _effort(think: bool | str | None) -> str | None:
    """All engines that can be told to think, or not to, are told by the effort."""
    if think is True:
        return "medium"
    return "none" if think is False else think or None


def _response_format(form: Json) -> ResponseFormat | None:
    if not form:
        return None
    if form == "json":
        return ResponseFormat(type="json_object")
    if isinstance(form, dict):
        return ResponseFormat(type="json_schema", json_schema=JsonSchema(name="format", schema=form))
    raise InvalidRequest('`format`: it is neither "json" nor a JSON schema.', param="format", code="unsupported_value")


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[Message]:
    """Ollama's messages as OpenAI's. Calls without an id get one, and each result is given that of its call."""
    # The same at every turn, so that the prompt's beginning stays what an engine has cached; and of nine letters and
    # digits, as the templates of Mistral's models demand.
    new_ids = (f"call{number:05d}" for number in itertools.count())
    waiting: list[ToolCall] = []
    for at, message in enumerate(messages):
        calls = [_call(call, new_ids) for call in message.tool_calls or []]
        if calls:
            waiting = list(calls)
        is_result = message.role == "tool"
        yield Message(
            role=message.role,
            content=_content(message.content or "", message.images, f"messages[{at}].images"),
            name=message.tool_name if is_result else None,
            reasoning_content=message.thinking or None,
            tool_calls=calls or None,
            tool_call_id=_answered(message, waiting) if is_result else None,
        )


def _call(call: OllamaToolCall, new_ids: Iterator[str]) -> ToolCall:
    function = FunctionCall(name=call.function.name, arguments=arguments_text(call.function.arguments))
    return ToolCall(id=call.id or next(new_ids), type="function", function=function)


def _answered(result: OllamaMessage, waiting: list[ToolCall]) -> str | None:
    """The id of the call that `result` answers, which is then no longer `waiting`: the first one that fits."""
    found = [call for call in waiting if result.tool_call_id in (None, "", call.id)]
    named = [call for call in found if result.tool_name == call.function.name]
    for call in (named or found)[:1]:
        waiting.remove(call)
        return call.id
    return result.tool_call_id or None


_IMAGES = {"iVBOR": "png", "/9j/": "jpeg", "UklGR": "webp", "R0lGOD": "gif"}
"""Formats by how they begin in base64."""


def _content(text: str, images: list[str] | None, where: str = "images") -> str | list[ContentPart]:
    """
    Raises:
        InvalidRequest: an image is none, above all if it is a URL, which an engine would fetch.
    """
    if not images:
        return text
    parts = [ContentPart(type="text", text=text)] if text else []
    for image in images:
        form = next((form for start, form in _IMAGES.items() if image.startswith(start)), None)
        if form is None:
            raise InvalidRequest(
                f"`{where}`: an image is not PNG, JPEG, WebP or GIF in base64.", param=where, code="unsupported_content"
            )
        parts.append(ContentPart(type="image_url", image_url=ImageUrl(url=f"data:image/{form};base64,{image}")))
    return parts
