"""What becomes of an engine's answer in OpenAI's dialect when the client speaks Anthropic's."""

import json
from typing import Any

import pytest

from gateway.errors import EngineFailed
from gateway.translate.openai_anthropic import MessagesWriter
from tests.support.messages import called, read_message, text, thinking, tool_use, whole, write
from tests.support.sse import DONE, FIN, ROLE, TC, USE, R, T, data, delta, envelope, failed, joined, read_events
from tests.support.wire import Recording, recording, recordings


def content_of(*events: bytes, **settings: Any) -> list[dict[str, Any]]:
    return read_message(write(*events, **settings)).content


def written(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A block of a streamed call, with its JSON as it came."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


CONTENT: list[tuple[str, list[bytes], list[dict[str, Any]]]] = [
    ("text", [T("Hé"), T(" 漢🦊")], [text("Hé 漢🦊")]),
    ("reasoning", [R("reasoning", "th"), R("reasoning", "ink"), T("ans")], [thinking("think"), text("ans")]),
    ("reasoning_content", [R("reasoning_content", "think"), T("ans")], [thinking("think"), text("ans")]),
    ("both in one event", [delta({"reasoning": "a", "content": "b"})], [thinking("a"), text("b")]),
    ("text, thoughts, text", [T("a"), R("reasoning", "b"), T("c")], [text("a"), thinking("b"), text("c")]),
    ("a refusal", [delta({"refusal": "No."})], [text("No.")]),
    ("empty text", [T(""), R("reasoning", ""), delta({"content": None})], []),
    (
        "a call in parts",
        [TC(0, "c1", "f", ""), TC(0, args='{"a"'), TC(0, args=":1}")],
        [written("c1", "f", '{"a":1}')],
    ),
    ("a call after text", [T("a"), TC(0, "c1", "f", "{}")], [text("a"), written("c1", "f", "{}")]),
    ("text after a call", [TC(0, "c1", "f", "{}"), T("a")], [written("c1", "f", "{}"), text("a")]),
    (
        "two calls",
        [TC(0, "c1", "f", '{"a":'), TC(0, args="1}"), TC(1, "c2", "g", "{"), TC(1, args="}")],
        [written("c1", "f", '{"a":1}'), written("c2", "g", "{}")],
    ),
    (
        "two calls with their parts mixed",
        [TC(0, "c1", "f", ""), TC(1, "c2", "g", ""), TC(1, args="{"), TC(0, args="{}"), TC(1, args="}")],
        [written("c1", "f", "{}"), written("c2", "g", "{}")],
    ),
    (
        "two calls in one event",
        [delta({"tool_calls": [{"index": at, **called(f"c{at}", "f", "{}")} for at in (0, 1)]})],
        [written("c0", "f", "{}"), written("c1", "f", "{}")],
    ),
    (
        "one index for all calls",
        [TC(0, "c1", "f", '{"p":1}'), TC(0, "c2", "f", '{"p"'), TC(0, args=":2}")],
        [written("c1", "f", '{"p":1}'), written("c2", "f", '{"p":2}')],
    ),
    (
        "no index",
        [TC(None, "c1", "f", '{"a"'), TC(None, args=":1}"), TC(None, "c2", "g", "{}")],
        [written("c1", "f", '{"a":1}'), written("c2", "g", "{}")],
    ),
    (
        "one index for all calls, the first without arguments",
        [TC(0, "c1", "f", ""), TC(0, "c2", "f", "{}")],
        [written("c1", "f", ""), written("c2", "f", "{}")],
    ),
    (
        "the id and the name again when all is told",
        [TC(0, "c1", "f", "{}"), TC(0, "c1", "f", "")],
        [written("c1", "f", "{}")],
    ),
    (
        "text while calls are under way",
        [TC(0, "c1", "f", "{"), TC(1, "c2", "g", "{}"), T("a")],
        [written("c1", "f", "{"), written("c2", "g", "{}"), text("a")],
    ),
    (
        "the id and the name again with each part",
        [TC(0, "c1", "f", "{"), TC(0, "c1", "f", "}")],
        [written("c1", "f", "{}")],
    ),
    ("an empty id with each further part", [TC(0, "c1", "f", "{"), TC(0, "", None, "}")], [written("c1", "f", "{}")]),
    (
        "arguments as an object",
        [delta({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]})],
        [written("c1", "f", '{"a":1}')],
    ),
    ("no arguments at all", [TC(0, "c1", "f"), TC(1, "c2", "g")], [written("c1", "f", ""), written("c2", "g", "")]),
]


class TestStreams:
    @pytest.mark.parametrize(
        ("events", "content"), [(events, content) for _, events, content in CONTENT], ids=[case[0] for case in CONTENT]
    )
    def test_content(self, events: list[bytes], content: list[dict[str, Any]]) -> None:
        assert content_of(ROLE, *events, FIN("stop"), DONE) == content

    def test_event_by_event(self) -> None:
        events = read_events(write(ROLE, T("Hi"), FIN("stop"), USE(7, 2), DONE))
        usage = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        start = events[0].json["message"]
        assert start.pop("id").startswith("msg_")
        assert start == {
            "type": "message",
            "role": "assistant",
            "model": "asked",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        assert [event.json for event in events[1:]] == [
            {"type": "content_block_start", "index": 0, "content_block": text("")},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": usage | {"input_tokens": 7, "output_tokens": 2},
            },
            {"type": "message_stop"},
        ]

    def test_text_leaves_with_its_event(self) -> None:
        writer = MessagesWriter("asked")
        assert [len(read_events(writer.feed(event))) for event in (ROLE, T("a"), T("b"))] == [1, 2, 1]

    def test_a_second_call_leaves_as_it_comes_once_the_first_is_whole(self) -> None:
        writer = MessagesWriter("asked")
        writer.feed(ROLE + TC(0, "c1", "f", "{}"))
        names = [event.name for event in read_events(writer.feed(TC(1, "c2", "g", "{")))]
        assert names == ["content_block_stop", "content_block_start", "content_block_delta"]

    def test_calls_without_ids_get_some(self) -> None:
        first, second = content_of(ROLE, TC(0, "", "f", "{}"), TC(1, None, "f", "{}"), FIN("tool_calls"))
        assert first["id"]
        assert second["id"]
        assert first["id"] != second["id"]

    def test_calls_with_one_id_get_two(self) -> None:
        first, second = content_of(ROLE, TC(0, "0", "f", "{}"), TC(1, "0", "f", "{}"), FIN("tool_calls"))
        assert first["id"] == "0"
        assert second["id"] != "0"

    def test_equal_calls_without_ids_under_one_index_are_two(self) -> None:
        assert len(content_of(ROLE, TC(0, "", "f", "{}"), TC(0, "", "f", "{}"), FIN("tool_calls"))) == 2

    @pytest.mark.parametrize(
        ("parts", "calls"),
        [
            ([TC(0, None, "f", "{"), TC(0, None, "f", "}")], [("f", "{}")]),
            ([TC(None, None, "f", ""), TC(None, None, "g", "{}")], [("f", ""), ("g", "{}")]),
        ],
    )
    def test_without_ids_the_name_tells_calls_apart(self, parts: list[bytes], calls: list[tuple[str, str]]) -> None:
        assert [(block["name"], block["input"]) for block in content_of(ROLE, *parts, FIN("stop"))] == calls

    def test_what_comes_late_for_a_call_goes_to_its_own_block(self) -> None:
        late = write(ROLE, TC(0, "c1", "f", '{"a"'), T("x"), TC(0, args=":1}"), FIN("tool_calls"))
        events = [event.json for event in read_events(late) if event.name == "content_block_delta"]
        assert [event["delta"]["partial_json"] for event in events if event["index"] == 0] == ['{"a"', ":1}"]

    def test_the_reason_of_the_end_is_kept(self) -> None:
        assert read_message(write(ROLE, T("a"), FIN("length"), delta({}))).stop["stop_reason"] == "max_tokens"

    def test_thoughts_that_are_not_to_be_shown(self) -> None:
        assert content_of(ROLE, R("reasoning", "hm"), T("a"), FIN("stop"), thinking=False) == [text("a")]

    def test_comments_and_odd_events_are_nothing(self) -> None:
        assert content_of(b": ping\n\n", ROLE, data({"prompt_progress": 1}), T("a"), FIN("stop")) == [text("a")]

    def test_an_answer_of_nothing(self) -> None:
        told = read_message(write(FIN("length"), DONE))
        assert (told.content, told.stop["stop_reason"]) == ([], "max_tokens")

    def test_usage_known_from_the_beginning_is_told_there(self) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 0}
        told = read_message(write(delta({"role": "assistant"}, usage=usage), T("a"), FIN("stop"), USE(9, 1)))
        assert (told.start["usage"]["input_tokens"], told.usage["output_tokens"]) == (9, 1)


class TestEnds:
    """The same for streams and for whole answers."""

    CASES = pytest.mark.parametrize(
        ("reason", "called", "stop_reason"),
        [
            ("stop", False, "end_turn"),
            ("eos_token", False, "end_turn"),
            ("length", False, "max_tokens"),
            ("content_filter", False, "refusal"),
            ("tool_calls", True, "tool_use"),
            ("function_call", True, "tool_use"),
            ("stop", True, "tool_use"),
            ("length", True, "max_tokens"),
            ("content_filter", True, "refusal"),
        ],
    )
    STOP_TEXTS = pytest.mark.parametrize(
        ("told", "stop"),
        [
            ("END", {"stop_reason": "stop_sequence", "stop_sequence": "END"}),
            ("other", {"stop_reason": "end_turn", "stop_sequence": None}),
            (2, {"stop_reason": "end_turn", "stop_sequence": None}),
            (None, {"stop_reason": "end_turn", "stop_sequence": None}),
        ],
    )

    @CASES
    def test_streamed(self, reason: str, called: bool, stop_reason: str) -> None:
        body = TC(0, "c1", "f", "{}") if called else T("a")
        told = read_message(write(ROLE, body, FIN(reason)))
        assert told.stop == {"stop_reason": stop_reason, "stop_sequence": None}

    @CASES
    def test_whole(self, reason: str, called: bool, stop_reason: str) -> None:
        calls = {"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]} if called else {}
        assert whole({"content": "a", **calls}, reason)["stop_reason"] == stop_reason

    @STOP_TEXTS
    def test_a_stop_text_that_the_engine_names_streamed(self, told: Any, stop: dict[str, Any]) -> None:
        choice = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": told}
        assert read_message(write(ROLE, T("a"), data(envelope(choice)), stops=["END"])).stop == stop

    @STOP_TEXTS
    def test_a_stop_text_that_the_engine_names_whole(self, told: Any, stop: dict[str, Any]) -> None:
        reply = whole({"content": "a"}, "stop", stops=["END"], stop_reason=told)
        assert {name: reply[name] for name in stop} == stop

    @pytest.mark.parametrize(
        ("told", "usage"),
        [
            ({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, 0)),
            ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}, (3, 2, 6)),
            ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}, (9, 2, 0)),
            ({"prompt_tokens": 2, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}, (0, 2, 6)),
            (None, (0, 0, 0)),
        ],
    )
    def test_usage_counts_cached_tokens_apart(self, told: Any, usage: tuple[int, int, int]) -> None:
        expected = {
            "input_tokens": usage[0],
            "output_tokens": usage[1],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage[2],
        }
        assert read_message(write(ROLE, T("a"), FIN("stop"), data(envelope(usage=told)))).usage == expected
        assert whole({"content": "a"}, usage=told)["usage"] == expected


class TestWholeAnswers:
    def test_all_of_it(self) -> None:
        call = called("c1", "f", '{"a": [1]}')
        reply = whole({"content": "b", "reasoning_content": "a", "tool_calls": [call]}, "tool_calls")
        assert reply.pop("id").startswith("msg_")
        assert reply.pop("usage")
        assert reply == {
            "type": "message",
            "role": "assistant",
            "model": "asked",
            "content": [thinking("a"), text("b"), tool_use("c1", "f", a=[1])],
            "stop_reason": "tool_use",
            "stop_sequence": None,
        }

    @pytest.mark.parametrize(
        ("message", "content"),
        [
            ({"content": None}, []),
            ({"content": ""}, []),
            ({"content": "a", "reasoning": "b"}, [thinking("b"), text("a")]),
            ({"content": [text("a"), text("b")]}, [text("ab")]),
            ({"content": None, "refusal": "No."}, [text("No.")]),
        ],
    )
    def test_content(self, message: dict[str, Any], content: list[dict[str, Any]]) -> None:
        assert whole(message)["content"] == content

    def test_thoughts_that_are_not_to_be_shown(self) -> None:
        assert whole({"content": "a", "reasoning": "b"}, thinking=False)["content"] == [text("a")]

    @pytest.mark.parametrize(
        ("arguments", "read"),
        [
            ('{"a":1}', {"a": 1}),
            ({"a": 1}, {"a": 1}),
            ("", {}),
            (None, {}),
            ('{"a":', {"INVALID_JSON": '{"a":'}),
            ("[1]", {"INVALID_JSON": "[1]"}),
        ],
    )
    def test_arguments(self, arguments: Any, read: dict[str, Any]) -> None:
        call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
        assert whole({"tool_calls": [call]})["content"] == [tool_use("c1", "f", **read)]

    def test_each_call_gets_an_id_of_its_own(self) -> None:
        calls = [{"id": call_id, "function": {"name": "f", "arguments": "{}"}} for call_id in ("0", "0", "", None)]
        ids = [block["id"] for block in whole({"tool_calls": calls})["content"]]
        assert all(ids)
        assert len(set(ids)) == 4

    @pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b"[1]", b"hi", b"[" * 100_000])
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(EngineFailed):
            MessagesWriter("asked").whole(body)


def shape(value: Any) -> Any:
    """The names of all members, one below the other."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def covers(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(key in ours and covers(ours[key], theirs[key]) for key in theirs)
    return not isinstance(theirs, list) or not theirs or covers(ours[0], theirs[0])


CHATS = [one for one in recordings(path="/v1/chat/completions") if one.status == 200]
WHOLE = [one for one in CHATS if str(one.headers.get("content-type")).startswith("application/json")]
STREAMED = [one for one in CHATS if one.body.endswith(DONE) and not failed(one.body)]


class TestRealEngines:
    """llama.cpp and vLLM speak this dialect too: what they were recorded to say has no member that ours lack."""

    ENGINES = pytest.mark.parametrize("engine", ["llamacpp", "vllm"])

    @ENGINES
    def test_whole(self, engine: str) -> None:
        ours = json.loads(MessagesWriter("asked").whole(recording(engine, "chat").body))
        assert covers(shape(ours), shape(json.loads(recording(engine, "messages").body)))

    @ENGINES
    def test_streamed(self, engine: str) -> None:
        ours = {event.name: event.json for event in read_events(write(recording(engine, "chat-stream-usage").body))}
        theirs = {event.name: event.json for event in read_events(recording(engine, "messages-stream").body)}
        assert list(ours) == list(theirs)
        assert covers(shape(ours), shape(theirs))

    @pytest.mark.parametrize("recorded", WHOLE, ids=str)
    def test_every_recorded_chat_is_a_message(self, recorded: Recording) -> None:
        theirs = recorded.reply.json()["choices"][0]["message"]
        ours = json.loads(MessagesWriter("asked").whole(recorded.body))
        assert ours["stop_reason"]
        assert "".join(block["text"] for block in ours["content"] if block["type"] == "text") == (
            theirs.get("content") or ""
        )
        called = [block["name"] for block in ours["content"] if block["type"] == "tool_use"]
        assert called == [call["function"]["name"] for call in theirs.get("tool_calls") or []]

    @pytest.mark.parametrize("recorded", STREAMED, ids=str)
    def test_every_recorded_stream_is_one(self, recorded: Recording) -> None:
        told = read_message(write(recorded.body))
        assert told.stop["stop_reason"]
        assert told.text == joined(recorded.body)
