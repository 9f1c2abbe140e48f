"""OpenAI's completions and embeddings as typed structs, for translators; `chat.py` has the chat.

Source: https://platform.openai.com/docs/api-reference/completions and .../embeddings.
"""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from gateway.translate.chat import StreamOptions, Timings, Usage, invalid_type

Json = Any
"""A JSON value that is carried and not looked into."""


class _Part(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Omits what is absent when it is written."""


class CompletionRequest(_Part, kw_only=True):
    """A request to continue a text."""

    model: str
    prompt: Json = None
    """A text, the numbers of its tokens, or a list of either."""
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None

    @property
    def output_limit(self) -> int | None:
        """The longest output in tokens."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


class EmbeddingRequest(_Part, kw_only=True):
    """A request for the vectors of texts. `input` has the forms of a completion's `prompt`."""

    model: str
    input: Json
    encoding_format: str | None = None
    dimensions: int | None = None
    stream: bool | None = None
    user: str | None = None


R = TypeVar("R")


def _parse(decode: Callable[[bytes], R], body: bytes) -> R:
    try:
        return decode(body)
    except msgspec.ValidationError as exc:
        raise invalid_type(exc) from None


_decode_completion = msgspec.json.Decoder(CompletionRequest).decode
_decode_embedding = msgspec.json.Decoder(EmbeddingRequest).decode


def parse_completion(body: bytes) -> CompletionRequest:
    """
    Raises:
        InvalidRequest: a field has a type that cannot be translated.
    """
    return _parse(_decode_completion, body)


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """
    Raises:
        InvalidRequest: a field has a type that cannot be translated.
    """
    return _parse(_decode_embedding, body)


class TextChoice(msgspec.Struct, kw_only=True):
    text: str
    index: int = 0
    logprobs: Json = None
    finish_reason: str | None = None


class TextCompletion(_Part, kw_only=True):
    """A completion in one piece, or one event of a stream."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: str = ""
    usage: Usage | None = None
    timings: Timings | None = None


class Embedding(msgspec.Struct, kw_only=True):
    index: int
    embedding: list[float] | str
    """The vector, or its float32 numbers in little-endian order as base64."""
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage | msgspec.UnsetType = msgspec.UNSET
    """Unset where the engine did not count."""
    object: str = "list"


class TextWriter:
    """Writes completions, in one piece or as the events of a stream: one id, one model."""

    def __init__(self, model: str) -> None:
        self._id = f"cmpl-{os.urandom(12).hex()}"
        self._created = int(time.time())
        self._model = model

    def text(self, text: str) -> bytes:
        return self._event([TextChoice(text=text)])

    def finish(self, reason: str, timings: Timings | None = None) -> bytes:
        return self._event([TextChoice(text="", finish_reason=reason)], timings=timings)

    def usage(self, usage: Usage) -> bytes:
        return self._event([], usage=usage)

    def whole(self, text: str, reason: str, usage: Usage | None, timings: Timings | None) -> bytes:
        """All of it in one piece."""
        return self._encode([TextChoice(text=text, finish_reason=reason)], usage, timings)

    def _event(self, choices: list[TextChoice], *, usage: Usage | None = None, timings: Timings | None = None) -> bytes:
        return b"data: " + self._encode(choices, usage, timings) + b"\n\n"

    def _encode(self, choices: list[TextChoice], usage: Usage | None, timings: Timings | None) -> bytes:
        return msgspec.json.encode(
            TextCompletion(
                id=self._id,
                object="text_completion",
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage,
                timings=timings,
            )
        )
