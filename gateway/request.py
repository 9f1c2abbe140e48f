"""A client's request: what routing needs to know of it, beside the bytes as they came."""

import re
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


class _Fields(msgspec.Struct):
    model: str
    stream: bool | None = None


class _MessagesFields(_Fields, kw_only=True):
    messages: list[msgspec.Raw]


class _ChatFields(_MessagesFields, kw_only=True):
    n: int | None = None


class _CompletionFields(_Fields):
    prompt: msgspec.Raw = msgspec.Raw(b"")
    n: int | None = None


class _EmbeddingFields(_Fields, kw_only=True):
    input: msgspec.Raw


class _RerankFields(_Fields, kw_only=True):
    query: str
    documents: list[msgspec.Raw]


_decoders: dict[Endpoint, "msgspec.json.Decoder[_Fields]"] = {
    Endpoint.CHAT: msgspec.json.Decoder(_ChatFields),
    Endpoint.COMPLETIONS: msgspec.json.Decoder(_CompletionFields),
    Endpoint.EMBEDDINGS: msgspec.json.Decoder(_EmbeddingFields),
    Endpoint.RERANK: msgspec.json.Decoder(_RerankFields),
    Endpoint.TOKENIZE: msgspec.json.Decoder(_Fields),
    Endpoint.RESPONSES: msgspec.json.Decoder(_Fields),
    Endpoint.MESSAGES: msgspec.json.Decoder(_MessagesFields),
    Endpoint.COUNT_TOKENS: msgspec.json.Decoder(_MessagesFields),
}
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode

_ERROR_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")


class InferenceRequest(msgspec.Struct, frozen=True):
    """A checked request. `choices` is how many answers it asks for; `body` holds the bytes as the client sent them."""

    endpoint: Endpoint
    body: bytes
    model: str
    stream: bool
    choices: int

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
    return InferenceRequest(endpoint, body, fields.model, bool(fields.stream), _choices(fields))


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
