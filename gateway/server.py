"""The listening side: uvicorn with our limits on what a client may send before the application sees it."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.api.errors import error_body
from gateway.api.exchange import CONNECTION
from gateway.app import create_app
from gateway.config.schema import Config
from gateway.errors import InvalidRequest
from gateway.telemetry.logs import RequestLog

_LINGER = 1.0


class ClientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a bound on the request's head, and errors in the form that clients read."""

    max_head_bytes = 64 * 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._head_too_large = False
        self._refused = False
        self.on_lost: Callable[[], None] | None = None

    def write_now(self, data: bytes) -> bool:
        """Writes a chunk of the body, past two layers that only matter to other applications."""
        if self.flow.write_paused or not self.cycle.chunked_encoding or self.cycle.response_complete:
            return False
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def abort(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.cycle is None or not self.cycle.more_body:  # these bytes belong to a head, at least the first of them
            self._head_too_large = self._head_bytes > self.max_head_bytes
            self._head_bytes += len(data)
            if self._head_too_large:
                self.send_400_response("")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: {"connection": self}}

    def on_headers_complete(self) -> None:
        if self._head_bytes > self.max_head_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self.max_head_bytes:
                self._head_too_large = True
                raise ValueError  # the parser hands it on as its own error, which ends in `send_400_response`
        self._head_bytes = 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what never reaches the application, then reads on for a moment so that the answer is not lost."""
        if self._head_too_large:
            status, message, code = 431, "The request's headers are too large.", "headers_too_large"
        else:
            status, message, code = 400, f"The request is not valid HTTP. {msg}", "invalid_http"
        self._refused = True
        body = error_body(InvalidRequest(message, status=status, code=code))
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join([*head, body]))
        self.loop.call_later(_LINGER, self.transport.close)


class Server(uvicorn.Server):
    """uvicorn's server, ended by the first SIGINT or SIGTERM with exit status 0, and by the second at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the address is in use, not this machine's, or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=4096)


def create_server(config: Config, log: RequestLog | None = None) -> Server:
    """A server for `config`, not yet listening."""
    protocol = type("Protocol", (ClientProtocol,), {"max_head_bytes": config.server.max_header_bytes})
    settings = uvicorn.Config(
        create_app(config, log=log),
        host=config.server.host,
        port=config.server.port,
        http=protocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        timeout_graceful_shutdown=int(config.server.drain_timeout),
    )
    return Server(settings)
