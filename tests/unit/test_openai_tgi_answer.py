"""TGI's answers become OpenAI's, whole and in streams."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineRefused, EngineReported
from gateway.request import Endpoint
from gateway.translate.openai_tgi import Asked
from gateway.translate.openai_tgi_answer import TgiReader
from tests.support.sse import data, finish_reasons, is_clean, read_events
from tests.support.wire import Recording, recording, recordings


def ask_of(recorded: Recording) -> Asked:
    """What the recorded request asked for; the recordings are of requests in TGI's own form."""
    body = json.loads(recorded.request_body)
    return Asked(
        Endpoint(recorded.path),
        "alias",
        choices=len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1,
        stops=tuple(body.get("stop", ())),
        limit=body.get("max_tokens"),
        usage=body.get("stream_options", {}).get("include_usage", False),
        tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
    )


def read(asked: Asked, *reads: bytes) -> bytes:
    reader = TgiReader(asked)
    return b"".join(map(reader.feed, reads)) + reader.flush()


def same_ids(stream: bytes) -> bytes:
    """Without what is made up anew for each answer."""
    return re.sub(rb'"(chatcmpl-|cmpl-|call_)[0-9a-f]+"', rb'"\1"', stream)


def text_of(stream: bytes, index: int = 0) -> str:
    choices = [c for event in read_events(stream) if not event.done for c in event.json.get("choices", ())]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices if c["index"] == index)


def calls_of(stream: bytes) -> list[dict[str, Any]]:
    return [c for event in read_events(stream) for c in event.choice.get("delta", {}).get("tool_calls", ())]


STREAMS = [
    one
    for endpoint in Endpoint
    for one in recordings("tgi", endpoint.value)
    if one.method == "POST" and one.status == 200 and one.headers.all("content-type") == ["text/event-stream"]
]
FAILED = re.compile("error|dead|died|overload|overflow|no-properties|refused|not-an-image|top-p-one|hung")
GOOD = [one for one in STREAMS if not FAILED.search(one.name)]
BAD = [one for one in STREAMS if FAILED.search(one.name) and one.name != "hung-chat-stream"]


class TestStreams:
    @pytest.mark.parametrize("recorded", GOOD, ids=str)
    def test_every_recorded_answer_is_a_clean_stream_of_one_reply(self, recorded: Recording) -> None:
        stream = read(ask_of(recorded), recorded.body)
        assert is_clean(stream)
        chunks = [event.json for event in read_events(stream) if not event.done]
        (identity,) = {(chunk["id"], chunk["model"], chunk["created"], chunk["object"]) for chunk in chunks}
        assert identity[0]
        assert identity[1] == "alias"
        assert set(finish_reasons(stream)) <= {"stop", "length", "tool_calls"}
        assert len(finish_reasons(stream)) == ask_of(recorded).choices

    @pytest.mark.parametrize("recorded", BAD, ids=str)
    def test_every_recorded_failure_ends_with_an_error_and_nothing_after_it(self, recorded: Recording) -> None:
        *before, last = read_events(read(ask_of(recorded), recorded.body))
        assert last.error
        assert set(last.error) == {"message", "type", "param", "code"}
        assert not any(event.done or event.error for event in before)

    @pytest.mark.parametrize(
        ("name", "text", "reason"),
        [
            ("chat-stream", "Hello! I'm here to help you", "length"),
            ("chat-stream-eos", "Hello! I'm here to help you with any questions or information you might need. "
             "How can I assist you today?", "stop"),
            ("chat-stop-stream", "1. apples\n2. pears\n3. plums\n", "stop"),
            ("completion-stop-stream", "1. apples\n2. pears\n3. plums\n", "stop"),
            ("completion-stream-eos", "The capital of France is Paris.", "stop"),
            ("completion-stream", " there was a little robot who wanted to", "length"),
        ],
    )  # fmt: skip
    def test_text_and_end(self, name: str, text: str, reason: str) -> None:
        recorded = recording("tgi", name)
        stream = read(ask_of(recorded), recorded.body)
        assert (text_of(stream), finish_reasons(stream)) == (text, [reason])

    @pytest.mark.parametrize(
        ("name", "kind", "code"),
        [
            ("overload-chat-stream", "rate_limit_error", "engine_overloaded"),
            ("chat-context-overflow-stream", "invalid_request_error", "context_length_exceeded"),
            ("chat-json-no-properties-stream", "invalid_request_error", "engine_error"),
            ("dead-chat-stream", "engine_error", "engine_error"),
            ("chat-error-decode-stream", "engine_error", "engine_error"),
        ],
    )
    def test_whose_fault_an_error_is(self, name: str, kind: str, code: str) -> None:
        recorded = recording("tgi", name)
        error = read_events(read(ask_of(recorded), recorded.body))[-1].error
        assert error is not None
        assert (error["type"], error["code"]) == (kind, code)

    @given(at=st.integers(0, len(STREAMS) - 1), cuts=st.lists(st.floats(0, 1), max_size=8))
    def test_where_the_reads_are_cut_makes_no_difference(self, at: int, cuts: list[float]) -> None:
        recorded = STREAMS[at]
        body, asked = recorded.body, ask_of(recorded)
        ends = [0, *sorted(int(cut * len(body)) for cut in cuts), len(body)]
        reads = [body[start:end] for start, end in pairwise(ends)]
        assert same_ids(read(asked, *reads)) == same_ids(read(asked, body))

    def test_byte_by_byte(self) -> None:
        recorded = recording("tgi", "chat-emoji-stream")
        reads = [recorded.body[at : at + 1] for at in range(len(recorded.body))]
        stream = read(ask_of(recorded), *reads)
        assert same_ids(stream) == same_ids(read(ask_of(recorded), recorded.body))
        assert "\ufffd" not in text_of(stream)

    def test_comments_go_on(self) -> None:
        assert TgiReader(Asked(Endpoint.CHAT, "m")).feed(b":\n\n:\n\n") == b":\n\n:\n\n"

    def test_what_is_no_event_goes_on_for_the_relay_to_judge(self) -> None:
        stream = TgiReader(Asked(Endpoint.CHAT, "m")).feed(b'data: {"choices":[{"delta"\n\ndata: 7\n\n')
        assert stream == b'data: {"choices":[{"delta"\n\ndata: 7\n\n'

    def test_an_event_without_end_is_an_error(self) -> None:
        reader = TgiReader(Asked(Endpoint.CHAT, "m"))
        stream = b"".join(reader.feed(b"data: " + b"x" * 300_000) for _ in range(8))
        assert "too large" in str(read_events(stream)[0].error)


class TestToolCalls:
    @pytest.mark.parametrize(
        ("name", "reason", "arguments"),
        [
            ("chat-tools-stream", "tool_calls", {"city": "Paris"}),
            ("chat-tools-exact-length-stream", "length", {"city": "Paris"}),
        ],
    )
    def test_a_call_ends_with_a_reason(self, name: str, reason: str, arguments: object) -> None:
        recorded = recording("tgi", name)
        stream = read(ask_of(recorded), recorded.body)
        calls = calls_of(stream)
        assert finish_reasons(stream) == [reason]
        assert json.loads("".join(call["function"]["arguments"] for call in calls)) == arguments
        assert [call["index"] for call in calls] == [0] * len(calls)
        assert calls[0]["id"].startswith("call_")
        assert calls[0]["function"]["name"] == "get_weather"
        assert all("id" not in call and "name" not in call["function"] for call in calls[1:])

    def test_the_counts_come_after_the_end(self) -> None:
        recorded = recording("tgi", "chat-tools-stream")
        *_, end, counts, _done = read_events(read(ask_of(recorded), recorded.body))
        assert end.choice["finish_reason"] == "tool_calls"
        assert (counts.json["choices"], counts.json["usage"]["prompt_tokens"]) == ([], 192)

    def test_ids_are_new_in_each_answer(self) -> None:
        recorded = recording("tgi", "chat-tools-stream")
        ids = {calls_of(read(ask_of(recorded), recorded.body))[0]["id"] for _ in range(2)}
        assert len(ids) == 2

    def test_arguments_that_break_off_are_no_call(self) -> None:
        """The stream gets no reason, so that it does not pass for a whole one."""
        body, _, _ = recording("tgi", "chat-tools-required-stream").body.rpartition(b'data: {"object"')
        assert finish_reasons(read(Asked(Endpoint.CHAT, "m", tools=True), body + b"data: [DONE]\n\n")) == []

    def test_a_call_cut_off_within_its_name_ends_for_its_length(self) -> None:
        recorded = recording("tgi", "chat-tools-cut-stream")
        assert recorded.body == b"data: [DONE]\n\n"
        assert finish_reasons(read(ask_of(recorded), recorded.body)) == ["length"]

    def test_old_versions_send_objects(self) -> None:
        """One call without its list, and the last token once more as arguments."""

        def old(name: str | None, arguments: str, reason: str | None = None) -> bytes:
            call = {"index": 0, "id": "", "type": "function", "function": {"name": name, "arguments": arguments}}
            return data({"choices": [{"index": 0, "delta": {"tool_calls": call}, "finish_reason": reason}]})

        body = old("f", '{"a":') + old(None, "1}") + old(None, "</s>", "eos_token") + b"data: [DONE]\n\n"
        stream = read(Asked(Endpoint.CHAT, "m", tools=True), body)
        assert "".join(call["function"]["arguments"] for call in calls_of(stream)) == '{"a":1}'
        assert finish_reasons(stream) == ["tool_calls"]


class TestLimits:
    def tokens(self, number: int, reason: str = "length") -> list[bytes]:
        """A stream of that many tokens, each an `x`, as the engine ends it."""
        reasons = [None] * (number - 1) + [reason]
        chunks = [{"index": 0, "delta": {"content": "x"}, "finish_reason": reason} for reason in reasons]
        counts = {"prompt_tokens": 3, "completion_tokens": number, "total_tokens": number + 3}
        return [
            *(data({"choices": [one]}) for one in chunks),
            data({"choices": [], "usage": counts}),
            b"data: [DONE]\n\n",
        ]

    def test_a_stream_that_goes_on_is_cut_off(self) -> None:
        reader = TgiReader(Asked(Endpoint.CHAT, "m", limit=1030, usage=True))
        events = self.tokens(2048)
        stream = b"".join(map(reader.feed, events[:1030]))
        assert (len(text_of(stream)), finish_reasons(stream)) == (1030, ["length"])
        assert is_clean(stream)
        assert b"".join(map(reader.feed, events[1030:])) + reader.flush() == b""

    def test_a_whole_reply_is_cut_off_and_counted(self) -> None:
        body = b"".join(self.tokens(2048))
        reply = json.loads(TgiReader(Asked(Endpoint.CHAT, "m", limit=1030)).whole(body))
        (choice,) = reply["choices"]
        assert (len(choice["message"]["content"]), choice["finish_reason"]) == (1030, "length")
        assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 1030, "total_tokens": 1033}

    def test_an_answer_that_ends_at_the_limit_keeps_its_own_reason(self) -> None:
        stream = read(Asked(Endpoint.CHAT, "m", limit=4), *self.tokens(4, "eos_token"))
        assert finish_reasons(stream) == ["stop"]

    def test_prompts_are_cut_off_one_by_one(self) -> None:
        def token(index: int) -> bytes:
            return data({"choices": [{"index": index, "text": "x", "finish_reason": ""}]})

        reader = TgiReader(Asked(Endpoint.COMPLETIONS, "m", choices=2, limit=2))
        assert not is_clean(reader.feed(token(0) * 3 + token(1)))
        last = reader.feed(token(1))
        assert is_clean(last)
        assert finish_reasons(last) == ["length"]


class TestStopStrings:
    def test_one_inside_a_token_ends_the_stream_although_the_engine_goes_on(self) -> None:
        reader = TgiReader(Asked(Endpoint.CHAT, "m", stops=("END",)))
        events = [data({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in ("a", "bEN", "D.", "c")]
        stream = b"".join(map(reader.feed, events))
        assert (text_of(stream), finish_reasons(stream)) == ("ab", ["stop"])
        assert is_clean(stream)

    def test_what_was_held_back_comes_with_the_end(self) -> None:
        reader = TgiReader(Asked(Endpoint.CHAT, "m", stops=("END",)))
        stream = reader.feed(data({"choices": [{"index": 0, "delta": {"content": "aEN"}, "finish_reason": "length"}]}))
        assert (text_of(stream), finish_reasons(stream)) == ("aEN", ["length"])


class TestWholeReplies:
    @pytest.mark.parametrize(
        ("name", "text", "reason"),
        [
            ("chat", "Hello! I'm here to help you", "length"),
            ("chat-stop", "1. apples\n2. pears\n3. plums\n", "stop"),
            ("chat-eos", "Hello! I'm here to help you with any questions or information you might need. "
             "How can I assist you today?", "stop"),
            ("completion-stop", "1. apples\n2. pears\n3. plums\n", "stop"),
            ("completion-eos", "The capital of France is Paris.", "stop"),
        ],
    )  # fmt: skip
    def test_text_and_end(self, name: str, text: str, reason: str) -> None:
        recorded = recording("tgi", name)
        reply = json.loads(TgiReader(ask_of(recorded)).whole(recorded.body))
        (choice,) = reply["choices"]
        said = choice["text"] if "text" in choice else choice["message"]["content"]
        assert (said, choice["finish_reason"]) == (text, reason)
        assert reply["usage"] == json.loads(recorded.body)["usage"]
        assert (bool(reply["id"]), reply["model"]) == (True, "alias")

    def test_prompts_are_put_in_order(self) -> None:
        recorded = recording("tgi", "completion-batch-uneven")
        reply = json.loads(TgiReader(ask_of(recorded)).whole(recorded.body))
        assert [choice["index"] for choice in reply["choices"]] == [0, 1]
        assert reply["usage"]["completion_tokens"] == 32

    @pytest.mark.parametrize("name", ["chat-tools", "chat-tools-stream"])
    def test_a_tool_call_whole_or_gathered(self, name: str) -> None:
        recorded = recording("tgi", name)
        (choice,) = json.loads(TgiReader(ask_of(recorded)).whole(recorded.body))["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        assert call["id"].startswith("call_")
        assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}

    def test_old_versions_send_objects(self) -> None:
        calls = {"id": 0, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
        message = {"role": "assistant", "tool_calls": calls}
        body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "eos_token"}]}).encode()
        (choice,) = json.loads(TgiReader(Asked(Endpoint.CHAT, "m", tools=True)).whole(body))["choices"]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
        assert choice["finish_reason"] == "tool_calls"

    @pytest.mark.parametrize("recorded", GOOD, ids=str)
    def test_gathered_is_what_was_streamed(self, recorded: Recording) -> None:
        asked = ask_of(recorded)
        stream = read(asked, recorded.body)
        for choice in json.loads(TgiReader(asked).whole(recorded.body))["choices"]:
            said = choice["text"] if "text" in choice else choice["message"]["content"] or ""
            assert said == text_of(stream, choice["index"])
            assert choice["finish_reason"] in finish_reasons(stream)

    @pytest.mark.parametrize(
        ("name", "error", "status"),
        [
            ("overload-chat-stream", EngineRefused, 429),
            ("chat-context-overflow-stream", EngineRefused, 422),
            ("chat-error-decode-stream", EngineReported, 502),
        ],
    )
    def test_an_error_in_what_is_gathered_keeps_its_sense(self, name: str, error: type[Exception], status: int) -> None:
        recorded = recording("tgi", name)
        with pytest.raises(error) as caught:
            TgiReader(ask_of(recorded)).whole(recorded.body)
        assert getattr(caught.value, "status", None) == status

    @pytest.mark.parametrize(
        "body",
        [b"", b"<html>", b"{", b'{"choices":[]}', b"data: [DONE]\n\n", recording("tgi", "chat-stream").body[:900]],
    )
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(ValueError):
            TgiReader(Asked(Endpoint.CHAT, "m")).whole(body)
