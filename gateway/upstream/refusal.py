"""Reads an engine's error answer, whatever its form, into one of ours."""

import email.utils
import json
import time
from collections.abc import Mapping

from gateway.errors import EngineFailed, EngineRefused, EngineReported, GatewayError

_MAX_RETRY_AFTER = 3600.0
_MAX_PLAIN_TEXT = 300

_MAX_ERROR_EVENT = 1024 * 1024

_STATUSES = {"rate_limit_error": 429, "invalid_request_error": 400}
"""Of errors in a stream, by their type: the client's own, and overload."""
_KINDS = {404: "not_found_error", 429: "rate_limit_error"}


def read_refusal(engine: str, status: int, headers: Mapping[bytes, bytes], body: bytes) -> GatewayError:
    """The error that an answer with a status other than 2xx stands for.

    An error object of OpenAI's form goes on byte for byte; other forms keep their message. A redirect is not
    followed, and an engine that refuses Sluice's own credentials is not the client's fault.
    """
    if not 400 <= status < 600:
        return EngineFailed(f"Engine `{engine}` answered with HTTP {status} where an answer was expected.")
    if status in (401, 403):
        return EngineFailed(
            f"Engine `{engine}` refuses this gateway's credentials: its `api_key` in the config needs a look.",
            code="engine_credentials",
        )
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "engine_error")
    retry_after = _retry_after(headers.get(b"retry-after"))
    message, whole = _message(body, headers.get(b"content-type", b""))
    error = EngineRefused(
        message or f"Engine `{engine}` answered with HTTP {status} and no explanation.",
        status=status,
        body=body if whole else None,
        retry_after=retry_after,
    )
    error.kind = kind
    return error


def read_error_event(engine: str, payload: bytes) -> EngineReported:
    """The error that an error event inside a stream stands for."""
    message, _ = _message(payload, b"application/json")
    error = EngineReported(message or f"Engine `{engine}` reported an error in its stream.")
    kind, code = _labels(payload)
    if kind in _STATUSES:  # before any output the client gets it as the answer's status
        error.kind, error.status = kind, _STATUSES[kind]
        error.code = code or error.code
    return error


def _labels(payload: bytes) -> tuple[str, str | None]:
    """An error event's `type` and, where it is a word, its `code`."""
    try:
        value = json.loads(payload) if len(payload) < _MAX_ERROR_EVENT else None
    except (ValueError, RecursionError):
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return "", None
    code = error.get("code")
    return str(error.get("type")), code if isinstance(code, str) else None


def _message(body: bytes, content_type: bytes) -> tuple[str | None, bool]:
    """What the error says, and whether `body` already has OpenAI's form."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _plain(body) if content_type.startswith(b"text/plain") else None, False
    if not isinstance(value, dict):
        return None, False
    error = value.get("error")
    if isinstance(error, dict):
        message = error.get("message")
        return (message, isinstance(error.get("type"), str)) if isinstance(message, str) else (None, False)
    for candidate in (error, value.get("message"), value.get("detail")):
        if isinstance(candidate, str) and candidate:
            return candidate, False
    return None, False


def _plain(body: bytes) -> str | None:
    text = body.decode("utf-8", "replace").strip()
    return text if text and len(text) <= _MAX_PLAIN_TEXT and "<" not in text else None


def _retry_after(header: bytes | None) -> float | None:
    """Seconds, from a number or a date; nonsense is ignored and a huge value bounded."""
    if header is None:
        return None
    value = header.decode("latin-1").strip()
    try:
        seconds: float = int(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(seconds, _MAX_RETRY_AFTER) if seconds >= 0 else None
