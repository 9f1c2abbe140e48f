"""Structured logs: one JSON object a line, one line a request, and never any text of a prompt or an answer."""

import asyncio
import logging
import sys
from typing import TextIO

import msgspec

from gateway.policy.decision import Decision


class RequestRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is logged of one request. Times are seconds since it was received; absent is unknown."""

    time: float
    level: str
    event: str
    request_id: str
    path: str
    status: int
    outcome: str
    """`ok`, `cancelled` (the client left), or an error's code."""
    message: str | None = None
    key: str | None = None
    model: str | None = None
    engine: str | None = None
    engine_model: str | None = None
    identity: str | None = None
    """What is known of the model that served: digest, version, quantization, context."""
    attempt: int | None = None
    stream: bool = False
    tier: str | None = None
    decision: Decision | None = None
    """Of a model with a policy."""
    priority: str | None = None
    queued: float | None = None
    """How long it waited for a place; absent if it had not to."""
    routed: float | None = None
    dispatched: float | None = None
    first_frame: float | None = None
    ttft: float | None = None
    first_delivered: float | None = None
    last_output: float | None = None
    duration: float
    finish_reason: str | None = None
    """Of a stream: of the choice that finished last."""
    events: int | None = None
    """Events with choices that were relayed: close to the number of tokens, but not a count of them."""
    dropped_events: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    engine_queue: float | None = None
    """How long the engine let the request wait (llama.cpp's streams, TGI)."""
    engine_load: float | None = None
    """How long it took to load the model for this request (Ollama)."""
    engine_prefill: float | None = None
    engine_decode: float | None = None


class _Note(msgspec.Struct, omit_defaults=True):
    time: float
    level: str
    event: str
    logger: str
    message: str
    traceback: str | None = None


_encode = msgspec.json.Encoder(decimal_format="number").encode


class RequestLog:
    """Writes request records to a text stream, by default standard error; a few together, at most 50 ms late."""

    _LATE = 0.05

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._lines: list[bytes] = []

    def write(self, record: RequestRecord) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_later(self._LATE, self.flush)
        self._lines.append(_encode(record))

    def flush(self) -> None:
        """Writes what waits; the owner calls it once more at the end."""
        if self._lines:
            lines, self._lines = b"\n".join(self._lines).decode(), []
            out = self._out or sys.stderr
            out.write(lines + "\n")
            out.flush()


class JsonFormatter(logging.Formatter):
    """Everything else that is logged, in the same form."""

    def format(self, record: logging.LogRecord) -> str:
        note = _Note(
            time=round(record.created, 3),
            level=record.levelname.lower(),
            event="log",
            logger=record.name,
            message=_writable(record.getMessage()),
            traceback=_writable(self.formatException(record.exc_info)) if record.exc_info else None,
        )
        return _encode(note).decode()


def _writable(text: str) -> str:
    """`text` with `?` for the halves of characters that file names can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def configure_logging(level: int = logging.INFO) -> None:
    """Sends the process's logs to standard error as JSON lines, in place of any earlier configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
