"""Reads one HTTP/1.1 message as it arrives, strictly: by h11, which shares no code with the gateway."""

import json
from typing import Any

import h11

MAX_HEAD = 1 << 20


class Headers(list[tuple[str, str]]):
    """Header fields in the order they came, with lower-case names."""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self if key == name.lower()]

    def get(self, name: str, default: str | None = None) -> str | None:
        return next(iter(self.all(name)), default)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.all(name))


class Message:
    """What of a message has come so far.

    `complete` turns true at its end, and `rest` then holds what came after it. `error` says what was wrong with it;
    the fields keep what came before the error.
    """

    def __init__(self, connection: h11.Connection) -> None:
        self.headers = Headers()
        self.complete = False
        self.error: str | None = None
        self._connection = connection
        self._parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The decoded body."""
        return b"".join(self._parts)

    @property
    def rest(self) -> bytes:
        return self._connection.trailing_data[0]

    def json(self) -> Any:
        return json.loads(self.body)

    def feed(self, data: bytes) -> None:
        """Takes the bytes of one read; none stand for the end of the connection."""
        if self.complete or self.error is not None:
            return
        try:
            self._connection.receive_data(data)
            while not self.complete and self._take(self._connection.next_event()):
                pass
        except h11.RemoteProtocolError as exc:
            self.error = str(exc)

    def _take(self, event: object) -> bool:
        """Whether another event may follow at once."""
        match event:
            case h11.Data():
                self._parts.append(bytes(event.data))
            case h11.EndOfMessage():
                self.complete = True
            case h11.ConnectionClosed():
                self.error = "closed without a message"
                return False
            case h11.Request() | h11.Response():
                self.headers = _headers(event)
                self.start(event)
            case _:
                return isinstance(event, h11.InformationalResponse)
        return True

    def start(self, event: h11.Request | h11.Response) -> None:
        raise NotImplementedError


class RequestMessage(Message):
    """`path` is the request's target as it was sent, with its query."""

    def __init__(self) -> None:
        super().__init__(h11.Connection(h11.SERVER, MAX_HEAD))
        self.method = ""
        self.path = ""

    def start(self, event: h11.Request | h11.Response) -> None:
        assert isinstance(event, h11.Request)
        self.method, self.path = event.method.decode(), event.target.decode()


class ReplyMessage(Message):
    """`status` is 0 until the head has come; interim 1xx heads are passed over."""

    def __init__(self, method: str = "GET") -> None:
        connection = h11.Connection(h11.CLIENT, MAX_HEAD)
        connection.send(h11.Request(method=method, target="/", headers=[("host", "any")]))
        connection.send(h11.EndOfMessage())
        super().__init__(connection)
        self.status = 0

    def start(self, event: h11.Request | h11.Response) -> None:
        assert isinstance(event, h11.Response)
        self.status = event.status_code


def read_reply(raw: bytes, method: str = "GET") -> ReplyMessage:
    """The reply in `raw`, all that came before the connection was closed."""
    reply = ReplyMessage(method)
    reply.feed(raw)
    reply.feed(b"")
    return reply


def _headers(event: h11.Request | h11.Response) -> Headers:
    return Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
