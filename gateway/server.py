"""The listening side: uvicorn with our limits on what a client may send before the application sees it."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.api.errors import error_body
from gateway.api.exchange import CONNECTION
from gateway.api.front import Front
from gateway.app import create_app
from gateway.config.reload import Reloader
from gateway.errors import InvalidRequest
from gateway.policy.load import Setup
from gateway.telemetry.logs import RequestLog

_log = logging.getLogger("sluice.server")

_LINGER = 1.0


class ClientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a bound on the request's head, and errors in the form that clients read."""

    front: Front
    """Has the limits. Each server has a subclass of its own with its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        """Whether the next bytes are of a request's head, not of its body."""
        self._head_bytes = 0
        """How many bytes came since the last ones of a body; trailers and chunk extensions count like a head."""
        self._head_too_large = False
        self._refused = False
        self._unread = 0
        """Bytes of a finished answer that the client had not taken when it was last looked at."""
        self.on_lost: Callable[[], None] | None = None

    def read_on(self) -> None:
        self.flow.resume_reading()

    def write_now(self, data: bytes) -> bool:
        """Writes a chunk of the body, past two layers that only matter to other applications."""
        if self.flow.write_paused or not self.cycle.chunked_encoding or self.cycle.response_complete:
            return False
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def abort(self) -> None:
        self.transport.abort()

    def hang_up(self) -> None:
        self.cycle.disconnected = True  # else uvicorn complains that the answer was not completed
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection; one whose answer is not taken yet only when the client takes no more of it."""
        unread = self.transport.get_write_buffer_size()
        if not unread:
            super().timeout_keep_alive_handler()
        elif unread == self._unread:
            self.transport.abort()
        else:
            self._unread = unread
            self.timeout_keep_alive_task = self.loop.call_later(
                self.front.server.stall_timeout, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        if self._head_bytes > self.front.server.max_header_bytes:
            self._head_too_large = True
            self._refuse()
            return
        self._head_bytes += len(data)
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            self._refuse()

    def _parse(self, data: bytes) -> bytes:
        """What is left to parse: a request that offers another protocol, as h2c, comes again without the offer."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            version = self.parser.get_http_version().encode()
            line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
            fields = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            return b"\r\n".join([line, *fields, b"\r\n"]) + data[exc.args[0] :]
        return b""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unread = 0
        self.scope["extensions"] = {CONNECTION: {"connection": self}}

    def on_headers_complete(self) -> None:
        if self._head_bytes > self.front.server.max_header_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            self._head_too_large = size > self.front.server.max_header_bytes
        if self._head_too_large or self.parser.get_method() == b"CONNECT":
            raise ValueError  # the parser hands it on as its own error, which ends in `_refuse`
        if not self.parser.should_upgrade():  # else it comes again, see `_parse`
            super().on_headers_complete()
            self._in_head = False
            self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._in_head:  # else it is an offer of another protocol that ends here
            self._in_head = True
            super().on_message_complete()

    def _refuse(self) -> None:
        """Answers what never reaches the application, then reads on for a moment so that the answer is not lost.

        An answer under way comes first and is the last one.
        """
        self._refused = True
        cycle = self.cycle
        if cycle is not None and self._in_head and not cycle.response_complete:
            cycle.keep_alive = False
            return
        if self._in_head or not cycle.response_started:
            self._write_refusal()
        self.loop.call_later(_LINGER, self.transport.close)

    def _write_refusal(self) -> None:
        if self._head_too_large:
            status, message, code = 431, "The request's headers are too large.", "headers_too_large"
        else:
            status, message, code = 400, "The request is not valid HTTP.", "invalid_http"
        self.logger.warning("%s", message)
        body = error_body(InvalidRequest(message, status=status, code=code))
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join([*head, body]))


class Server(uvicorn.Server):
    """uvicorn's server, ended by the first SIGINT or SIGTERM with exit status 0, and by the second at once.

    Args:
        front: has the time that running requests have to end.
        on_hangup: called on SIGHUP; without it that ends the process, as is usual.
    """

    def __init__(self, config: uvicorn.Config, front: Front, on_hangup: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._front = front
        self._on_hangup = on_hangup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            addresses = [listener.getsockname() for listener in sockets or []]
            _log.info("listening on %s", ", ".join(f"{address[0]} port {address[1]}" for address in addresses))

    @property
    def drain_timeout(self) -> int:
        """Whole seconds that running requests may go on for."""
        return math.ceil(self._front.server.drain_timeout)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.timeout_graceful_shutdown = self.drain_timeout
        await super().shutdown(sockets)
        if self.force_exit:  # waits for nothing and ends the application all the same
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        running = len(self.server_state.tasks)
        if running and not self.should_exit:
            _log.info(
                "stopping when %d running requests have ended, at most %d s; again to stop now",
                running,
                self.drain_timeout,
            )
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        if (reload := self._on_hangup) is not None:
            loop = asyncio.get_running_loop()
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(reload))
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


def create_server(setup: Setup, log: RequestLog | None = None, reloader: Reloader[Setup] | None = None) -> Server:
    """A server for `setup`, not yet listening. `reloader` gave the setup, and goes on to keep it as its files are."""
    config = setup.config
    front = Front(config.server)
    settings = uvicorn.Config(
        create_app(setup, front=front, log=log, reloader=reloader),
        host=config.server.host,
        port=config.server.port,
        http=type("Protocol", (ClientProtocol,), {"front": front}),
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        date_header=False,
    )
    return Server(settings, front, reloader.ask if reloader is not None and reloader.watches else None)
