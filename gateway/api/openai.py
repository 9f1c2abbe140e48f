"""The OpenAI dialect: bodies and answers pass as they are, but for the form of embeddings."""

import msgspec

from gateway.api.door import Asked
from gateway.api.errors import error_body, error_event
from gateway.errors import GatewayError
from gateway.request import Endpoint, parse_request
from gateway.translate.embeddings import EmbeddingsWriter


class OpenAIDoor:
    """An endpoint of OpenAI's own."""

    dialect = "openai"
    breaks_off = False

    def __init__(self, endpoint: Endpoint, path: str | None = None) -> None:
        self.path = path or endpoint.value
        self._endpoint = endpoint

    def read(self, body: bytes) -> Asked:
        return Asked(parse_request(self._endpoint, body))

    def error_body(self, error: GatewayError) -> bytes:
        return error_body(error)

    def error_event(self, error: GatewayError) -> bytes:
        return error_event(error)


class _Encoding(msgspec.Struct):
    encoding_format: msgspec.Raw = msgspec.Raw(b"null")


_read_encoding = msgspec.json.Decoder(_Encoding).decode


class EmbeddingsDoor(OpenAIDoor):
    """Answers come in the form that the client asked for, even where the engine knows but one."""

    def __init__(self) -> None:
        super().__init__(Endpoint.EMBEDDINGS)

    def read(self, body: bytes) -> Asked:
        request = parse_request(Endpoint.EMBEDDINGS, body)
        match bytes(_read_encoding(body).encoding_format):
            case b"null" | b'"float"':
                return Asked(request, EmbeddingsWriter("float"))
            case b'"base64"':
                return Asked(request, EmbeddingsWriter("base64"))
        return Asked(request)  # whatever else is asked for is the engine's to judge


DOORS = [
    OpenAIDoor(Endpoint.CHAT),
    OpenAIDoor(Endpoint.COMPLETIONS),
    EmbeddingsDoor(),
    OpenAIDoor(Endpoint.RERANK),
    OpenAIDoor(Endpoint.RERANK, "/rerank"),
    OpenAIDoor(Endpoint.TOKENIZE),
]
