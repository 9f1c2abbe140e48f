#!/usr/bin/env python3
"""A fast engine in OpenAI's dialect for overhead measurements; it does no inference.

usage: engine_stub.py PORT [CHUNKS=50] [INTERVAL_MS=0]

POST with `"stream": true` gets CHUNKS events of one token each, a finish event, a usage event and [DONE], INTERVAL_MS
apart (0: all at once; a body that contains the word `paced`: 10 ms apart, as a fast engine would). Any other POST gets
one JSON completion; any GET a list of one model. Needs uvloop.
"""

import asyncio
import sys
from typing import cast

import uvloop

PACED = 0.01
"""Seconds between two events of a paced stream."""


def response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def event(data: bytes) -> bytes:
    frame = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def chunk(choices: bytes, more: bytes = b"") -> bytes:
    head = b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    return event(b'%b"choices":[%b]%b}' % (head, choices, more))


COMPLETION = response(
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello there, this is a reply."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":32,"completion_tokens":8,"total_tokens":40}}'
)
MODELS = response(
    b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x","max_model_len":4096}]}'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = chunk(b'{"index":0,"delta":{"content":" tok"},"finish_reason":null}')
TAIL = (
    chunk(b'{"index":0,"delta":{},"finish_reason":"stop"}')
    + chunk(b"", b',"usage":{"prompt_tokens":32,"completion_tokens":50,"total_tokens":82}')
    + event(b"[DONE]")
    + b"0\r\n\r\n"
)


class Engine(asyncio.Protocol):
    def __init__(self, chunks: int, interval: float) -> None:
        self.chunks = chunks
        self.interval = interval
        self.buffer = b""
        self.timer: asyncio.TimerHandle | None = None
        self.left = 0
        self.pause = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (found := self.take_request()) is not None:
            self.answer(*found)

    def take_request(self) -> tuple[bytes, bytes] | None:
        """The next whole request as its lower-case head and its body."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head, body_at = self.buffer[:end].lower(), end + 4
        if b"transfer-encoding: chunked" in head:
            last = self.buffer.find(b"0\r\n\r\n", body_at)
            if last < 0:
                return None
            stop = last + 5
        else:
            at = head.find(b"content-length:")
            stop = body_at + (int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0)
            if len(self.buffer) < stop:
                return None
        body, self.buffer = self.buffer[body_at:stop], self.buffer[stop:]
        return head, body

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            self.transport.write(MODELS)
        elif b'"stream":true' not in body and b'"stream": true' not in body:
            self.transport.write(COMPLETION)
        else:
            self.transport.write(HEAD)
            self.pause = PACED if b"paced" in body else self.interval
            if self.pause:
                self.left = self.chunks
                self.tick()
                return
            for _ in range(self.chunks):
                self.transport.write(TOKEN)
            self.transport.write(TAIL)

    def tick(self) -> None:
        if self.left == 0:
            self.transport.write(TAIL)
            self.timer = None
            return
        self.left -= 1
        self.transport.write(TOKEN)
        self.timer = asyncio.get_running_loop().call_later(self.pause, self.tick)


async def main() -> None:
    port = int(sys.argv[1])
    chunks = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    interval = float(sys.argv[3]) / 1000 if len(sys.argv) > 3 else 0.0
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(chunks, interval), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
