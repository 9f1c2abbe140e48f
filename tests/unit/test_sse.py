"""The scanner of event streams: what goes on is what came, and what it says does not depend on how it was cut."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream import events as framing
from gateway.upstream.facts import EngineReport
from gateway.upstream.scan.chat import ChatScanner
from tests.support.sse import DONE, ERROR, FIN, ROLE, TC, USE, R, T, data, delta, envelope, read_events

BOM = b"\xef\xbb\xbf"
WHOLE = ROLE + T("Hé") + T("漢🦊") + FIN("stop") + USE(7, 2) + DONE


@dataclass(frozen=True)
class Scanned:
    """All that a scanner lets through of a stream, its end mark included, and what it noted."""

    out: bytes
    started: bool
    whole: bool
    done: bool
    error: bytes
    finish_reason: str | None
    events: int
    dropped: int
    report: EngineReport


def scan(reads: Iterable[bytes], choices: int = 1) -> Scanned:
    scanner = ChatScanner(choices)
    out = b"".join([scanner.feed(read) for read in reads]) + scanner.flush() + scanner.done
    return Scanned(
        out,
        scanner.started,
        scanner.whole,
        bool(scanner.done),
        scanner.error,
        scanner.finish_reason,
        scanner.events,
        scanner.dropped,
        scanner.report,
    )


def pieces(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(at) if end > start]


def byte_by_byte(stream: bytes) -> list[bytes]:
    return pieces(stream, range(len(stream)))


class TestOneStream:
    def test_passes_as_it_came_and_tells_its_facts(self) -> None:
        report = EngineReport(prompt_tokens=7, completion_tokens=2)
        assert scan([WHOLE]) == Scanned(WHOLE, True, True, True, b"", "stop", 4, 0, report)

    def test_may_be_cut_anywhere(self) -> None:
        whole = scan([WHOLE])
        for at in range(1, len(WHOLE)):
            assert scan(pieces(WHOLE, [at])) == whole, f"cut at {at}"
        assert scan(byte_by_byte(WHOLE)) == whole

    def test_leaves_event_by_event_never_half_of_one(self) -> None:
        scanner = ChatScanner()
        first, second = T("a"), T("b")
        assert scanner.feed(first + second[:9]) == first
        assert scanner.feed(second[9:-1]) == b""
        assert scanner.feed(second[-1:]) == second

    def test_without_its_last_blank_line_still_counts(self) -> None:
        for missing in (1, 2):
            scanned = scan([ROLE, T("a"), FIN("stop")[:-missing]])
            assert (scanned.whole, scanned.finish_reason, scanned.dropped) == (True, "stop", 0)
            assert read_events(scanned.out) == read_events(ROLE + T("a") + FIN("stop"))

    def test_that_ends_inside_an_event_loses_that_event(self) -> None:
        scanned = scan([ROLE, T("a"), FIN("stop")[:-9]])
        assert (scanned.whole, scanned.out, scanned.dropped) == (False, ROLE + T("a"), 1)


OUTPUT = {
    "text": T("a"),
    "white space": T(" "),
    "reasoning": R("reasoning", "hm"),
    "reasoning_content": R("reasoning_content", "hm"),
    "a refusal": R("refusal", "no"),
    "a tool call": TC(0, "c", "f", ""),
    "a function call": delta({"function_call": {"name": "f", "arguments": ""}}),
    "audio": delta({"audio": {"id": "a"}}),
    "a completion's text": data({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}),
    "text of a second choice": data(envelope({"index": 0, "delta": {}}, {"index": 1, "delta": {"content": "a"}})),
    "text beside NaN": b'data: {"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"logprob":NaN}]}}]}\n\n',
    "text beside a lone surrogate": b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83e"}}]}\n\n',
    "text and a comment": b":\n" + T("a"),
}

NO_OUTPUT = {
    "a role": ROLE,
    "a role with empty text": delta({"role": "assistant", "content": ""}),
    "a role with null text": delta({"role": "assistant", "content": None, "tool_calls": None}),
    "no tool calls": delta({"tool_calls": []}),
    "a finish": FIN("stop"),
    "usage": USE(1, 0),
    "no choices": data(envelope()),
    "null choices": b'data: {"choices":null}\n\n',
    "no choices at all": b'data: {"id":"q"}\n\n',
    "progress of the prompt": data(envelope({"index": 0, "delta": {}}, prompt_progress={"total": 9, "processed": 3})),
    "an empty completion": data({"choices": [{"index": 0, "text": "", "finish_reason": None}]}),
    "a comment": b":\n\n",
    "a name only": b"event: ping\n\n",
}


class TestFirstOutput:
    @pytest.mark.parametrize("event", OUTPUT.values(), ids=OUTPUT)
    def test_is(self, event: bytes) -> None:
        scanner = ChatScanner()
        assert scanner.feed(event) == event
        assert scanner.output
        assert scanner.started

    @pytest.mark.parametrize("event", NO_OUTPUT.values(), ids=NO_OUTPUT)
    def test_is_not(self, event: bytes) -> None:
        scanner = ChatScanner()
        assert scanner.feed(event) == event
        assert not scanner.output
        assert not scanner.started

    def test_output_is_told_of_the_last_read_only(self) -> None:
        scanner = ChatScanner()
        told = []
        for read in (T("a"), b": x\n\n", T("b"), FIN("stop")):
            scanner.feed(read)
            told.append(scanner.output)
        assert told == [True, False, True, False]


class TestWhole:
    @pytest.mark.parametrize(
        ("stream", "choices", "whole"),
        [
            (T("a") + FIN("stop") + DONE, 1, True),
            (T("a") + FIN("stop"), 1, True),
            (T("a") + FIN("stop") + b"data:[DONE]\n\n", 1, True),
            (T("a") + DONE, 1, False),
            (T("a"), 1, False),
            (DONE, 1, False),
            (b"", 1, False),
            (T("a") + FIN(""), 1, False),
            (T("a") + FIN("stop"), 2, False),
            (T("a") + FIN("stop") + DONE, 2, True),  # Ollama ignores `n`
            (FIN("stop") + FIN("length"), 2, False),
            (FIN("stop") + data(envelope({"index": 1, "delta": {}, "finish_reason": "length"})), 2, True),
            (FIN("stop") + ERROR("boom"), 1, False),
            (b'data: {"choices":[{"index":null,"delta":{},"finish_reason":"stop"}]}\n\n', 1, True),
            (b'data: {"choices":[{"delta":{},"logprobs":NaN,"finish_reason":"stop"}]}\n\n', 1, True),
        ],
    )
    def test_is_a_matter_of_finished_choices(self, stream: bytes, choices: int, whole: bool) -> None:
        assert scan([stream], choices).whole is whole
        assert scan(byte_by_byte(stream), choices).whole is whole

    def test_nothing_counts_after_the_end_mark(self) -> None:
        late = T("zz") + ERROR("late") + USE(9, 9) + DONE
        for reads in ([WHOLE + late], [WHOLE, late], byte_by_byte(WHOLE + late)):
            assert scan(reads) == scan([WHOLE])


BAD = {
    "half a JSON text": b'data: {"choices":[{"delta":{"content":"tru\n\n',
    "a number": b"data: 7\n\n",
    "a list": b"data: [1]\n\n",
    "null": b"data: null\n\n",
    "text": b"data: hello\n\n",
    "invalid UTF-8": b'data: {"model":"\xff"}x\n\n',
    "depth without end": b"data: " + 5_000 * b"[" + b"\n\n",
}


class TestBadEvents:
    @pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
    def test_are_left_out_and_counted(self, bad: bytes, end: bytes) -> None:
        before, bad, after = (part.replace(b"\n", end) for part in (ROLE + T("a"), bad, T("b") + FIN("stop") + DONE))
        for reads in ([before + bad + after], [before, bad, after], byte_by_byte(before + bad + after)):
            scanned = scan(reads)
            assert (scanned.out, scanned.dropped, scanned.whole) == (before + after, 1, True)

    def test_are_left_out_after_a_byte_order_mark_too(self) -> None:
        assert scan([BOM + b"data: 7\n\n" + WHOLE]).out == BOM + WHOLE

    def test_an_empty_event_is_left_out_uncounted(self) -> None:
        scanned = scan([T("a"), b"event: ping\ndata:\n\n", T("b")])
        assert (scanned.out, scanned.dropped) == (T("a") + T("b"), 0)

    def test_an_object_of_any_content_passes(self) -> None:
        odd = b'data: {"choices":{"a":1},"usage":"none","error":null}\n\n'
        assert scan([odd]).out == odd


ERRORS = {
    "vLLM": b'data: {"error":{"message":"boom","type":"InternalServerError","code":500}}\n\n',
    "TGI": b'data: {"error":{"message":"boom","http_status_code":422}}\n\n',
    "old vLLM": b'data: {"object":"error","message":"boom","type":"BadRequestError","code":400}\n\n',
    "a text": b'data: {"error":"boom"}\n\n',
    "a named event": b'event: error\ndata: {"message":"boom"}\n\n',
    "old llama.cpp": b'error: {"code":500,"message":"boom","type":"server_error"}\n\n',
    "with NaN": b'data: {"error":{"message":"boom","at":NaN}}\n\n',
}


class TestErrorEvents:
    @pytest.mark.parametrize("event", ERRORS.values(), ids=ERRORS)
    @pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
    def test_end_the_stream_and_are_held_back(self, event: bytes, end: bytes) -> None:
        before, event, after = (part.replace(b"\n", end) for part in (T("a"), event, T("b") + FIN("stop") + DONE))
        for reads in ([before + event + after], [before, event, after], byte_by_byte(before + event + after)):
            scanned = scan(reads)
            assert scanned.out.rstrip() == before.rstrip()  # half of a cut CRLF stays with what is held back
            assert b"boom" in scanned.error
            assert json.loads(scanned.error)
            assert not scanned.whole
            assert not scanned.done

    @pytest.mark.parametrize("nothing", ["null", '""', "{}", "[]"])
    def test_an_empty_error_is_none(self, nothing: str) -> None:
        event = b'data: {"choices":[],"error":%b}\n\n' % nothing.encode()
        assert scan([event]).out == event


class TestLargeEvents:
    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
    @pytest.mark.parametrize("lines", [1, 600], ids=["one line", "many lines"])
    def test_are_searched_once(self, end: bytes, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bytes searched for the end of an event grow with its size, not with its square."""
        searched = 0

        def count(block: bytes) -> int:
            nonlocal searched
            searched += len(block)
            return search(block)

        search = framing._last_event_end
        monkeypatch.setattr(framing, "_last_event_end", count)
        text = T("漢" * 1_000_000)[6:-2]
        step = -(-len(text) // lines)
        # A JSON text may hold a line end between two of its members, so white space is put there.
        members = [b'"pad%d":"%b",' % (at, b"x" * step) for at in range(lines - 1)]
        event = (b"data: {" + b"\ndata: ".join([*members, text[1:]]) + b"\n\n").replace(b"\n", end)
        scanned = scan([event[at : at + 8192] for at in range(0, len(event), 8192)])
        assert scanned.out == event
        assert scanned.events == 1
        assert searched < 2 * len(event)

    def test_above_the_limit_are_noticed_while_they_come(self) -> None:
        scanner = ChatScanner(max_event_bytes=1000)
        event = T("x" * 2000)
        assert scanner.feed(event[:900]) == b""
        assert not scanner.too_large
        assert scanner.feed(event[900:1100]) == b""
        assert scanner.too_large

    def test_many_small_ones_are_not_a_large_one(self) -> None:
        scanner = ChatScanner(max_event_bytes=1000)
        assert scanner.feed(300 * T("a")) == 300 * T("a")
        assert not scanner.too_large


# Any stream, cut anywhere


def lines_of(payload: object, form: str) -> list[bytes]:
    """The lines of an event in one of the forms that the standard allows."""
    text = json.dumps(payload, ensure_ascii=False).encode()
    match form:
        case "tight":
            return [b"data:" + text]
        case "two lines":
            return [b"data: {", b"data: " + text[1:]]
        case "with fields":
            return [b"event: message", b"id: 9", b"retry: 5", b"data: " + text]
        case "with a comment":
            return [b": busy", b"data: " + text]
    return [b"data: " + text]


forms = st.sampled_from(["plain", "plain", "tight", "two lines", "with fields", "with a comment"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("漢" * 30)
tokens = st.integers(0, 9)


@st.composite
def payloads(draw: st.DrawFn) -> dict[str, Any]:
    index = draw(st.integers(0, 1))
    key = draw(st.sampled_from(["content", "reasoning", "reasoning_content", "role"]))
    finish = draw(st.sampled_from([None, None, "stop", "length"]))
    usage = {"prompt_tokens": draw(tokens), "completion_tokens": draw(tokens)}
    choice = {"index": index, "delta": {key: draw(texts)}, "finish_reason": finish}
    return draw(
        st.sampled_from(
            [envelope(choice), envelope(choice, usage=usage), envelope(choice, usage=None), envelope(usage=usage)]
        )
    )


events = st.builds(lines_of, payloads(), forms) | st.sampled_from(
    [[b":"], [b": busy", b":"], [b"id: 1"], [b"event: x"]]
)
line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    end = draw(line_ends)
    body = [b"".join(line + end for line in event) + end for event in draw(st.lists(events, min_size=1, max_size=8))]
    done = draw(st.sampled_from([b"", b"data: [DONE]" + end + end, b"data:[DONE]" + end + end]))
    return b"".join([draw(st.sampled_from([b"", BOM])), *body, done])


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    stream = draw(streams())
    return stream, pieces(stream, draw(st.lists(st.integers(0, len(stream)), max_size=12)))


def facts_by_the_book(stream: bytes, choices: int) -> dict[str, Any]:
    """What a reader says that was written for tests, and knows nothing of cuts."""
    told = read_events(stream)
    objects = [event.json for event in told if not event.done]
    chosen = [choice for event in objects for choice in event["choices"]]
    finished = [choice for choice in chosen if choice["finish_reason"]]
    usage: dict[str, int] = next((event["usage"] for event in reversed(objects) if event.get("usage")), {})
    done = any(event.done for event in told)
    output = [value for choice in chosen for key, value in choice["delta"].items() if key != "role"]
    return {
        "started": any(output),
        "whole": len({choice["index"] for choice in finished}) >= (1 if done else choices),
        "done": done,
        "error": b"",
        "finish_reason": finished[-1]["finish_reason"] if finished else None,
        "events": len(chosen),
        "dropped": 0,
        "report": EngineReport(usage.get("prompt_tokens"), usage.get("completion_tokens")),
    }


@given(cut_streams(), st.integers(1, 2))
def test_any_stream_cut_anywhere_passes_as_it_came_and_says_what_it_says(
    cut: tuple[bytes, Sequence[bytes]], choices: int
) -> None:
    stream, reads = cut
    assert scan(reads, choices) == Scanned(out=stream, **facts_by_the_book(stream, choices))


@given(streams())
def test_any_stream_may_come_byte_by_byte(stream: bytes) -> None:
    assert scan(byte_by_byte(stream)) == scan([stream])


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_bytes_that_are_no_stream_harm_nothing(reads: list[bytes]) -> None:
    scanned = scan([read for read in reads if read])
    assert len(scanned.out) <= sum(map(len, reads)) + 2


def test_an_end_mark_does_not_close_a_choice_that_is_open() -> None:
    begun = data(envelope({"index": 1, "delta": {"content": "b"}, "finish_reason": None}))
    scanner = ChatScanner(choices=2)
    scanner.feed(T("a") + begun + FIN("stop") + DONE)
    assert scanner.done
    assert not scanner.whole


def test_an_engine_that_gives_fewer_choices_than_asked_for_may_say_that_it_is_done() -> None:
    scanner = ChatScanner(choices=2)
    scanner.feed(T("a") + FIN("stop"))
    assert not scanner.whole
    scanner.feed(DONE)
    assert scanner.whole
