"""Anthropic's Messages dialect: https://docs.anthropic.com/en/api/messages and .../messages-count-tokens.

Requests go as they come to engines that speak it, and as chats in OpenAI's dialect to all others.
"""

import msgspec

from gateway.api.door import Asked, Door
from gateway.errors import GatewayError, InvalidRequest
from gateway.request import Endpoint, InferenceRequest, parse_request
from gateway.translate.anthropic import NO_THREADS, Error, ErrorDetails, ErrorReply, encode_event, parse_messages
from gateway.translate.anthropic_openai import to_chat
from gateway.translate.openai_anthropic import MessagesWriter

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of errors by status, from https://docs.anthropic.com/en/api/errors."""


VERSION = "anthropic-version"
"""A header that Anthropic's clients send with every request."""


def error_body(error: GatewayError) -> bytes:
    """`{"type": "error", "error": {"type", "message"}}`, also for an engine's own errors."""
    return msgspec.json.encode(_reply(error))


class _AnthropicDoor:
    path: str
    dialect = "anthropic"
    breaks_off = False

    def error_body(self, error: GatewayError) -> bytes:
        return error_body(error)

    def error_event(self, error: GatewayError) -> bytes:
        return encode_event(_reply(error))


class MessagesDoor(_AnthropicDoor):
    """Answers, whole and streamed, from any engine that can chat."""

    path = "/v1/messages"

    def read(self, body: bytes) -> Asked:
        return Asked(parse_request(Endpoint.MESSAGES, body), as_chat=lambda: _as_chat(body))


class CountTokensDoor(_AnthropicDoor):
    """Passes on to engines that can count: a number that is not the engine's own would be a guess."""

    path = Endpoint.COUNT_TOKENS.value

    def read(self, body: bytes) -> Asked:
        return Asked(parse_request(Endpoint.COUNT_TOKENS, body))


DOORS: list[Door] = [MessagesDoor(), CountTokensDoor()]


def _as_chat(body: bytes) -> Asked:
    try:
        request = parse_messages(body)
        chat = msgspec.json.encode(to_chat(request))
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.", code="invalid_json") from None
    writer = MessagesWriter(request.model, stops=request.stop_sequences or (), thinking=request.shows_thinking)
    return Asked(InferenceRequest(Endpoint.CHAT, chat, request.model, bool(request.stream), 1), writer)


def _reply(error: GatewayError) -> ErrorReply:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = ErrorDetails(error_code=error.code) if error.code == NO_THREADS else None
    return ErrorReply(error=Error(type=kind, message=error.message, details=details))
