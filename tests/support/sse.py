# ruff: noqa: N802 - one-letter builders keep a scripted stream on one line
"""The bytes of engines' replies, and a strict reader of what a client got.

Every event is one OpenAI chat chunk and ends in a blank line: `ROLE + T("Hi") + FIN("stop") + DONE` is a whole stream.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

MODEL = "M"

# What an engine sends


def _json(payload: object) -> bytes:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def _present(**fields: object) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value is not None}


def data(payload: object) -> bytes:
    """One event whose data is JSON, with text as UTF-8."""
    return b"data: " + _json(payload) + b"\n\n"


def envelope(*choices: object, **fields: object) -> dict[str, object]:
    """The object of one chat chunk; `fields` add members or replace them."""
    head = {"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return {**head, "choices": list(choices), **fields}


def delta(content: dict[str, object], finish_reason: str | None = None, **fields: object) -> bytes:
    """A chunk with one choice."""
    return data(envelope({"index": 0, "delta": content, "finish_reason": finish_reason}, **fields))


ROLE = delta({"role": "assistant"})
DONE = b"data: [DONE]\n\n"


def T(text: str) -> bytes:
    """Text of the answer."""
    return delta({"content": text})


def R(key: str, text: str) -> bytes:
    """Reasoning, under the name an engine has for it."""
    return delta({key: text})


def FIN(reason: str) -> bytes:
    return delta({}, reason)


def TC(index: int | None, id: str | None = None, name: str | None = None, args: str | None = None) -> bytes:  # noqa: A002
    """A part of a tool call; what is `None` is absent."""
    function = _present(name=name, arguments=args)
    return delta({"tool_calls": [_present(index=index, id=id, type="function", function=function)]})


def USE(prompt: int, completion: int) -> bytes:
    """The chunk with the token counts and no choices."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return data(envelope(usage=usage))


def ERROR(message: str, **fields: object) -> bytes:
    return data({"error": {"message": message, **fields}})


def http_ok(*headers: str, status: int = 200) -> bytes:
    """The head of a reply: `http_ok("Content-Length: 2")`."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


SSE_HEAD = http_ok("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
LAST_CHUNK = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    """One HTTP chunk. An empty one would end the body, so that it is not made here."""
    assert payload
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def chunked(*parts: bytes) -> bytes:
    """A whole chunked body, one chunk for each part."""
    return b"".join(map(chunk, parts)) + LAST_CHUNK


def reply(body: bytes, *headers: str, status: int = 200) -> bytes:
    """A whole reply with its length."""
    return http_ok(*headers, f"Content-Length: {len(body)}", status=status) + body


def json_reply(payload: object, status: int = 200, *headers: str) -> bytes:
    return reply(_json(payload), "Content-Type: application/json", *headers, status=status)


def sse_reply(*events: bytes) -> bytes:
    """A whole streamed reply, one HTTP chunk for each event."""
    return SSE_HEAD + chunked(*events)


# What a client gets


@dataclass(frozen=True)
class Event:
    """One dispatched event. `name` is `message` where the stream gave none."""

    data: str
    name: str = "message"

    @property
    def done(self) -> bool:
        return self.data == "[DONE]"

    @property
    def json(self) -> dict[str, Any]:
        """The object it carries.

        Raises:
            ValueError: it carries none.
        """
        value = json.loads(self.data)
        if not isinstance(value, dict):
            raise ValueError(f"an event that is no object: {self.data!r}")
        return value

    @property
    def error(self) -> dict[str, Any] | None:
        return None if self.done else self.json.get("error")

    @property
    def choice(self) -> dict[str, Any]:
        """The first choice, or an empty one."""
        choices = {} if self.done else self.json.get("choices")
        return choices[0] if choices else {}


def read_events(body: bytes) -> list[Event]:
    """All events that a standard reader dispatches; an event without its blank line is none.

    Raises:
        ValueError: the bytes are not UTF-8, or a line is no field of the standard.
    """
    return list(_dispatch(_lines(body)))


def _lines(body: bytes) -> list[str]:
    """The last one is what has no line end yet: empty after a whole stream."""
    return re.split(r"\r\n|\n|\r", body.decode().removeprefix("\ufeff"))


def _dispatch(lines: list[str]) -> Iterator[Event]:
    name, parts = "message", list[str]()
    for line in lines[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "data":
                parts.append(value)
            case "event":
                name = value
            case "" if not line:
                if parts:
                    yield Event("\n".join(parts), name)
                name, parts = "message", []
            case "" | "id" | "retry":
                pass
            case _:
                raise ValueError(f"not a line of an event stream: {line!r}")


def joined(body: bytes) -> str:
    """The answer's text: the content of every first choice."""
    return "".join(event.choice.get("delta", {}).get("content") or "" for event in read_events(body))


def finish_reasons(body: bytes) -> list[str]:
    found = (event.choice.get("finish_reason") for event in read_events(body))
    return [reason for reason in found if reason]


def is_clean(body: bytes) -> bool:
    """Whether each line is blank, a comment, or `data: ` with an object or `[DONE]`; which comes once, at the end."""
    *lines, done, blank, rest = ["", "", *_lines(body)]
    told = [line for line in lines if line and not line.startswith(":")]
    ends = done == "data: [DONE]" and not blank and not rest
    return ends and all(line.startswith("data: ") and _is_object(line[6:]) for line in told)


def failed(body: bytes) -> bool:
    """Whether the stream says that its answer is incomplete: an error event and no `[DONE]`."""
    events = read_events(body)
    return any(event.error for event in events) and not any(event.done for event in events)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
