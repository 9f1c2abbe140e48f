"""What holds for every stream of Ollama's: cuts do not matter, and what was said can be said again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.translate.ndjson import LineSplitter
from gateway.translate.openai_ollama_reply import ChatReader
from tests.support.ollama import CALL, END, N
from tests.support.sse import Event, read_events
from tests.support.wire import Recording, recordings
from tests.unit.test_openai_ollama import message
from tests.unit.test_openai_ollama_reply import deltas, read


def timeless(events: bytes) -> list[object]:
    """Events without what is made anew for each reader."""
    return [_timeless(event) for event in read_events(events)]


def _timeless(event: Event) -> object:
    return event.data if event.done else {**event.json, "id": None, "created": None}


RECORDED = [one for one in recordings("ollama", "/api/chat") if "x-ndjson" in (one.headers.get("content-type") or "")]


class TestSplits:
    """However a stream is cut, it says the same."""

    @pytest.mark.parametrize("one", RECORDED, ids=str)
    @given(data=st.data())
    def test_recorded_streams(self, one: Recording, data: st.DataObject) -> None:
        cuts = data.draw(st.lists(st.integers(0, len(one.body)), max_size=20).map(sorted))
        reader, parts = ChatReader("m"), b""
        for start, end in zip([0, *cuts], [*cuts, len(one.body)], strict=True):
            parts += reader.feed(one.body[start:end])
        assert timeless(parts + reader.flush()) == timeless(read(one.body))

    @pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\n\n", b"\r\n\r\n \n"])
    def test_every_cut_and_every_line_end(self, ends: bytes) -> None:
        lines = [N("a"), N("🦊"), CALL(("f", "x", {"a": 1})), END("stop")]
        stream = ends.join(line.strip() for line in lines)
        expected = timeless(read(b"".join(lines)))
        for cut in range(len(stream)):
            reader = ChatReader("m")
            assert timeless(reader.feed(stream[:cut]) + reader.feed(stream[cut:]) + reader.flush()) == expected

    def test_a_line_of_300_kb_in_many_reads(self) -> None:
        stream = CALL(("f", "x", {"text": "é" * 150_000})) + END()
        reader, events = ChatReader("m"), b""
        for start in range(0, len(stream), len(stream) // 40):
            events += reader.feed(stream[start : start + len(stream) // 40])
        (delta,) = deltas(events)
        assert json.loads(delta["tool_calls"][0]["function"]["arguments"]) == {"text": "é" * 150_000}

    @given(st.lists(st.binary(max_size=8)))
    def test_lines_are_those_between_line_ends(self, reads: list[bytes]) -> None:
        splitter = LineSplitter(1 << 20)
        lines = [line for data in reads for line in splitter.feed(data)]
        assert lines + splitter.flush() == [line.strip() for line in b"".join(reads).split(b"\n") if line.strip()]

    @pytest.mark.parametrize(
        "reads", [[b"12345678901"], [b"123456", b"78901"], [b"12345678901\n"], [b"1\n", b"2345678", b"90123"]]
    )
    def test_a_line_that_is_too_long_is_let_go(self, reads: list[bytes]) -> None:
        splitter = LineSplitter(10)
        lines = [line for data in reads for line in splitter.feed(data)]
        assert splitter.too_large
        assert b"".join(lines) in (b"", b"1")
        assert (splitter.feed(b"\nmore\n"), splitter.flush()) == ([], [])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.tuples(st.text(min_size=1), st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3)),
    max_size=4,
    unique_by=lambda call: call[1],
)


@given(thoughts=st.lists(st.text()), texts=st.lists(st.text()), calls=CALLS)
def test_what_ollama_said_comes_back_to_it_as_it_was(
    thoughts: list[str], texts: list[str], calls: list[tuple[str, str, dict[str, Any]]]
) -> None:
    """An answer in a stream, gathered as clients do, and sent back as a part of the conversation."""
    events = read(b"".join([*(N(thinking=text) for text in thoughts), *map(N, texts), *map(CALL, calls), END()]))
    gathered = deltas(events)
    sent = message(
        role="assistant",
        content="".join(delta.get("content") or "" for delta in gathered),
        reasoning_content="".join(delta.get("reasoning_content") or "" for delta in gathered),
        tool_calls=[
            {name: value for name, value in call.items() if name != "index"}
            for delta in gathered
            for call in delta.get("tool_calls", [])
        ],
    )
    assert (sent["content"], sent.get("thinking", "")) == ("".join(texts), "".join(thoughts))
    assert sent.get("tool_calls", []) == [
        {"id": call_id, "function": {"name": name, "arguments": arguments}} for name, call_id, arguments in calls
    ]
