"""Chunks of odd types, which engines do send: in every dialect they are read, or the answer fails visibly."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineFailed
from gateway.translate.chunks import DialectWriter
from gateway.translate.ollama_openai_answers import ChatWriter
from gateway.translate.openai_anthropic import MessagesWriter
from tests.support.messages import read_message
from tests.support.responses import read_response, writer
from tests.support.sse import DONE, FIN, ROLE, TC, T, data, delta, envelope

BOM = b"\xef\xbb\xbf"
Told = tuple[str, str, list[tuple[str, str]], bool]
"""An answer's text, its thoughts, its calls by name and arguments, and whether it was cut short."""


def of_anthropic(body: bytes) -> Told:
    told = read_message(body)
    thoughts = "".join(block["thinking"] for block in told.content if block["type"] == "thinking")
    calls = [(block["name"], block["input"]) for block in told.content if block["type"] == "tool_use"]
    return told.text, thoughts, calls, told.stop["stop_reason"] == "max_tokens"


def of_responses(body: bytes) -> Told:
    told = read_response(body)
    assert told.response is not None
    texts, thoughts = ("".join(said[1] for said in told.said if said[0] == kind) for kind in ("message", "reasoning"))
    calls = [(said[2], said[3]) for said in told.said if said[0] == "function_call"]
    return texts, thoughts, calls, told.response["status"] == "incomplete"


def of_ollama(body: bytes) -> Told:
    lines = [json.loads(line) for line in body.splitlines()]
    messages = [line["message"] for line in lines]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", [])]
    return (
        "".join(message["content"] for message in messages),
        "".join(message.get("thinking", "") for message in messages),
        [(call["name"], json.dumps(call["arguments"], separators=(",", ":"))) for call in calls],
        lines[-1]["done_reason"] == "length",
    )


Dialect = tuple[Callable[[], DialectWriter], Callable[[bytes], Told]]
DIALECTS: dict[str, Dialect] = {
    "Anthropic": (lambda: MessagesWriter("m"), of_anthropic),
    "Responses": (writer, of_responses),
    "Ollama": (lambda: ChatWriter("m"), of_ollama),
}
IN_EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def tell(dialect: Dialect, *events: bytes) -> Told:
    new, read = dialect
    made = new()
    return read(b"".join([*map(made.feed, events), made.finish()]))


def odd(said: object = None, choice: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A chunk that says `ODD`, and has what is odd about it."""
    first = {"index": 0, "delta": {"content": "ODD"} if said is None else said, "finish_reason": None}
    return data(envelope(first | (choice or {}), **fields))


def raw(member: bytes, where: bytes = b'"finish_reason":null') -> bytes:
    """The same with a member that Python's JSON does not write."""
    return odd().replace(where, where + b"," + member)


def call(**members: Any) -> dict[str, Any]:
    return {"content": "ODD", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}} | members]}


ANY: list[Any] = [None, 7, 1.5, "x", [], {}]
COUNTS: list[Any] = [None, 1.5, "x", [], {"cached_tokens": None}, {"cached_tokens": "x"}]
LOGPROBS: list[Any] = [7, "x", [], {}, {"content": None}]
NAMES: list[Any] = [None, 7, []]
NO_TEXTS: list[Any] = [7, True, {"a": 1}, [7], [{"type": "audio", "data": "AAAA"}]]

TEXT: Told = ("ODD", "", [], False)
CALL: Told = ("ODD", "", [("f", "{}")], False)
READ: list[tuple[str, bytes, Told]] = [
    *(
        (f"{name}: {value!r}", odd(**{name: value}), TEXT)
        for name in ("id", "object", "created", "model", "usage", "timings", "system_fingerprint")
        for value in ANY
    ),
    *(
        (f"usage.{name}: {value!r}", odd(usage={"prompt_tokens": 1, "completion_tokens": 2, name: value}), TEXT)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details")
        for value in COUNTS
    ),
    *((f"timings.{n}: 'x'", odd(timings={n: "x"}), TEXT) for n in ("cache_n", "prompt_n", "prompt_ms", "predicted_ms")),
    *((f"logprobs: {value!r}", odd(choice={"logprobs": value}), TEXT) for value in LOGPROBS),
    *((f"role: {value!r}", odd({"role": value, "content": "ODD"}), TEXT) for value in NAMES),
    ("an index of null", odd(choice={"index": None}), TEXT),
    ("a stop reason of a number", odd(choice={"stop_reason": 7}), TEXT),
    ("NaN in logprobs", raw(b'"logprobs":{"content":[{"token":"a","logprob":NaN}]}'), TEXT),
    ("infinity in logprobs", raw(b'"logprobs":{"content":[{"token":"a","logprob":-Infinity}]}'), TEXT),
    ("NaN as a time", raw(b'"created":NaN', b'"object":"chat.completion.chunk"'), TEXT),
    ("half a character", odd().replace(b"ODD", rb"ODD\ud83e"), ("ODD\N{REPLACEMENT CHARACTER}", "", [], False)),
    ("content in parts", odd({"content": [{"type": "text", "text": "O"}, {"type": "text", "text": "DD"}]}), TEXT),
    ("content in bare parts", odd({"content": ["O", "DD"]}), TEXT),
    ("a thought in parts", odd({"reasoning": [{"text": "t"}], "content": "ODD"}), ("ODD", "t", [], False)),
    ("content and a refusal", odd({"content": "O", "refusal": "DD"}), TEXT),
    ("a message for a delta", odd(choice={"delta": None, "message": {"content": "ODD"}}), TEXT),
    ("a text for a delta", odd(choice={"delta": None, "text": "ODD"}), TEXT),
    ("a delta of null with a reason", odd(choice={"delta": None, "finish_reason": "length"}), ("", "", [], True)),
    ("no choices", data({"choices": None}) + odd(), TEXT),
    ("tool calls of null", odd({"content": "ODD", "tool_calls": None}), TEXT),
    ("a function of null", TC(0, "c1", "f", "{}") + odd(call(index=0, function=None)), CALL),
    ("arguments of null", odd(call(function={"name": "f", "arguments": None})) + TC(None, "c1", None, "{}"), CALL),
    ("a name of null", odd(call(function={"name": None, "arguments": "{}"})), ("ODD", "", [("", "{}")], False)),
    *((f"a call's index of null, and as type {value!r}", odd(call(index=None, type=value)), CALL) for value in NAMES),
]
UNREADABLE = {
    **{
        f"{name}: {value!r}": odd({name: value})
        for name in ("content", "reasoning", "reasoning_content", "refusal")
        for value in NO_TEXTS
    },
    **{f"tool calls: {value!r}": odd({"tool_calls": value}) for value in NO_TEXTS[:4]},
    "tool calls in a text": odd({"tool_calls": "f()"}),
    "a call in a text": odd(call(function="f()")),
    "arguments in a list": odd(call(function={"name": "f", "arguments": [1]})),
    "a delta in a text": odd("ODD"),
    "a choice in a text": data(envelope("ODD")),
    "choices in a text": data({"choices": "ODD"}),
    "a reason that is none": odd(choice={"finish_reason": {"type": "length"}}),
    "a number too large": raw(b'"logprobs":1e999'),
    "no object": data(["ODD"]),
    "no JSON": b'data: {"choices":\n\n',
    "nested too deeply": b"data: " + b"[" * 100_000 + b"\n\n",
}


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=3)


def json_with(*members: str) -> st.SearchStrategy[Any]:
    """JSON values whose objects have these members, and are nested in any order."""
    return st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(members), inner, max_size=4),
        max_leaves=6,
    )


SAID = json_with("role", "content", "reasoning", "text", "tool_calls", "index", "id", "function", "name", "arguments")
CHOICE = st.fixed_dictionaries(
    {}, optional={"index": LEAVES, "delta": SAID, "text": SAID, "finish_reason": LEAVES, "logprobs": SAID}
)
FACTS = json_with(
    "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "prompt_n", "prompt_ms"
)
CHUNKS = st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)}, optional={"usage": FACTS, "timings": FACTS})


def data_of(chunk: object) -> bytes:
    """An event with JSON as Python writes it: with `NaN`, and with halves of characters."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@IN_EVERY_DIALECT
class TestOddChunks:
    @pytest.mark.parametrize(("event", "told"), [case[1:] for case in READ], ids=[case[0] for case in READ])
    def test_what_nobody_needs_may_be_anything(self, dialect: Dialect, event: bytes, told: Told) -> None:
        assert tell(dialect, ROLE, event, delta({}), DONE) == told

    @pytest.mark.parametrize("event", UNREADABLE.values(), ids=UNREADABLE)
    def test_what_cannot_be_read_fails_at_the_end_and_never_before(self, dialect: Dialect, event: bytes) -> None:
        new, _ = dialect
        made = new()
        assert b"before" in made.feed(ROLE + T("before") + event + T("after"))
        assert made.feed(T("after") + FIN("stop")) == b""
        with pytest.raises(EngineFailed, match="cannot be translated"):
            made.finish()

    @pytest.mark.parametrize("event", [T("ODD"), b": hi\n\n" + T("ODD"), odd(id=7), T("ODD").replace(b"\n", b"\r\n")])
    def test_a_mark_of_the_byte_order_takes_no_event_with_it(self, dialect: Dialect, event: bytes) -> None:
        assert tell(dialect, BOM + event, FIN("stop"), DONE) == TEXT

    @given(event=st.data())
    def test_no_chunk_whatever_is_an_error_of_ours(self, dialect: Dialect, event: st.DataObject) -> None:
        new, _ = dialect
        made = new()
        made.feed(ROLE + data_of(event.draw(CHUNKS)))
        with contextlib.suppress(EngineFailed):
            made.finish()


CALLS: list[tuple[str, list[bytes], list[tuple[str, str]]]] = [
    ("no index, no id", [TC(None, None, n, "{}") for n in "ab"], [("a", "{}"), ("b", "{}")]),
    ("index 0, no id", [TC(0, None, n, "{}") for n in "ab"], [("a", "{}"), ("b", "{}")]),
    ("index 0, an empty id", [TC(0, "", n, "{}") for n in "ab"], [("a", "{}"), ("b", "{}")]),
    ("index 0, one id each", [TC(0, n, n, "{}") for n in "ab"], [("a", "{}"), ("b", "{}")]),
    ("no index, one id each", [TC(None, n, n, "{}") for n in "ab"], [("a", "{}"), ("b", "{}")]),
    ("one index each, one id for all", [TC(at, "x", "a", "{}") for at in (0, 1)], [("a", "{}"), ("a", "{}")]),
    ("the same twice", [TC(0, None, "a", "{}"), TC(0, None, "a", "{}")], [("a", "{}"), ("a", "{}")]),
    (
        "in pieces, no id",
        [part for n in "ab" for part in (TC(0, None, n, '{"x"'), TC(0, None, None, ":1}"))],
        [("a", '{"x":1}'), ("b", '{"x":1}')],
    ),
]


@IN_EVERY_DIALECT
@pytest.mark.parametrize(("parts", "calls"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_parallel_calls_stay_apart_however_they_are_named(
    dialect: Dialect, parts: list[bytes], calls: list[tuple[str, str]]
) -> None:
    assert tell(dialect, ROLE, *parts, FIN("tool_calls"), DONE)[2] == calls
    assert tell(dialect, ROLE + b"".join(parts) + FIN("tool_calls"))[2] == calls
