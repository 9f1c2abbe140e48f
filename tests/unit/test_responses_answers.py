"""Answers to chats as those of OpenAI's Responses dialect."""

import json
from typing import Any

import pytest

from gateway.errors import EngineFailed
from tests.support.responses import (
    TOOL,
    brief,
    called,
    read_response,
    whole,
    write,
    writer,
)
from tests.support.sse import DONE, FIN, ROLE, TC, USE, R, T, data, delta, envelope, failed, joined, read_events
from tests.support.wire import Recording, recording, recordings

Said = list[tuple[str, ...]]
STREAMS: list[tuple[str, list[bytes], Said]] = [
    ("text", [T("Hé"), T(" 漢🦊")], [("message", "Hé 漢🦊")]),
    ("reasoning", [R("reasoning", "th"), R("reasoning", "ink"), T("a")], [("reasoning", "think"), ("message", "a")]),
    ("reasoning_content", [R("reasoning_content", "b"), T("a")], [("reasoning", "b"), ("message", "a")]),
    ("both in one event", [delta({"reasoning": "a", "content": "b"})], [("reasoning", "a"), ("message", "b")]),
    (
        "text, thoughts, text",
        [T("a"), R("reasoning", "b"), T("c")],
        [("message", "a"), ("reasoning", "b"), ("message", "c")],
    ),
    ("a refusal", [delta({"refusal": "No."})], [("message", "No.")]),
    ("empty text", [T(""), R("reasoning", ""), delta({"content": None})], []),
    (
        "a call in parts",
        [TC(0, "c1", "f", ""), TC(0, args='{"a"'), TC(0, args=":1}")],
        [("function_call", "c1", "f", '{"a":1}')],
    ),
    ("a call after text", [T("a"), TC(0, "c1", "f", "{}")], [("message", "a"), ("function_call", "c1", "f", "{}")]),
    ("text after a call", [TC(0, "c1", "f", "{}"), T("a")], [("function_call", "c1", "f", "{}"), ("message", "a")]),
    (
        "text in the middle of a call",
        [TC(0, "c1", "f", '{"a"'), T("a"), TC(0, args=":1}")],
        [("function_call", "c1", "f", '{"a":1}'), ("message", "a")],
    ),
    (
        "two calls with their parts mixed",
        [TC(0, "c1", "f", ""), TC(1, "c2", "g", ""), TC(1, args="{"), TC(0, args="{}"), TC(1, args="}")],
        [("function_call", "c1", "f", "{}"), ("function_call", "c2", "g", "{}")],
    ),
    (
        "one index for all calls",
        [TC(0, "c1", "f", '{"p":1}'), TC(0, "c2", "f", '{"p"'), TC(0, args=":2}")],
        [("function_call", "c1", "f", '{"p":1}'), ("function_call", "c2", "f", '{"p":2}')],
    ),
    (
        "no index",
        [TC(None, "c1", "f", '{"a"'), TC(None, args=":1}"), TC(None, "c2", "g", "{}")],
        [("function_call", "c1", "f", '{"a":1}'), ("function_call", "c2", "g", "{}")],
    ),
    (
        "the id and the name again with each part",
        [TC(0, "c1", "f", "{"), TC(0, "c1", "f", "}")],
        [("function_call", "c1", "f", "{}")],
    ),
    (
        "arguments as an object",
        [delta({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]})],
        [("function_call", "c1", "f", '{"a":1}')],
    ),
    ("no arguments at all", [TC(0, "c1", "f")], [("function_call", "c1", "f", "{}")]),
]
ENDS = pytest.mark.parametrize(
    ("reason", "called_one", "status", "cause", "last"),
    [
        ("stop", False, "completed", None, "completed"),
        ("eos_token", False, "completed", None, "completed"),
        ("tool_calls", True, "completed", None, "completed"),
        ("stop", True, "completed", None, "completed"),
        ("length", False, "incomplete", "max_output_tokens", "incomplete"),
        ("length", True, "incomplete", "max_output_tokens", "completed"),
        ("content_filter", False, "incomplete", "content_filter", "incomplete"),
    ],
)


class TestStreams:
    @pytest.mark.parametrize(("events", "said"), [case[1:] for case in STREAMS], ids=[case[0] for case in STREAMS])
    def test_items(self, events: list[bytes], said: Said) -> None:
        told = read_response(write(ROLE, *events, FIN("stop"), DONE))
        assert told.said == said
        assert {item["status"] for item in told.items} <= {"completed"}

    def test_event_by_event(self) -> None:
        events = [ROLE, R("reasoning", "hm"), T("a"), TC(0, "c1", "f", "{}"), FIN("tool_calls"), USE(7, 2)]
        assert read_response(write(*events)).kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]

    def test_text_leaves_with_its_event(self) -> None:
        made = writer()
        assert [len(read_events(made.feed(event))) for event in (ROLE, T("a"), T("b"))] == [2, 3, 1]

    def test_a_whole_call_is_done_when_the_next_one_begins(self) -> None:
        made = writer()
        made.feed(ROLE + TC(0, "c1", "f", "{}"))
        names = [event.name.rpartition("response.")[2] for event in read_events(made.feed(TC(1, "c2", "g", "{")))]
        assert names == [
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
        ]

    def test_calls_without_ids_or_with_the_same_get_their_own(self) -> None:
        events = [TC(0, "", "f", "{}"), TC(1, None, "f", "{}"), TC(2, "0", "f", "{}"), TC(3, "0", "f", "{}")]
        ids = [item["call_id"] for item in read_response(write(ROLE, *events, FIN("tool_calls"))).items]
        assert all(ids)
        assert len(set(ids)) == 4

    def test_a_call_that_is_cut_is_incomplete(self) -> None:
        told = read_response(write(ROLE, TC(0, "c1", "f", '{"a'), FIN("length")))
        assert (told.said, told.items[0]["status"]) == ([("function_call", "c1", "f", '{"a')], "incomplete")

    def test_blanks_after_a_call_that_is_done_are_nothing(self) -> None:
        events = [TC(0, "c1", "f", "{}"), T("a"), TC(0, args="\n")]
        said = read_response(write(ROLE, *events, FIN("stop"))).said
        assert said == [("function_call", "c1", "f", "{}"), ("message", "a")]

    def test_comments_and_odd_events_are_nothing(self) -> None:
        events = [b": ping\n\n", ROLE, data({"prompt_progress": 1}), T("a"), FIN("stop")]
        assert read_response(write(*events)).said == [("message", "a")]

    def test_an_answer_of_nothing(self) -> None:
        assert read_response(write(FIN("stop"), DONE)).items == []


class TestEnds:
    """The same for streams and for whole answers."""

    @ENDS
    def test_streamed(self, reason: str, called_one: bool, status: str, cause: str | None, last: str) -> None:
        body = TC(0, "c1", "f", "{}") if called_one else T("a")
        told = read_response(write(ROLE, body, FIN(reason)))
        assert told.response is not None
        self.check(told.response, status, cause, last)

    @ENDS
    def test_whole(self, reason: str, called_one: bool, status: str, cause: str | None, last: str) -> None:
        message = {"tool_calls": [called("c1", "f", "{}")]} if called_one else {"content": "a"}
        self.check(whole(message, reason), status, cause, last)

    @staticmethod
    def check(response: dict[str, Any], status: str, cause: str | None, last: str) -> None:
        assert response["status"] == status
        assert response["incomplete_details"] == (None if cause is None else {"reason": cause})
        assert (response["completed_at"] is None) == (status != "completed")
        assert response["output"][-1]["status"] == last

    @pytest.mark.parametrize(
        ("told", "counts"),
        [
            ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}, (9, 2, 0, 0)),
            ({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, 0, 0)),
            (
                {"prompt_tokens": 9, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}},
                (9, 2, 0, 1),
            ),
            ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}, (9, 2, 6, 0)),
            (None, None),
        ],
    )
    def test_usage(self, told: Any, counts: tuple[int, int, int, int] | None) -> None:
        expected = counts and {
            "input_tokens": counts[0],
            "input_tokens_details": {"cached_tokens": counts[2], "cache_write_tokens": 0},
            "output_tokens": counts[1],
            "output_tokens_details": {"reasoning_tokens": counts[3]},
            "total_tokens": counts[0] + counts[1],
        }
        streamed = read_response(write(ROLE, T("a"), FIN("stop"), data(envelope(usage=told)))).response
        assert streamed is not None
        assert streamed["usage"] == expected
        assert whole({"content": "a"}, usage=told)["usage"] == expected


class TestWholeAnswers:
    def test_all_of_it(self) -> None:
        message = {"content": "b", "reasoning_content": "a", "tool_calls": [called("c1", "f", '{"a": [1]}')]}
        reply = whole(message, "tool_calls")
        assert [brief(item) for item in reply["output"]] == [
            ("reasoning", "a"),
            ("message", "b"),
            ("function_call", "c1", "f", '{"a": [1]}'),
        ]
        assert (reply["object"], reply["status"], reply["model"]) == ("response", "completed", "m")
        assert [item["id"].partition("_")[0] for item in reply["output"]] == ["rs", "msg", "fc"]

    @pytest.mark.parametrize(
        ("message", "said"),
        [
            ({"content": None}, []),
            ({"content": ""}, []),
            ({"content": "a", "reasoning": "b"}, [("reasoning", "b"), ("message", "a")]),
            ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, [("message", "ab")]),
            ({"content": None, "refusal": "No."}, [("message", "No.")]),
            ({"tool_calls": [{"id": "c1", "function": {"name": "f"}}]}, [("function_call", "c1", "f", "{}")]),
        ],
    )
    def test_items(self, message: dict[str, Any], said: Said) -> None:
        assert [brief(item) for item in whole(message)["output"]] == said

    def test_what_was_asked_for_is_told(self) -> None:
        text = {"format": {"type": "json_object"}}
        asked = {
            "instructions": "i",
            "max_output_tokens": 9,
            "metadata": {"a": "b"},
            "temperature": 0.5,
            "top_p": 0.9,
            "parallel_tool_calls": False,
            "tool_choice": {"type": "function", "name": "weather"},
            "reasoning": {"effort": "low", "summary": None},
        }
        reply = whole({"content": "a"}, **asked, text=text, tools=[TOOL], store=True)
        assert {name: reply[name] for name in asked} == asked
        assert reply["text"] == text
        assert reply["tools"] == [TOOL | {"description": None, "strict": None}]
        assert (reply["store"], reply["previous_response_id"]) == (False, None)

    @pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b"[1]", b"hi", b"[" * 100_000])
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(EngineFailed):
            writer().whole(body)


CHATS = [one for one in recordings(path="/v1/chat/completions") if one.status == 200]
STREAMED = [one for one in CHATS if one.body.endswith(DONE) and not failed(one.body) and "n2" not in one.name]
NOT_OURS = {
    "ec_transfer_params",
    "frequency_penalty",
    "input_messages",
    "kv_transfer_params",
    "max_tool_calls",
    "output_messages",
    "presence_penalty",
    "prompt",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "top_logprobs",
}
"""Members of the engines' own responses that say nothing of an answer here."""


class TestRealEngines:
    """llama.cpp, vLLM and Ollama speak this dialect too: ours has every member that theirs were recorded with."""

    @pytest.mark.parametrize("engine", ["llamacpp", "vllm", "ollama"])
    def test_whole(self, engine: str) -> None:
        ours = whole({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 1})
        theirs = json.loads(recording(engine, "responses").body)
        assert set(theirs) - NOT_OURS <= set(ours)
        assert set(theirs["output"][0]) - {"phase"} <= set(ours["output"][0])
        assert set(theirs["output"][0]["content"][0]) <= set(ours["output"][0]["content"][0])

    @pytest.mark.parametrize("engine", ["llamacpp", "vllm", "ollama"])
    def test_streamed(self, engine: str) -> None:
        ours = {event.name: event.json for event in read_events(write(ROLE, T("a"), FIN("stop"), USE(1, 1)))}
        theirs = {event.name: event.json for event in read_events(recording(engine, "responses-stream").body)}
        assert list(ours) == list(theirs)
        assert all(set(theirs[name]) - {"timings"} <= set(ours[name]) for name in theirs)

    @pytest.mark.parametrize("recorded", STREAMED, ids=str)
    def test_every_recorded_stream_is_a_response(self, recorded: Recording) -> None:
        told = read_response(write(recorded.body))
        assert "".join(said[1] for said in told.said if said[0] == "message") == joined(recorded.body)
