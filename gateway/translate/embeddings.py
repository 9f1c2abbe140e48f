"""Gives embeddings in the form that was asked for, whichever the engine has.

Source: https://platform.openai.com/docs/api-reference/embeddings. As base64 a vector is its float32 numbers in
little-endian order, one after the other.
"""

import base64
import math
import struct
from typing import Literal

import msgspec

from gateway.errors import EngineFailed

Form = Literal["float", "base64"]

_encode = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_vector = msgspec.json.Decoder(list[float] | str).decode


class EmbeddingsWriter:
    """Passes an answer as it came where its vectors already have the form; it is a `gateway.api.door.Writer`.

    All else in an answer, the order, indexes and the usage with it, stays as it is.

    Args:
        form: what the client asked for.
    """

    content_type = b"text/event-stream"

    def __init__(self, form: Form) -> None:
        self._form = form

    def feed(self, events: bytes) -> bytes:
        """Embeddings are not streamed: what an engine sends all the same is passed on."""
        return events

    def finish(self) -> bytes:
        return b"data: [DONE]\n\n"

    def whole(self, body: bytes) -> bytes:
        """
        Raises:
            EngineFailed: `body` is no list of embeddings, or a vector holds what is not a number.
        """
        try:
            reply = _decode_members(body)
            items = _decode_items(reply["data"])
            changed = [self._convert(item) for item in items]
        except (msgspec.DecodeError, RecursionError, KeyError, ValueError, OverflowError, struct.error):
            raise EngineFailed("The engine's answer is not a list of embeddings made of finite numbers.") from None
        if not any(changed):
            return body
        reply["data"] = msgspec.Raw(_encode(items))
        return _encode(reply)

    def _convert(self, item: dict[str, msgspec.Raw]) -> bool:
        """Checks an embedding, and gives it the form; whether it had another.

        Raises:
            ValueError, OverflowError, struct.error: the vector is not one of finite numbers.
        """
        vector = _decode_vector(item["embedding"])
        if isinstance(vector, str):
            numbers = _unpack(vector)
            if self._form == "float":
                item["embedding"] = msgspec.Raw(_encode(numbers))
            return self._form == "float"
        if self._form == "base64":
            item["embedding"] = msgspec.Raw(_encode(pack(vector)))
        return self._form == "base64"


def pack(numbers: list[float]) -> str:
    """Base64 of little-endian float32, as OpenAI has vectors.

    Raises:
        OverflowError: a number is beyond float32.
    """
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def _unpack(text: str) -> tuple[float, ...]:
    data = base64.b64decode(text, validate=True)
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    if not math.isfinite(sum(numbers)):  # sums of float32 numbers never get too large by themselves
        raise ValueError(text)
    return numbers
