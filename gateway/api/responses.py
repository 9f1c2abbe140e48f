"""OpenAI's Responses dialect: https://platform.openai.com/docs/api-reference/responses.

Requests go as they come to engines that have it, and as chats to all others. Sluice itself keeps nothing.
"""

import msgspec

from gateway.api.door import Asked, Door
from gateway.api.errors import error_body
from gateway.errors import GatewayError, InvalidRequest
from gateway.request import Endpoint, InferenceRequest, parse_request
from gateway.translate.openai_responses import ResponsesWriter, start_response
from gateway.translate.responses import parse_responses
from gateway.translate.responses_openai import to_chat


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _ErrorEvent(msgspec.Struct, tag_field="type", tag="error"):
    """`error` says the same once more: it is not documented, but sent by OpenAI, and what its libraries look for."""

    message: str
    param: str | None
    code: str
    error: _Error
    sequence_number: int | msgspec.UnsetType = msgspec.UNSET


class ResponsesDoor:
    """Answers, whole and streamed, from any engine that can chat."""

    path = "/v1/responses"
    dialect = "openai"
    breaks_off = False

    def read(self, body: bytes) -> Asked:
        return Asked(parse_request(Endpoint.RESPONSES, body), as_chat=lambda: _as_chat(body))

    def error_body(self, error: GatewayError) -> bytes:
        return error_body(error)

    def error_event(self, error: GatewayError) -> bytes:
        return _error_event(error)


def _error_event(error: GatewayError, number: int | msgspec.UnsetType = msgspec.UNSET) -> bytes:
    """An `error`, after which neither `response.completed` nor anything else comes."""
    told = _Error(error.message, error.kind, error.param, error.code)
    event = _ErrorEvent(error.message, error.param, error.code, told, number)
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _as_chat(body: bytes) -> Asked:
    try:
        request = parse_responses(body)
        chat = msgspec.json.encode(to_chat(request))
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.", code="invalid_json") from None
    writer = ResponsesWriter(start_response(request))
    return Asked(
        InferenceRequest(Endpoint.CHAT, chat, request.model, bool(request.stream), 1),
        writer,
        failed=lambda error: _error_event(error, writer.next_number()),
    )


DOORS: list[Door] = [ResponsesDoor()]
