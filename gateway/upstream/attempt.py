"""One try of one request at one engine: send it, and bring what can go wrong there into our own errors."""

import errno
import time
from collections.abc import AsyncIterator
from types import TracebackType

from gateway.backend import Backend
from gateway.config.schema import Timeouts
from gateway.engines.call import Call
from gateway.errors import EngineFailed, EngineTimeout, EngineUnreachable
from gateway.guard import Guard
from gateway.request import InferenceRequest
from gateway.telemetry.timeline import Timeline
from gateway.upstream.http import httpx
from gateway.upstream.scan import Form, form_of

_OUR_OWN_LACK = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a connection attempt that say nothing about the engine."""
_MAX_ERROR_BYTES = 1024 * 1024
_DECODABLE = frozenset({b"gzip", b"deflate"})


class Answer:
    """A reply with status 200: its content type, its body as chunks, decoded if the engine compressed it, and how it
    is read.

    Iterating `chunks` raises `httpx.RequestError`, which `broken` turns into our own.
    """

    def __init__(
        self,
        backend: Backend,
        timeouts: Timeouts,
        content_type: bytes,
        chunks: AsyncIterator[bytes],
        call: Call,
        form: Form,
    ) -> None:
        self.backend = backend
        self.timeouts = timeouts
        self.content_type = content_type
        self.chunks = chunks
        self.reader = call.reader
        self.hides_progress = call.hides_progress
        self.form = form

    @property
    def streams(self) -> bool:
        """Whether it is a stream of the kind that the engine has."""
        expected = b"text/event-stream" if self.reader is None else self.reader.content_type
        return self.content_type.startswith(expected)

    def broken(self, exc: httpx.RequestError) -> EngineFailed:
        """The error for a reply that broke off; the engine is looked at at once."""
        self.backend.suspect()
        what = "compressed its answer wrongly" if isinstance(exc, httpx.DecodingError) else "broke off its answer"
        return EngineFailed(f"Engine `{self.backend.name}` {what}.")


class Attempt:
    """Sends `request` to `backend` on entering, and gives its connection back, or closes it, on leaving.

    Puts the limits `first_byte` and `total` in force.

    Args:
        model: the engine's own name of the model.
        timeouts: the limits for it.
    """

    def __init__(
        self,
        backend: Backend,
        model: str,
        timeouts: Timeouts,
        request: InferenceRequest,
        guard: Guard,
        timeline: Timeline,
    ) -> None:
        self._backend = backend
        self._timeouts = timeouts
        self._guard = guard
        self._timeline = timeline
        self._call = backend.engine.call(request, model)
        self._form = form_of(request.endpoint)
        self._response: httpx.Response | None = None

    async def __aenter__(self) -> Answer:
        """
        Raises:
            EngineUnreachable, EngineTimeout: no connection.
            EngineFailed: the connection broke, or what came is no answer.
            EngineRefused: the engine answered with an error.
        """
        backend = self._backend
        self._response = response = await self._send()
        try:
            backend.progressed()
            headers = {name.lower(): value for name, value in response.headers.raw}
            chunks = _chunks(backend.name, response, headers.get(b"content-encoding", b"identity"))
            if response.status_code != 200:
                body = await _read_some(chunks)
                raise backend.engine.refusal(backend.name, response.status_code, headers, body)
        except BaseException:
            await self._close()
            raise
        if self._call.reader is not None:
            self._call.reader.head(headers)
        content_type = headers.get(b"content-type", b"")
        return Answer(backend, self._timeouts, content_type, chunks, self._call, self._form)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def _send(self) -> httpx.Response:
        backend, timeouts = self._backend, self._timeouts
        self._call.request.extensions["timeout"] = {"connect": timeouts.connect}
        self._timeline.dispatched = now = time.perf_counter()
        self._guard.total(now + timeouts.total)
        self._guard.until("first_byte", now + timeouts.first_byte)
        try:
            return await backend.transport.handle_async_request(self._call.request)
        except httpx.ConnectTimeout as exc:
            backend.unreachable()
            raise EngineTimeout(f"Engine `{backend.name}` took no connection within {timeouts.connect:g} s.") from exc
        except httpx.ConnectError as exc:
            if getattr(exc.__cause__, "errno", None) in _OUR_OWN_LACK:
                raise EngineUnreachable(f"Engine `{backend.name}` cannot be reached: too many open files.") from exc
            backend.unreachable()
            raise EngineUnreachable(f"Engine `{backend.name}` cannot be reached.") from exc
        except httpx.RequestError as exc:
            backend.suspect()
            raise EngineFailed(f"Engine `{backend.name}` closed its connection without an answer in HTTP.") from exc

    async def _close(self) -> None:
        if self._response is not None:
            await self._response.stream.aclose()  # type: ignore[union-attr]


async def _read_some(chunks: AsyncIterator[bytes]) -> bytes:
    body = b""
    try:
        async for chunk in chunks:
            body += chunk
            if len(body) > _MAX_ERROR_BYTES:
                return b""
    except httpx.RequestError:
        return b""
    return body


def _chunks(engine: str, response: httpx.Response, encoding: bytes) -> AsyncIterator[bytes]:
    encoding = encoding.strip().lower()
    if encoding in (b"", b"identity"):
        return aiter(response.stream)  # type: ignore[arg-type]
    if encoding in _DECODABLE:
        return response.aiter_bytes()
    raise EngineFailed(f"Engine `{engine}` sent an answer compressed in a way that was not asked for.")
