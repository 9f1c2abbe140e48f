"""Ollama's lines become OpenAI's events, and its answers in one piece OpenAI's."""

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.translate.openai_ollama_reply import ChatReader, CompletionReader, EmbeddingReader
from gateway.upstream.facts import EngineReport
from gateway.upstream.scan.chat import ChatScanner, read_completion
from tests.support.ollama import CALL, END, FAIL, GEND, G, N, line
from tests.support.sse import finish_reasons, is_clean, joined, read_events
from tests.support.wire import recording


def read(stream: bytes, reader: ChatReader | CompletionReader | None = None) -> bytes:
    """A whole stream, read at once."""
    reader = reader or ChatReader("m")
    return reader.feed(stream) + reader.flush()


def deltas(events: bytes) -> list[dict[str, Any]]:
    return [event.choice["delta"] for event in read_events(events) if event.choice.get("delta")]


def report(events: bytes) -> EngineReport:
    """What the relay learns from a stream."""
    scanner = ChatScanner()
    scanner.feed(events)
    return scanner.report


class TestStreams:
    def test_text_comes_piece_by_piece_under_one_name(self) -> None:
        events = read(N("Hel") + N("") + N("lo 🦊") + END("stop"))
        assert (joined(events), finish_reasons(events), is_clean(events)) == ("Hello 🦊", ["stop"], True)
        assert deltas(events) == [{"role": "assistant", "content": "Hel"}, {"content": "lo 🦊"}]
        whole = [event.json for event in read_events(events) if not event.done]
        assert len({event["id"] for event in whole}) == 1
        assert {(event["object"], event["model"]) for event in whole} == {("chat.completion.chunk", "m")}

    @pytest.mark.parametrize(
        ("told", "reason"),
        [("stop", "stop"), ("length", "length"), ("load", "stop"), ("unload", "stop"), ("new", "stop")],
    )
    def test_finish_reasons(self, told: str, reason: str) -> None:
        assert finish_reasons(read(N("a") + END(told))) == [reason]

    def test_an_old_server_tells_no_reason(self) -> None:
        assert finish_reasons(read(N("a") + line(message={"content": ""}, done=True))) == ["stop"]

    def test_what_the_last_line_holds_counts_too(self) -> None:
        events = read(line(message={"role": "assistant", "content": "all"}, done=True, done_reason="stop"))
        assert (joined(events), finish_reasons(events)) == ("all", ["stop"])

    def test_thoughts_are_kept_apart(self) -> None:
        thoughts = b"".join(N(thinking=f"t{i}") for i in range(6))
        events = read(thoughts + N("a", thinking="t6") + N("<think>b</think>") + END())
        assert "".join(delta.get("reasoning_content", "") for delta in deltas(events)) == "t0t1t2t3t4t5t6"
        assert joined(events) == "a<think>b</think>"

    def test_parallel_calls_are_counted_and_their_ids_unique(self) -> None:
        lines = (
            CALL(("f", None, {}), ("f", "x", {})) + CALL(("f", "x", {"a": "é"})) + CALL(("g", "", {"b": [1.0, None]}))
        )
        events = read(lines + END("stop"))
        calls = [call for delta in deltas(events) for call in delta.get("tool_calls", [])]
        assert [call["index"] for call in calls] == [0, 1, 2, 3]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [{}, {}, {"a": "é"}, {"b": [1.0, None]}]
        ids = [call["id"] for call in calls]
        assert ids[1] == "x"
        assert all(ids)
        assert len(set(ids)) == 4
        assert {call["type"] for call in calls} == {"function"}
        assert finish_reasons(events) == ["tool_calls"]

    def test_a_client_that_takes_one_call_gets_the_first(self) -> None:
        lines = CALL(("f", "a", {}), ("g", "b", {})) + CALL(("h", "c", {})) + END()
        events = read(lines, ChatReader("m", one_call=True))
        assert [call["id"] for delta in deltas(events) for call in delta.get("tool_calls", [])] == ["a"]

    def test_a_call_that_was_cut_off_is_a_matter_of_length(self) -> None:
        assert finish_reasons(read(CALL(("f", "a", {})) + END("length"))) == ["length"]

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [(None, "{}"), ("", "{}"), ('{"a":1}', '{"a":1}'), ({"n": 10**30}, '{"n":' + "1" + "0" * 30 + "}")],
    )
    def test_odd_arguments(self, arguments: object, text: str) -> None:
        (delta,) = deltas(read(CALL(("f", "a", arguments)) + END()))
        assert delta["tool_calls"][0]["function"]["arguments"] == text

    def test_logprobs(self) -> None:
        token = {"token": "a", "logprob": -0.25, "bytes": [97]}
        half = {"token": "?", "logprob": -1.5, "bytes": [240, 159], "top_logprobs": [token]}
        events = read(
            line(message={"content": "a"}, logprobs=[token]) + line(message={"content": ""}, logprobs=[half]) + END()
        )
        assert [event.choice.get("logprobs") for event in read_events(events)[:2]] == [
            {"content": [{**token, "top_logprobs": []}], "refusal": None},
            {"content": [half], "refusal": None},
        ]

    def test_usage_is_an_event_of_its_own_where_it_was_asked_for(self) -> None:
        stream = N("a") + END(prompt=9, output=3, prompt_eval_cached_count=4)
        *_, usage, _ = read_events(read(stream, ChatReader("m", usage=True)))
        assert (usage.json["choices"], usage.json["usage"]) == (
            [],
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        )
        assert not any("usage" in event.json for event in read_events(read(stream)) if not event.done)

    def test_times_and_counts_reach_the_timeline(self) -> None:
        times = {"prompt_eval_duration": 23_629_000, "eval_duration": 203_168_000}
        told = report(read(N("a") + END("stop", 12, 8, **times)))
        assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens) == (12, 8, None)
        assert (told.prefill, told.decode) == (pytest.approx(0.023629), pytest.approx(0.203168))
        assert report(read(N("a") + END(prompt=12, output=8, prompt_eval_cached_count=0))).cached_tokens == 0
        cached = report(read(N("a") + END(prompt=12, output=8, prompt_eval_cached_count=10)))
        assert (cached.prompt_tokens, cached.cached_tokens) == (12, 10)
        assert report(read(N("a") + line(done=True, done_reason="stop"))) == EngineReport()

    @pytest.mark.parametrize(
        ("nanoseconds", "seconds"), [(2_823_173_992, 2.823173992), (32_118_842, None), (None, None)]
    )
    def test_a_load_of_the_model_can_be_read_later(self, nanoseconds: int | None, seconds: float | None) -> None:
        reader = ChatReader("m")
        read(N("a") + END(**{} if nanoseconds is None else {"load_duration": nanoseconds}), reader)
        assert reader.report == EngineReport(load=seconds)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            ("runner died", "runner died"),
            ('{"error":{"code":500,"message":"boom","type":"server_error"}}', "boom"),
            ('{"message":"boom"}', "boom"),
            ("{not json", "{not json"),
            ({"message": "boom"}, "boom"),
            ("", "The engine reported an error without saying which."),
        ],
    )
    def test_an_error_ends_the_stream(self, error: object, message: str) -> None:
        events = read_events(read(N("a") + line(error=error) + N("b") + END()))
        assert [event.error and event.error["message"] for event in events] == [None, message]

    def test_without_its_last_line_a_stream_has_no_end(self) -> None:
        events = read_events(read(N("a")))
        assert [event.choice.get("finish_reason") for event in events] == [None]

    @pytest.mark.parametrize(
        "odd", [b"{", b"nonsense", b"[1]", b'"x"', b'{"message":5}', b'{"done":"yes"}', b"\xff", b"[" * 9999]
    )
    def test_what_is_no_line_is_left_out_and_counted(self, odd: bytes) -> None:
        events = read(N("a") + odd + b"\n" + N("b") + END())
        scanner = ChatScanner()
        assert joined(scanner.feed(events)) == "ab"
        assert (scanner.dropped, scanner.whole, scanner.error) == (1, True, b"")

    def test_a_line_that_never_ends_is_an_error(self) -> None:
        reader, piece = ChatReader("m"), b"x" * (1 << 24)
        (event,) = read_events(b"".join(reader.feed(piece) for _ in range(6)) + reader.flush())
        assert event.error is not None
        assert event.error["message"] == "The engine sent a line above 67108864 bytes."

    def test_nothing_follows_the_end(self) -> None:
        events = read(N("a") + END() + N("b") + FAIL("late"))
        assert is_clean(events)
        assert joined(events) == "a"


class TestWholeAnswers:
    def whole(self, body: bytes, **how: Any) -> dict[str, Any]:
        return dict(json.loads(ChatReader("m", **how).whole(body)))

    def test_text_and_thoughts(self) -> None:
        answer = self.whole(recording("ollama", "native-chat-think").body)
        assert (answer["object"], answer["model"]) == ("chat.completion", "m")
        assert answer["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "8", "reasoning_content": "Two plus two is eight.\n"},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ]
        assert answer["usage"] == {"prompt_tokens": 79, "completion_tokens": 13, "total_tokens": 92}
        assert answer["timings"] == {"prompt_n": 79, "prompt_ms": 544.357, "predicted_n": 13, "predicted_ms": 264.057}

    def test_tool_calls(self) -> None:
        (choice,) = self.whole(recording("ollama", "native-chat-tools").body)["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "")
        assert choice["message"]["tool_calls"] == [
            {
                "id": "call_y7m1grkw",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
            }
        ]

    def test_logprobs(self) -> None:
        (choice,) = self.whole(recording("ollama", "native-chat-logprobs").body)["choices"]
        recorded = recording("ollama", "native-chat-logprobs").reply.json()["logprobs"]
        assert choice["logprobs"] == {"content": recorded, "refusal": None}

    def test_the_relay_learns_the_same_as_from_a_stream(self) -> None:
        one = recording("ollama", "native-chat-system-cold")
        reader = ChatReader("m")
        told = read_completion(reader.whole(one.body))
        assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens) == (616, 8, None)
        assert (told.prefill, told.decode) == (pytest.approx(5.266037), pytest.approx(0.208452))
        assert reader.report.load == 2.823173992

    def test_a_prompt_that_was_not_counted_is_not_zero(self) -> None:
        answer = self.whole(recording("ollama", "native-chat-unload").body)
        assert "usage" not in answer
        assert "timings" not in answer

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b'"x"',
            b"{}",
            b'{"error":"boom"}',
            N("a"),
            b'{"done":true}',
            b"[" * 9999,
            b'{"done":true,"a":NaN}',
        ],
    )
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(ValueError):
            ChatReader("m").whole(body)


class TestCompletions:
    def test_a_stream(self) -> None:
        events = read(recording("ollama", "native-generate-stream").body, CompletionReader("m", usage=True))
        assert is_clean(events)
        *texts, last, usage, _ = read_events(events)
        assert "".join(event.choice["text"] for event in texts) == "I'm so glad you're here."
        assert {(event.json["object"], event.json["model"]) for event in texts} == {("text_completion", "m")}
        assert (last.choice["finish_reason"], usage.json["usage"]["total_tokens"]) == ("length", 20)

    def test_a_whole_answer(self) -> None:
        answer = json.loads(CompletionReader("m").whole(recording("ollama", "native-generate-raw").body))
        text = 'The phrase "to the best of your'
        assert answer["choices"] == [{"text": text, "index": 0, "logprobs": None, "finish_reason": "length"}]
        assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18}

    def test_an_error_ends_it(self) -> None:
        events = read_events(read(G("a") + FAIL("boom") + GEND(), CompletionReader("m")))
        assert [event.error and event.error["message"] for event in events] == [None, "boom"]


class TestEmbeddings:
    ANSWER = b'{"model":"M","embeddings":[[0.5,-1,2],[1,2,3]],"prompt_eval_count":7}'

    def test_numbers(self) -> None:
        assert json.loads(EmbeddingReader("m", 2, as_base64=False).whole(self.ANSWER)) == {
            "object": "list",
            "model": "m",
            "data": [
                {"object": "embedding", "index": 0, "embedding": [0.5, -1, 2]},
                {"object": "embedding", "index": 1, "embedding": [1, 2, 3]},
            ],
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        }

    @given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
    def test_base64_is_float32_with_the_small_end_first(self, vector: list[float]) -> None:
        answer = msgspec.json.encode({"embeddings": [vector]})
        (data,) = json.loads(EmbeddingReader("m", 1, as_base64=True).whole(answer))["data"]
        assert list(struct.unpack(f"<{len(vector)}f", base64.b64decode(data["embedding"]))) == vector

    @pytest.mark.parametrize(
        "body",
        [
            b'{"embeddings":[[1]]}',
            b'{"embeddings":[[1],[]]}',
            b'{"embeddings":[[1],[NaN]]}',
            b'{"embeddings":[[1],[Infinity]]}',
            b'{"embeddings":[[1],[null]]}',
            b'{"embeddings":[[1],[1e39]]}',
            b"{}",
        ],
    )
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(ValueError):
            EmbeddingReader("m", 2, as_base64=True).whole(body)
