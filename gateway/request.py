"""A client's request: what routing needs to know of it, beside the bytes as they came."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from gateway.errors import InvalidRequest


class Endpoint(Enum):
    """What an engine is asked for, by its path: OpenAI's, but for `MESSAGES` and `COUNT_TOKENS`, Anthropic's."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    TOKENIZE = "/tokenize"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"


class Features(msgspec.Struct, frozen=True):
    """What the engine's work depends on.

    Attributes:
        size: bytes of the prompt as JSON, images left out.
        max_tokens: the client's limit for the answer; 0 is none.
        images, tools: how many there are.
        structured: whether the answer must be JSON.
    """

    size: int = 0
    max_tokens: int = 0
    images: int = 0
    tools: int = 0
    structured: bool = False


_NOTHING = msgspec.Raw(b"")


class _Fields(msgspec.Struct):
    model: str
    stream: bool | None = None

    def prompt_parts(self) -> Iterable[msgspec.Raw]:
        return ()

    def limits(self) -> Iterable[msgspec.Raw]:
        return ()

    def forms(self) -> Iterable[msgspec.Raw]:
        """What says of which form the answer must be."""
        return ()


class _MessagesFields(_Fields, kw_only=True):
    messages: list[msgspec.Raw]
    system: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    max_tokens: msgspec.Raw = _NOTHING
    output_config: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> Iterable[msgspec.Raw]:
        return (self.system, self.tools, *self.messages)

    def limits(self) -> Iterable[msgspec.Raw]:
        return (self.max_tokens,)

    def forms(self) -> Iterable[msgspec.Raw]:
        return (self.output_config,)


class _ChatFields(_MessagesFields, kw_only=True):
    n: int | None = None
    max_completion_tokens: msgspec.Raw = _NOTHING
    response_format: msgspec.Raw = _NOTHING

    def limits(self) -> Iterable[msgspec.Raw]:
        return (self.max_completion_tokens, self.max_tokens)

    def forms(self) -> Iterable[msgspec.Raw]:
        return (self.response_format,)


class _ResponsesFields(_Fields, kw_only=True):
    input: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    max_output_tokens: msgspec.Raw = _NOTHING
    text: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> Iterable[msgspec.Raw]:
        return (self.instructions, self.tools, self.input)

    def limits(self) -> Iterable[msgspec.Raw]:
        return (self.max_output_tokens,)

    def forms(self) -> Iterable[msgspec.Raw]:
        return (self.text,)


class _CompletionFields(_Fields):
    prompt: msgspec.Raw = _NOTHING
    n: int | None = None
    max_tokens: msgspec.Raw = _NOTHING
    response_format: msgspec.Raw = _NOTHING

    def prompt_parts(self) -> Iterable[msgspec.Raw]:
        return (self.prompt,)

    def limits(self) -> Iterable[msgspec.Raw]:
        return (self.max_tokens,)

    def forms(self) -> Iterable[msgspec.Raw]:
        return (self.response_format,)


class _EmbeddingFields(_Fields, kw_only=True):
    input: msgspec.Raw

    def prompt_parts(self) -> Iterable[msgspec.Raw]:
        return (self.input,)


class _RerankFields(_Fields, kw_only=True):
    query: str
    documents: list[msgspec.Raw]

    def prompt_parts(self) -> Iterable[msgspec.Raw]:
        return self.documents


_decoders: dict[Endpoint, "msgspec.json.Decoder[_Fields]"] = {
    Endpoint.CHAT: msgspec.json.Decoder(_ChatFields),
    Endpoint.COMPLETIONS: msgspec.json.Decoder(_CompletionFields),
    Endpoint.EMBEDDINGS: msgspec.json.Decoder(_EmbeddingFields),
    Endpoint.RERANK: msgspec.json.Decoder(_RerankFields),
    Endpoint.TOKENIZE: msgspec.json.Decoder(_Fields),
    Endpoint.RESPONSES: msgspec.json.Decoder(_ResponsesFields),
    Endpoint.MESSAGES: msgspec.json.Decoder(_MessagesFields),
    Endpoint.COUNT_TOKENS: msgspec.json.Decoder(_MessagesFields),
}
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode

_decode_number = msgspec.json.Decoder(float | None).decode

_IMAGE_HINT = b"image"
_IMAGE = re.compile(rb'"type"\s*:\s*"(?:image_url|input_image|image)"')
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]{256,}")
_SCHEMA = re.compile(rb'"type"\s*:\s*"json_(?:schema|object)"')
_ERROR_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")


class InferenceRequest(msgspec.Struct, frozen=True):
    """A checked request. `choices` is how many answers it asks for; `body` holds the bytes as the client sent them."""

    endpoint: Endpoint
    body: bytes
    model: str
    stream: bool
    choices: int
    features: Features = Features()

    def with_fields(self, values: Mapping[str, int | float], caps: Mapping[str, int | float]) -> "InferenceRequest":
        """The same request with other values of fields, which have OpenAI's names, and none above its cap."""
        members = _decode_members(self.body)
        for name, value in values.items():
            members[self._own_name(name, members)] = msgspec.Raw(msgspec.json.encode(value))
        for name, cap in caps.items():
            own = self._own_name(name, members)
            asked = _number(members.get(own, _NOTHING))
            if asked is None or asked > cap:
                members[own] = msgspec.Raw(msgspec.json.encode(cap))
        return msgspec.structs.replace(self, body=msgspec.json.encode(members))

    def _own_name(self, name: str, members: Mapping[str, msgspec.Raw]) -> str:
        if name != "max_tokens":
            return name
        if self.endpoint is Endpoint.RESPONSES:
            return "max_output_tokens"
        return "max_completion_tokens" if "max_completion_tokens" in members else name

    def body_for(self, model: str) -> bytes:
        """The body with another model name, all other members as they came.

        Raises:
            InvalidRequest: it is nested too deeply to be read.
        """
        if model == self.model:
            return self.body
        try:
            members = _decode_members(self.body)
        except RecursionError:
            raise _too_deep() from None
        members["model"] = msgspec.Raw(msgspec.json.encode(model))
        return msgspec.json.encode(members)


def parse_request(endpoint: Endpoint, body: bytes) -> InferenceRequest:
    """Reads what routing needs, and leaves to the engine what only it can judge.

    Raises:
        InvalidRequest: not JSON in UTF-8, not an object, a wrong type in a field read here, or no message.
    """
    try:
        if not body.isascii():
            body.decode()  # fields that nobody reads here are not checked by the decoder
        fields = _decoders[endpoint].decode(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The request body is not valid UTF-8.", code="invalid_json") from None
    except msgspec.ValidationError as exc:
        raise _wrong_field(str(exc)) from None
    except msgspec.DecodeError as exc:
        what = "is empty" if not body.strip() else f"is not valid JSON: {exc}"
        raise InvalidRequest(f"The request body {what}.", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    if not fields.model:
        raise InvalidRequest("`model` is empty: name a model, see GET /v1/models.", param="model")
    if isinstance(fields, _MessagesFields) and not fields.messages:
        raise InvalidRequest("`messages` is empty: send at least one message.", param="messages")
    return InferenceRequest(endpoint, body, fields.model, bool(fields.stream), _choices(fields), _features(fields))


def _features(fields: _Fields) -> Features:
    size = images = 0
    for part in fields.prompt_parts():
        text = bytes(part)
        size += len(text)
        if _IMAGE_HINT in text:
            images += len(_IMAGE.findall(text))
            size -= sum(map(len, _BASE64.findall(text)))
    tools = bytes(getattr(fields, "tools", b""))
    limits = (_number(limit) for limit in fields.limits())
    return Features(
        size=size,
        max_tokens=next((max(0, int(limit)) for limit in limits if limit is not None), 0),
        images=images,
        tools=len(_decode_list(tools)) if tools.startswith(b"[") else 0,
        structured=any(_SCHEMA.search(bytes(form)) for form in fields.forms()),
    )


def _number(raw: msgspec.Raw) -> float | None:
    """A field's number; `None` where there is none, or what is no number and the engine's to refuse."""
    try:
        return _decode_number(raw) if bytes(raw) else None
    except msgspec.DecodeError:
        return None


def _choices(fields: _Fields) -> int:
    if not isinstance(fields, _ChatFields | _CompletionFields):
        return 1
    if fields.n is not None and fields.n < 1:
        raise InvalidRequest("`n` must be at least 1.", param="n")
    prompts = _prompts(fields.prompt) if isinstance(fields, _CompletionFields) else 1
    return (fields.n or 1) * prompts


def _prompts(prompt: msgspec.Raw) -> int:
    """How many prompts a completion request holds: a text or a list of token ids is one, a list of those several."""
    if not bytes(prompt).startswith(b"["):
        return 1
    items = _decode_list(prompt)
    return len(items) if items and bytes(items[0])[:1] in (b'"', b"[") else 1


def _too_deep() -> InvalidRequest:
    return InvalidRequest("The request body is nested too deeply.", code="invalid_json")


def _wrong_field(problem: str) -> InvalidRequest:
    where = _ERROR_PATH.search(problem)
    missing = _MISSING.search(problem)
    param = where.group(1) if where and where.group(1) else missing.group(1) if missing else None
    text = problem[: where.start()] if where else problem
    subject = f"`{param}`" if param and not missing else "The request body"
    return InvalidRequest(f"{subject}: {text}.", param=param, code="invalid_type" if not missing else "missing_field")
