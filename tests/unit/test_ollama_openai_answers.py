"""Answers in OpenAI's dialect as Ollama's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineFailed
from gateway.translate.chat import Delta
from gateway.translate.chunks import ChunkWriter
from gateway.translate.ollama_openai import Chat, Generate, OllamaRequest, parse
from gateway.translate.ollama_openai_answers import ChatWriter, EmbeddingsWriter, EmbedWriter, GenerateWriter
from tests.support.sse import DONE, FIN, ROLE, TC, USE, R, T, data, delta, envelope
from tests.support.wire import recording

TIMINGS = {"cache_n": 4, "prompt_n": 8, "prompt_ms": 75.215, "predicted_n": 3, "predicted_ms": 179.0884}


def lines(body: bytes) -> list[dict[str, Any]]:
    """The lines of a stream, without what differs each time."""
    assert body.endswith(b"\n")
    read = [json.loads(line) for line in body.splitlines()]
    for line in read:
        assert line.pop("model") == "m:latest"
        assert line.pop("created_at").endswith("Z")
        assert line.pop("total_duration", 1) > 0
    return read


def chat_lines(*blocks: bytes) -> list[dict[str, Any]]:
    writer = ChatWriter("m:latest")
    return lines(b"".join(writer.feed(block) for block in blocks) + writer.finish())


def says(content: str = "", **message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **message}, "done": False}


def ends(reason: str = "stop", **facts: int) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": reason, **facts}


def called(name: str, arguments: dict[str, Any], call_id: str, index: int = 0) -> dict[str, Any]:
    return {"id": call_id, "function": {"index": index, "name": name, "arguments": arguments}}


CALLED = [called("f", {"a": 1}, "c1"), called("g", {}, "c2", 1)]


class TestChatStreams:
    @pytest.mark.parametrize(
        ("events", "written"),
        [
            ([T("Hé "), T("漢🦊"), FIN("stop")], [says("Hé "), says("漢🦊"), ends()]),
            ([T("a"), FIN("length")], [says("a"), ends("length")]),
            ([T("a"), FIN("content_filter")], [says("a"), ends()]),
            ([T(""), T("a"), FIN("stop")], [says("a"), ends()]),
            ([R("reasoning_content", "t"), T("a"), FIN("stop")], [says(thinking="t"), says("a"), ends()]),
            ([R("reasoning", "t"), FIN("stop")], [says(thinking="t"), ends()]),
            ([delta({"reasoning": "t", "content": "a"}), FIN("stop")], [says("a", thinking="t"), ends()]),
            ([delta({"refusal": "no"}), FIN("stop")], [says("no"), ends()]),
            ([delta({"content": "a"}, "stop")], [says("a"), ends()]),
            ([T("a"), FIN("stop"), USE(7, 2)], [says("a"), ends(prompt_eval_count=7, eval_count=2)]),
            ([b": wait\n\n", T("a"), FIN("stop")], [says("a"), ends()]),
            ([T("a").replace(b"\n", b"\r\n"), FIN("stop")], [says("a"), ends()]),
            ([b"\xef\xbb\xbf" + T("a"), FIN("stop")], [says("a"), ends()]),
            ([FIN("stop")], [ends()]),
        ],
        ids=range(14),
    )
    def test_events_and_lines(self, events: list[bytes], written: list[dict[str, Any]]) -> None:
        assert chat_lines(ROLE, *events, DONE) == written

    @pytest.mark.parametrize(
        ("parts", "calls"),
        [
            ([TC(0, "c1", "f", '{"a":1}'), TC(1, "c2", "g", "{}")], CALLED),
            ([TC(0, "c1", "f", ""), TC(0, None, None, '{"a"'), TC(0, None, None, ":1}"), TC(1, "c2", "g", "")], CALLED),
            ([TC(0, "c1", "f", '{"a"'), TC(0, "c1", None, ":1}"), TC(1, "c2", "g")], CALLED),
            ([TC(0, "c1", "f", '{"a":1}'), TC(0, "c2", "g", "{"), TC(0, None, None, "}")], CALLED),
            ([TC(None, "c1", "f", '{"a"'), TC(None, None, None, ":1}"), TC(None, "c2", "g", "{}")], CALLED),
            ([delta({"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]})], CALLED[:1]),
        ],
        ids=["whole", "in pieces", "id repeated", "index repeated", "no index", "arguments as an object"],
    )
    def test_tool_calls_come_whole(self, parts: list[bytes], calls: list[dict[str, Any]]) -> None:
        written = chat_lines(ROLE, T("x"), *parts, FIN("tool_calls"), USE(3, 4), DONE)
        assert written == [says("x"), says(tool_calls=calls), ends(prompt_eval_count=3, eval_count=4)]

    def test_calls_without_an_id_get_one_each(self) -> None:
        call, _ = chat_lines(TC(0, None, "f", "{}"), TC(1, "", "f", "{}"), FIN("tool_calls"))
        ids = [call["id"] for call in call["message"]["tool_calls"]]
        assert len(set(ids)) == 2
        assert all(ids)

    def test_a_call_that_the_output_limit_cut_is_left_out(self) -> None:
        cut = [TC(0, "c1", "f", '{"a":1}'), TC(1, "c2", "g", '{"b": ')]
        assert chat_lines(*cut, FIN("length")) == [says(tool_calls=CALLED[:1]), ends("length")]

    @pytest.mark.parametrize("arguments", ['{"a"', "[1]", '"text"', "none"])
    def test_any_other_call_that_is_none_ends_the_stream(self, arguments: str) -> None:
        writer = ChatWriter("m")
        assert lines(writer.feed(T("a")).replace(b'"m"', b'"m:latest"')) == [says("a")]
        assert writer.feed(TC(0, "c1", "f", arguments) + FIN("tool_calls")) == b""
        with pytest.raises(EngineFailed, match="arguments that are not a JSON object"):
            writer.finish()

    def test_an_event_of_another_form_is_no_gap_that_nobody_sees(self) -> None:
        writer = ChatWriter("m")
        assert writer.feed(data(envelope({"delta": {"content": 5}})) + T("b")) == b""
        assert writer.feed(T("c")) == b""
        with pytest.raises(EngineFailed, match="cannot be translated"):
            writer.finish()

    def test_log_probabilities_stay_with_their_text(self) -> None:
        token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
        event = data(envelope({"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [token]}}))
        assert chat_lines(event, FIN("stop")) == [says("a") | {"logprobs": [token]}, ends()]

    def test_times_and_counts_of_llama_cpp(self) -> None:
        [last] = chat_lines(delta({}, "stop", timings=TIMINGS), DONE)
        assert last == ends(
            prompt_eval_count=12,
            prompt_eval_cached_count=4,
            prompt_eval_duration=75_215_000,
            eval_count=3,
            eval_duration=179_088_400,
        )

    def test_cached_tokens_in_usage(self) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        [last] = chat_lines(FIN("stop"), data(envelope(usage=usage)))
        assert last == ends(prompt_eval_count=9, prompt_eval_cached_count=0, eval_count=1)

    def test_only_the_first_choice_is_told(self) -> None:
        second = data(envelope({"index": 1, "delta": {"content": "b"}, "finish_reason": None}))
        assert chat_lines(T("a"), second, FIN("stop")) == [says("a"), ends()]

    def test_the_total_is_what_has_passed(self) -> None:
        writer = ChatWriter("m")
        last = json.loads(writer.feed(FIN("stop")) + writer.finish())
        assert 0 < last["total_duration"] < 60 * 10**9


def whole(message: dict[str, Any], reason: str = "stop", **fields: Any) -> dict[str, Any]:
    """An answer to a chat in one piece, as Ollama has it."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    body = json.dumps({"object": "chat.completion", "choices": [choice], **fields}).encode()
    [line] = lines(ChatWriter("m:latest").whole(body) + b"\n")
    return line


class TestWholeAnswers:
    @pytest.mark.parametrize(
        ("message", "reason", "said", "done_reason"),
        [
            ({"content": "hé"}, "stop", says("hé"), "stop"),
            ({"content": "a"}, "length", says("a"), "length"),
            ({"content": "a", "reasoning_content": "t"}, "stop", says("a", thinking="t"), "stop"),
            ({"content": "a", "reasoning": "t"}, "stop", says("a", thinking="t"), "stop"),
            ({"content": None, "refusal": "no"}, "stop", says("no"), "stop"),
            ({"content": ""}, "stop", says(), "stop"),
            (
                {"content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}}]},
                "tool_calls",
                says(tool_calls=CALLED[:1]),
                "stop",
            ),
        ],
        ids=range(7),
    )
    def test_chats(self, message: dict[str, Any], reason: str, said: dict[str, Any], done_reason: str) -> None:
        assert whole(message, reason) == {**said, "done": True, "done_reason": done_reason}

    def test_facts(self) -> None:
        told = whole({"content": "a"}, usage={"prompt_tokens": 5, "completion_tokens": 2}, timings=TIMINGS)
        assert (told["prompt_eval_count"], told["eval_count"], told["eval_duration"]) == (5, 2, 179_088_400)

    def test_unknown_facts_are_absent(self) -> None:
        assert set(whole({"content": "a"}, usage=None)) == {"message", "done", "done_reason"}

    def test_two_calls_at_once_stay_two(self) -> None:
        call = {"function": {"name": "f", "arguments": "{}"}}
        calls = [{"id": "x", **call}, {"id": "y", **call}]
        assert [made["id"] for made in whole({"tool_calls": calls})["message"]["tool_calls"]] == ["x", "y"]

    @pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b"[]", b'{"choices":[{"message":{"content":5}}]}'])
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(EngineFailed):
            ChatWriter("m").whole(body)


class TestGenerations:
    def test_a_chat_streams_as_a_response(self) -> None:
        writer = GenerateWriter("m:latest")
        body = writer.feed(ROLE + R("reasoning", "t") + T("a") + FIN("stop") + USE(3, 2)) + writer.finish()
        assert lines(body) == [
            {"response": "", "thinking": "t", "done": False},
            {"response": "a", "done": False},
            {"response": "", "done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2},
        ]

    def test_so_does_a_completion(self) -> None:
        writer = GenerateWriter("m:latest")
        events = [data({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) for text in ("a", "b")]
        end = data({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        assert lines(writer.feed(b"".join(events) + end) + writer.finish()) == [
            {"response": "a", "done": False},
            {"response": "b", "done": False},
            {"response": "", "done": True, "done_reason": "length"},
        ]

    def test_a_whole_completion(self) -> None:
        body = json.dumps({"choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}]}).encode()
        [line] = lines(GenerateWriter("m:latest").whole(body) + b"\n")
        assert line == {"response": "ab", "done": True, "done_reason": "stop"}


class TestEmbeddings:
    LIST = b'{"data":[{"index":1,"embedding":[0.10,-2e-3]},{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":4}}'

    def test_they_are_in_the_order_of_their_inputs_and_number_by_number_the_engines(self) -> None:
        body = EmbedWriter("m").whole(self.LIST)
        assert b'"embeddings":[[1],[0.10,-2e-3]]' in body
        told = json.loads(body)
        assert (told["model"], told["prompt_eval_count"]) == ("m", 4)
        assert told["total_duration"] > 0

    def test_the_older_endpoint_has_one(self) -> None:
        assert EmbeddingsWriter("m").whole(self.LIST) == b'{"embedding":[1]}'

    @pytest.mark.parametrize(
        "body", [b"{}", b'{"data":[]}', b'{"data":[{"embedding":"AAAA"}]}', b'{"data":[{"embedding":[NaN]}]}']
    )
    @pytest.mark.parametrize("writer", [EmbedWriter, EmbeddingsWriter])
    def test_what_is_none(self, writer: type[EmbedWriter], body: bytes) -> None:
        with pytest.raises(EngineFailed, match="no embeddings"):
            writer("m").whole(body)


# Beside a real Ollama


@pytest.mark.parametrize(
    ("name", "writer", "events"),
    [
        ("native-chat-stream", ChatWriter, [T("a")]),
        ("native-chat-think-stream", ChatWriter, [R("reasoning", "t"), T("a")]),
        ("native-chat-tools-stream", ChatWriter, [TC(0, "c1", "f", '{"a":1}')]),
        ("native-generate-stream", GenerateWriter, [T("a")]),
    ],
)
def test_lines_have_the_members_of_a_real_ollamas(name: str, writer: type[ChatWriter], events: list[bytes]) -> None:
    """But for `load_duration`, which nobody knows here, and `context`, which Ollama itself calls outdated."""
    made = writer("m")
    end = delta({}, "stop", timings=TIMINGS | {"cache_n": None})
    ours = (made.feed(b"".join(events) + end) + made.finish()).splitlines()
    theirs = recording("ollama", name).body.splitlines()
    for line in (0, -1):
        real = {key: value for key, value in shape(theirs[line]).items() if key not in ("load_duration", "context")}
        assert shape(ours[line]) == real


def shape(line: bytes) -> dict[str, Any]:
    """The members of a line with their types; those of a message too."""
    read: dict[str, Any] = json.loads(line)
    flat = {**read, **{f"message.{key}": value for key, value in read.pop("message", {}).items()}}
    flat.pop("message", None)
    return {key: type(value) for key, value in flat.items()}


@pytest.mark.parametrize(
    ("name", "kind", "writer"),
    [
        ("native-chat-empty-messages", Chat, ChatWriter),
        ("native-chat-unload", Chat, ChatWriter),
        ("native-generate-preload", Generate, GenerateWriter),
        ("native-generate-unload", Generate, GenerateWriter),
    ],
)
def test_the_answer_to_nothing_is_a_real_ollamas(
    name: str, kind: type[OllamaRequest], writer: type[ChatWriter]
) -> None:
    recorded = recording("ollama", name)
    asked = parse(kind, recorded.request_body)
    answer = json.loads(writer(asked.model).idle(asked.done_reason))
    real = json.loads(recorded.body)
    assert {**answer, "created_at": ""} == {**real, "created_at": ""}


# Any stream

ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], list[str], list[dict[str, Any]]]:
    """The events of a stream, its texts, and the arguments of its calls."""
    texts = draw(st.lists(st.text(min_size=1, max_size=8), max_size=5))
    calls = draw(st.lists(ARGUMENTS, max_size=3))
    writer = ChunkWriter("M")
    events = [writer.text(text) for text in texts]
    for index, arguments in enumerate(calls):
        text = json.dumps(arguments, ensure_ascii=draw(st.booleans()))
        cut = draw(st.integers(0, len(text)))
        events += [writer.tool_call(index, f"c{index}", "f", text[:cut]), TC(index, None, None, text[cut:])]
    events += [writer.finish("tool_calls" if calls else "stop"), USE(3, 4), DONE]
    return events, texts, calls


@given(streams(), st.data())
def test_a_stream_says_the_same_however_its_events_are_grouped(
    stream: tuple[list[bytes], list[str], list[dict[str, Any]]], drawn: st.DataObject
) -> None:
    events, texts, calls = stream
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    blocks = [b"".join(events[a:b]) for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    written = chat_lines(*blocks)
    assert written == chat_lines(*events)
    assert [line["message"]["content"] for line in written if line["message"]["content"]] == texts
    made = [call for line in written for call in line["message"].get("tool_calls", [])]
    assert [call["function"]["arguments"] for call in made] == calls
    assert [line["done"] for line in written] == [False] * (len(written) - 1) + [True]


@given(st.lists(st.text(max_size=8) | st.none(), max_size=6))
def test_deltas_without_text_make_no_lines(contents: list[str | None]) -> None:
    writer = ChunkWriter("M")
    body = b"".join(writer.delta(Delta(content=content)) for content in contents) + writer.finish("stop")
    assert chat_lines(body) == [*(says(content) for content in contents if content), ends()]
