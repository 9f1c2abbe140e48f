"""An exchange whose client speaks another dialect than the answer that is relayed to it."""

from collections.abc import Sequence

from gateway.api.door import Writer
from gateway.api.exchange import Exchange

Headers = Sequence[tuple[bytes, bytes]]


class TranslatingClient:
    """Passes what the relay writes through a `Writer`."""

    def __init__(self, exchange: Exchange, writer: Writer) -> None:
        self._exchange = exchange
        self._writer = writer
        self._ready = b""
        """Translated, and not yet taken by the connection."""

    @property
    def started(self) -> bool:
        return self._exchange.started

    async def start(self, status: int, headers: Headers) -> None:
        await self._exchange.start(status, _with_type(headers, self._writer.content_type))

    def write_now(self, data: bytes) -> bool:
        self._ready += self._writer.feed(data)
        if self._ready and not self._exchange.write_now(self._ready):
            return False
        self._ready = b""
        return True

    async def write(self, data: bytes) -> None:
        """`data` is new, or is what `write_now` has just translated and could not write."""
        ready, self._ready = self._ready or self._writer.feed(data), b""
        if ready:
            await self._exchange.write(ready)

    async def finish(self, data: bytes = b"") -> None:
        ready, self._ready = self._ready, b""
        await self._exchange.finish(ready + self._writer.feed(data) + self._writer.finish())

    async def reply(self, status: int, headers: Headers, body: bytes) -> None:
        await self._exchange.reply(status, _with_type(headers, b"application/json"), self._writer.whole(body))


def _with_type(headers: Headers, content_type: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", content_type), *(header for header in headers if header[0] != b"content-type")]
