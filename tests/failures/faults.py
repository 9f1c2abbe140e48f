"""Everything that an engine can do wrong, as scripts, with what is to come of it."""

import gzip
from dataclasses import dataclass

from tests.support.answers import ANSWER
from tests.support.engine import Script, Step
from tests.support.sse import (
    DONE,
    ERROR,
    FIN,
    LAST_CHUNK,
    ROLE,
    SSE_HEAD,
    TC,
    R,
    T,
    chunk,
    data,
    http_ok,
    json_reply,
    reply,
    sse_reply,
)

MAX_REPLY = 100_000
"""The gateway's limit for an event of a stream, and for an answer in one piece."""

JSON_HEAD = http_ok("Content-Type: application/json", "Transfer-Encoding: chunked")
SSE = "Content-Type: text/event-stream"
CHUNKED = "Transfer-Encoding: chunked"
CLOSE = "Connection: close"
GZIP = "Content-Encoding: gzip"
HTML = b"<html><body>" + 20_000 * b"x" + b"</body></html>"
HALF = b'{"choices":[{"index":0,"message":{"role":"assist'
HUGE = T("x" * 8 * MAX_REPLY)


def often(step: bytes) -> list[bytes | float]:
    """For much longer than any limit of these tests."""
    return [part for _ in range(200) for part in (chunk(step), 0.02)]


@dataclass(frozen=True)
class Fault:
    """What an engine does to a stream, and to a request for an answer in one piece; `None` does not apply.

    `limit` is the one of the gateway's limits that it runs into.
    """

    stream: Script | None
    whole: Script | None
    status: int = 502
    code: str = "engine_failed"
    limit: str | None = None


def either(*steps: bytes | float | Step) -> Fault:
    return Fault(steps, steps)


def after_head(*steps: bytes | float | Step) -> Fault:
    return Fault((SSE_HEAD, *steps), (JSON_HEAD, *steps))


def on_stream(*steps: bytes | float | Step) -> Fault:
    return Fault(steps, None)


def on_whole(*steps: bytes | float | Step) -> Fault:
    return Fault(None, steps)


def silence(limit: str, *, stream: Script | None = None, whole: Script | None = None) -> Fault:
    return Fault(stream, whole, 504, "engine_timeout", limit)


def refusal(status: int, *steps: bytes | float | Step) -> Fault:
    return Fault(steps, steps, status, "engine_error")


BEFORE_OUTPUT = {
    # The connection
    "a reset before any byte": either(Step.RESET),
    "an end before any byte": either(Step.FIN),
    "a reset in the head": either(b"HTTP/1.1 200 OK\r\nContent-", Step.RESET),
    "a reset after the head": after_head(0.05, Step.RESET),
    "an end after the head": after_head(Step.FIN),
    "an end inside a chunk": after_head(b"ff\r\ndata: {" + HALF, Step.FIN),
    "fewer bytes than announced": on_whole(http_ok("Content-Length: 999") + HALF, Step.FIN),
    # Silence
    "silence": silence("first_byte", stream=[Step.HANG], whole=[Step.HANG]),
    "half a head, then silence": silence("first_byte", stream=[SSE_HEAD[:-2], Step.HANG], whole=[b"HTTP", Step.HANG]),
    "a head, then silence": silence("first_byte", whole=[JSON_HEAD, Step.HANG]),
    "a stream's head, then silence": silence("ttft", stream=[SSE_HEAD, Step.HANG]),
    "a role, then silence": silence("ttft", stream=[SSE_HEAD, chunk(ROLE), Step.HANG]),
    "comments for ever": silence("ttft", stream=[SSE_HEAD, *often(b":\n\n")]),
    "half a body, then silence": silence("idle", whole=[JSON_HEAD, chunk(HALF), Step.HANG]),
    "a body that takes for ever": silence("total", whole=[JSON_HEAD, *often(b" ")]),
    "an error that takes for ever": silence(
        "total", stream=[http_ok(CHUNKED, status=500), *often(b" ")], whole=[http_ok(CHUNKED, status=500), *often(b" ")]
    ),
    # What is not HTTP, or none that was asked for
    "no HTTP": either(b"SSH-2.0-OpenSSH_9.6\r\n", Step.HANG),
    "nonsense in place of a chunk": after_head(b"what?\r\n"),
    "a head too large": either(http_ok(f"X-Large: {'x' * 70_000}", "Content-Length: 2") + b"{}"),
    "another protocol": either(http_ok("Upgrade: x", "Connection: Upgrade", status=101), Step.HANG),
    "no content": either(http_ok(CLOSE, status=204)),
    "a redirect": either(reply(b"", "Location: http://127.0.0.1:1/", CLOSE, status=302)),
    "an encoding nobody asked for": either(
        http_ok("Content-Encoding: br", SSE, CHUNKED) + chunk(ROLE + T("a") + FIN("stop")), LAST_CHUNK, Step.FIN
    ),
    "an encoding that is not true": Fault(
        [http_ok(GZIP, SSE, CHUNKED) + chunk(ROLE + T("a"))], [reply(b"{}", GZIP, CLOSE)]
    ),
    "half a compressed answer": on_whole(reply(gzip.compress(b'{"choices":[' + HTML)[:-20], GZIP, CLOSE)),
    # What is not an answer
    "no body": Fault([sse_reply(), Step.FIN], [reply(b"", "Content-Type: application/json", CLOSE)]),
    "HTML": either(reply(HTML, "Content-Type: text/html", CLOSE)),
    "HTML labelled as a stream": on_stream(reply(HTML, SSE, CLOSE)),
    "half a JSON text": either(reply(HALF, "Content-Type: application/json", CLOSE)),
    "null": on_whole(json_reply(None, 200, CLOSE)),
    "a list": on_whole(json_reply([ANSWER], 200, CLOSE)),
    "JSON too deep to read": on_whole(reply(b'{"a":' + 50_000 * b"[", CLOSE)),
    "an error in place of an answer": on_whole(json_reply({"error": {"message": "boom"}}, 200, CLOSE)),
    "an answer in place of a stream": on_stream(json_reply(ANSWER, 200, CLOSE)),
    "a stream in place of an answer": on_whole(sse_reply(ROLE, T("a"), FIN("stop"), DONE), Step.FIN),
    "an answer too large": Fault(
        [SSE_HEAD, chunk(HUGE[:-2]), Step.HANG], [json_reply({"x": "x" * MAX_REPLY}, 200, CLOSE)]
    ),
    # Streams without any output
    "a role and a clean end": on_stream(sse_reply(ROLE), Step.FIN),
    "an end mark only": on_stream(sse_reply(DONE), Step.FIN),
    "comments only": on_stream(sse_reply(b":\n\n", b": busy\n\n"), Step.FIN),
    "events that are no JSON only": on_stream(sse_reply(b"data: x\n\n", b"data: {\n\n", DONE), Step.FIN),
    "too much without any output": on_stream(SSE_HEAD, *(chunk(ROLE) for _ in range(MAX_REPLY // 100)), Step.HANG),
    # Errors that say little or too much
    "a 502 of a proxy": refusal(502, reply(HTML, "Content-Type: text/html", CLOSE, status=502)),
    "an empty 503": refusal(503, reply(b"", CLOSE, status=503)),
    "a 500 with null": refusal(500, json_reply(None, 500, CLOSE)),
    "a 500 that is not UTF-8": refusal(500, reply(b'{"error":"\xff"}', CLOSE, status=500)),
    "a 500 too deep to read": refusal(500, reply(50_000 * b"[", CLOSE, status=500)),
    "a 500 that breaks off": refusal(500, http_ok("Content-Length: 99", status=500) + b"{", 0.02, Step.RESET),
    "a 500 without end": refusal(500, http_ok(CHUNKED, status=500) + chunk(2_000_000 * b"x"), Step.HANG),
}

ERROR_EVENTS = {
    "vLLM": ERROR("boom", type="InternalServerError", code=500) + DONE,
    "llama.cpp": ERROR("boom", type="server_error", code=500),
    "old llama.cpp": b'error: {"code":500,"message":"boom","type":"server_error"}\n\n',
    "TGI": ERROR("boom", http_status_code=422) + DONE,
    "old vLLM": data({"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}) + DONE,
    "a text": data({"error": "boom"}),
    "a named event": b'event: error\ndata: {"message":"boom"}\n\n',
}
BEFORE_OUTPUT |= {
    f"an error event, {name}": Fault([sse_reply(ROLE, event), Step.FIN], None, 502, "engine_error")
    for name, event in ERROR_EVENTS.items()
}


@dataclass(frozen=True)
class Break:
    """What an engine does to a stream of which the client has some output already."""

    steps: Script
    code: str = "engine_failed"
    limit: str | None = None


AFTER_OUTPUT = {
    "a reset": Break([Step.RESET]),
    "an end without the last chunk": Break([Step.FIN]),
    "an end inside an event": Break([b"ff\r\n" + T("three")[:40], Step.FIN]),
    "nonsense in place of a chunk": Break([b"what?\r\n"]),
    "a clean end without a finish": Break([LAST_CHUNK, Step.FIN]),
    "a clean end inside an event": Break([chunk(T("three")[:-9]), LAST_CHUNK, Step.FIN]),
    "an end mark without a finish": Break([chunk(DONE), LAST_CHUNK, Step.FIN]),
    "a tool call cut short": Break([chunk(TC(0, "c", "f", '{"a":')), LAST_CHUNK, Step.FIN]),
    "an event too large": Break([chunk(HUGE[:-2]), Step.HANG]),
    "silence": Break([Step.HANG], "engine_timeout", "idle"),
    "comments for ever": Break(often(b":\n\n"), "engine_timeout", "idle"),
    "an event that takes for ever": Break([chunk(b"data: {"), *often(b" ")], "engine_timeout", "idle"),
    "tokens for ever": Break(often(R("reasoning", "hm")), "engine_timeout", "total"),
    **{
        f"an error event, {name}": Break([chunk(event), LAST_CHUNK, Step.FIN], "engine_error")
        for name, event in ERROR_EVENTS.items()
    },
}
