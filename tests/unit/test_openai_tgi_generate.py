"""A text completion of one prompt goes to TGI's own endpoints, and what comes back becomes OpenAI's."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineRefused, EngineReported
from gateway.request import Endpoint, parse_request
from gateway.translate.openai_tgi import Asked, Sent, to_tgi
from gateway.translate.openai_tgi_generate_answer import GenerateReader
from gateway.upstream.facts import EngineReport
from tests.support.sse import data, finish_reasons, is_clean, read_events
from tests.support.tgi_wire import usage_of
from tests.support.wire import Recording, recording, recordings

SAMPLED = {"do_sample": True, "details": True}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def translate(**fields: Any) -> Sent:
    body = json.dumps({"model": "alias", "prompt": "Once", **fields}).encode()
    return to_tgi(parse_request(Endpoint.COMPLETIONS, body), "org/model")


class TestRequests:
    @pytest.mark.parametrize(
        ("fields", "parameters"),
        [
            ({}, SAMPLED),
            ({"temperature": 0}, {"do_sample": False, "details": True}),
            ({"temperature": 0.5}, {**SAMPLED, "temperature": 0.5}),
            ({"max_tokens": 8}, {**SAMPLED, "max_new_tokens": 8}),
            ({"max_completion_tokens": 8, "max_tokens": 9}, {**SAMPLED, "max_new_tokens": 8}),
            ({"stop": "END"}, {**SAMPLED, "stop": ["END"]}),
            ({"stop": ["a", ""]}, {**SAMPLED, "stop": ["a"]}),
            ({"seed": -1}, {**SAMPLED, "seed": 2**64 - 1}),
            ({"top_p": 0.9, "top_k": 40, "typical_p": 0.5}, {**SAMPLED, "top_p": 0.9, "top_k": 40, "typical_p": 0.5}),
            ({"top_p": 1, "top_k": -1, "typical_p": 1.0}, SAMPLED),
            (
                {"frequency_penalty": 0.5, "repetition_penalty": 1.1},
                {**SAMPLED, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
            ),
            ({"logprobs": 0}, {**SAMPLED, "top_n_tokens": 0}),
            ({"logprobs": 5}, {**SAMPLED, "top_n_tokens": 5}),
            ({"truncate": 100}, {**SAMPLED, "truncate": 100}),
            ({"response_format": {"type": "text"}}, SAMPLED),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
                {**SAMPLED, "grammar": {"type": "json", "value": SCHEMA}},
            ),
            ({"echo": True, "user": "u", "min_p": 0.1, "stream_options": {"include_usage": True}}, SAMPLED),
        ],
        ids=str,
    )
    def test_fields(self, fields: dict[str, Any], parameters: dict[str, Any]) -> None:
        sent = translate(**fields)
        assert json.loads(sent.body) == {"inputs": "Once", "parameters": parameters}

    @pytest.mark.parametrize(
        ("fields", "path"),
        [
            ({}, "/generate"),
            ({"prompt": ["Once"]}, "/generate"),
            ({"stream": True}, "/generate_stream"),
            ({"max_tokens": 1024}, "/generate"),
            ({"max_tokens": 1025}, "/generate_stream"),
        ],
        ids=str,
    )
    def test_the_endpoint_is_that_of_the_form_in_which_the_answer_is_true(
        self, fields: dict[str, Any], path: str
    ) -> None:
        sent = translate(**fields)
        assert (sent.path, json.loads(sent.body)["inputs"]) == (path, "Once")

    def test_no_address_to_fetch(self) -> None:
        assert json.loads(translate(prompt="![](http://10.0.0.1)").body)["inputs"] == "![ ](http://10.0.0.1)"


def ask_of(recorded: Recording, **fields: Any) -> Asked:
    """What the recorded request asked for, by OpenAI's names."""
    parameters = json.loads(recorded.request_body).get("parameters") or {}
    fields = {"usage": True, "logprobs": "top_n_tokens" in parameters, **fields}
    stops, limit = tuple(parameters.get("stop", ())), parameters.get("max_new_tokens")
    return Asked(Endpoint.COMPLETIONS, "alias", stops=stops, limit=limit, **fields)


def read(asked: Asked, *reads: bytes) -> bytes:
    reader = GenerateReader(asked)
    return b"".join(map(reader.feed, reads)) + reader.flush()


def whole(recorded: Recording, **fields: Any) -> Any:
    """The answer; the headers were read before."""
    reader = GenerateReader(ask_of(recorded, **fields))
    reader.head(headers_of(recorded))
    return json.loads(reader.whole(recorded.body))


def headers_of(recorded: Recording) -> dict[bytes, bytes]:
    return {name.lower().encode(): value.encode() for name, value in recorded.headers}


def same_ids(stream: bytes) -> bytes:
    return re.sub(rb'"cmpl-[0-9a-f]+","object":"text_completion","created":\d+', b"", stream)


def text_of(stream: bytes) -> str:
    return "".join(event.choice.get("text", "") for event in read_events(stream))


STREAMS = [one for one in recordings("tgi", "/generate_stream") if one.status == 200]
FAILED = re.compile("error|dead|died|overload|overflow|best-of")
GOOD = [one for one in STREAMS if not FAILED.search(one.name)]
BAD = [one for one in STREAMS if FAILED.search(one.name)]
DETAILED = [one for one in GOOD if "details" in json.loads(one.request_body)["parameters"]]


class TestStreams:
    @pytest.mark.parametrize("recorded", DETAILED, ids=str)
    def test_every_recorded_answer_is_a_clean_stream_of_one_reply(self, recorded: Recording) -> None:
        stream = read(ask_of(recorded), recorded.body)
        assert is_clean(stream)
        *chunks, counts, _done = read_events(stream)
        (identity,) = {(event.json["id"], event.json["model"], event.json["object"]) for event in chunks}
        assert identity[0].startswith("cmpl-")
        assert identity[1:] == ("alias", "text_completion")
        (reason,) = finish_reasons(stream)
        assert reason in ("stop", "length")
        last = json.loads(recorded.body.rsplit(b"data:", 1)[1])
        told = last["details"]
        assert counts.json["usage"] == usage_of(told["input_length"], told["generated_tokens"])

    @pytest.mark.parametrize("recorded", [one for one in GOOD if "stop" not in one.name], ids=str)
    def test_the_text_is_the_engines_own_without_its_special_tokens(self, recorded: Recording) -> None:
        last = json.loads(recorded.body.rsplit(b"data:", 1)[1])
        prompt = json.loads(recorded.request_body)["inputs"] if "full-text" in recorded.name else ""
        assert prompt + text_of(read(ask_of(recorded), recorded.body)) == last["generated_text"]

    def test_the_text_ends_before_the_stop_string(self) -> None:
        recorded = recording("tgi", "generate-stream-stop")
        stream = read(ask_of(recorded), recorded.body)
        assert (text_of(stream), finish_reasons(stream)) == ("1. apples\n2. pears\n3. plums\n", ["stop"])

    def test_counts_are_in_the_last_chunk_if_nobody_asks_for_one_of_their_own(self) -> None:
        recorded = recording("tgi", "generate-stream-no-max")
        *_, last, _done = read_events(read(ask_of(recorded, usage=False), recorded.body))
        assert (last.choice["finish_reason"], last.json["usage"]["total_tokens"]) == ("stop", 15)

    @pytest.mark.parametrize("recorded", BAD, ids=str)
    def test_every_recorded_failure_ends_with_an_error_and_nothing_after_it(self, recorded: Recording) -> None:
        *before, last = read_events(read(ask_of(recorded), recorded.body))
        assert last.error
        assert set(last.error) == {"message", "type", "param", "code"}
        assert not any(event.done or event.error for event in before)

    @pytest.mark.parametrize(
        ("name", "kind", "code"),
        [
            ("overload-generate-stream", "rate_limit_error", "engine_overloaded"),
            ("generate-stream-context-overflow", "invalid_request_error", "context_length_exceeded"),
            ("generate-stream-best-of", "invalid_request_error", "engine_error"),
            ("dead-generate-stream", "engine_error", "engine_error"),
            ("died-mid-generate-stream", "engine_error", "engine_error"),
            ("generate-stream-error-prefill", "engine_error", "engine_error"),
        ],
    )
    def test_whose_fault_an_error_is(self, name: str, kind: str, code: str) -> None:
        recorded = recording("tgi", name)
        error = read_events(read(ask_of(recorded), recorded.body))[-1].error
        assert error is not None
        assert (error["type"], error["code"]) == (kind, code)

    @pytest.mark.parametrize(
        ("kind", "openai"),
        [
            ("overloaded", "rate_limit_error"),
            ("tool_error", "invalid_request_error"),
            ("incomplete_generation", "engine_error"),
        ],
    )
    def test_the_engines_own_type_goes_before_its_words(self, kind: str, openai: str) -> None:
        event = data({"error": "Input validation error: so it says", "error_type": kind})
        error = read_events(read(Asked(Endpoint.COMPLETIONS, "m"), event))[-1].error
        assert error is not None
        assert error["type"] == openai

    @given(at=st.integers(0, len(STREAMS) - 1), cuts=st.lists(st.floats(0, 1), max_size=8))
    def test_where_the_reads_are_cut_makes_no_difference(self, at: int, cuts: list[float]) -> None:
        recorded = STREAMS[at]
        body, asked = recorded.body, ask_of(recorded)
        ends = [0, *sorted(int(cut * len(body)) for cut in cuts), len(body)]
        reads = [body[start:end] for start, end in pairwise(ends)]
        assert same_ids(read(asked, *reads)) == same_ids(read(asked, body))

    @pytest.mark.parametrize("name", ["generate-stream-emoji", "generate-stream-stop", "generate-stream-top-n"])
    def test_byte_by_byte(self, name: str) -> None:
        recorded = recording("tgi", name)
        reads = [recorded.body[at : at + 1] for at in range(len(recorded.body))]
        assert same_ids(read(ask_of(recorded), *reads)) == same_ids(read(ask_of(recorded), recorded.body))

    def test_one_that_breaks_off_anywhere_never_looks_whole(self) -> None:
        body = recording("tgi", "generate-stream-details").body
        last = body.rindex(b"data:")
        for end in range(last + 1):
            stream = read(Asked(Endpoint.COMPLETIONS, "m", usage=True), body[:end])
            assert b"[DONE]" not in stream
            assert b'"finish_reason":"' not in stream

    def test_comments_go_on(self) -> None:
        recorded = recording("tgi", "generate-stream-stall")
        assert b"\n\n:\n\ndata: " in read(ask_of(recorded), recorded.body)

    @pytest.mark.parametrize("event", [b"data: 7\n\n", b'data: {"token"\n\n', b'data: {"token":7}\n\n'])
    def test_what_is_no_event_goes_on_for_the_relay_to_judge(self, event: bytes) -> None:
        assert GenerateReader(Asked(Endpoint.COMPLETIONS, "m")).feed(event) == event

    def test_an_event_of_another_kind_is_no_token(self) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m", limit=1))
        assert reader.feed(data({"prefill": []})) == b""
        assert finish_reasons(reader.feed(token("a"))) == ["length"]


def token(text: str, **members: Any) -> bytes:
    said = {"id": 1, "text": text, "logprob": -0.5, "special": False}
    return data({"index": 1, "token": said, "generated_text": None, "details": None, **members})


class TestLimits:
    def test_a_stream_that_goes_on_is_cut_off(self) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m", limit=1030, usage=True))
        stream = b"".join(reader.feed(token("x")) for _ in range(1030))
        assert (text_of(stream), finish_reasons(stream), is_clean(stream)) == ("x" * 1030, ["length"], True)
        assert reader.feed(token("x")) + reader.flush() == b""

    def test_a_whole_reply_is_cut_off_and_counted(self) -> None:
        details = {"finish_reason": "length", "generated_tokens": 2048, "seed": None, "input_length": 3}
        body = token("x") * 2047 + token("x", generated_text="x" * 2048, details=details)
        reply = json.loads(GenerateReader(Asked(Endpoint.COMPLETIONS, "m", limit=1030)).whole(body))
        (choice,) = reply["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("x" * 1030, "length")
        assert reply["usage"] == usage_of(3, 1030)


class TestEcho:
    @pytest.mark.parametrize("stops", [(), ("Once",), (" time",)], ids=str)
    def test_the_prompt_comes_first_and_ends_nothing(self, stops: tuple[str, ...]) -> None:
        asked = Asked(Endpoint.COMPLETIONS, "m", stops=stops, echo=("Once upon a time",))
        text = "Once upon a time there was a little robot who wanted to"
        assert text_of(read(asked, recording("tgi", "generate-stream-details").body)).startswith("Once upon a time a ")
        reader = GenerateReader(asked)
        assert json.loads(reader.whole(recording("tgi", "generate-details").body))["choices"][0]["text"] == text

    def test_it_comes_with_the_first_text_and_no_more(self) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m", stops=("ab",), echo=("P",)))
        assert reader.feed(token("a")) == b""
        assert text_of(reader.feed(token("c")) + reader.feed(token("d"))) == "Pacd"


class TestLogprobs:
    def test_of_a_whole_reply(self) -> None:
        (choice,) = whole(recording("tgi", "generate-details-top-n"))["choices"]
        assert choice["text"] == " there was a"
        told = choice["logprobs"]
        assert (told["tokens"], told["text_offset"]) == ([" there", " was", " a"], [0, 6, 10])
        assert told["token_logprobs"] == [-0.009534699, -0.7229588, -1.7306153]
        assert told["top_logprobs"][0] == {" there": -0.009534699, " use": -0.59998876, " instead": -2.7914674}

    def test_of_a_stream_are_the_same_in_pieces(self) -> None:
        recorded = recording("tgi", "generate-stream-top-n")
        told = [event.choice["logprobs"] for event in read_events(read(ask_of(recorded), recorded.body))[:-2]]
        assert [at for one in told for at in one["text_offset"]] == [0, 6, 10]
        assert [text for one in told for text in one["tokens"]] == [" there", " was", " a"]
        assert [set(top) for one in told for top in one["top_logprobs"]] == [
            {" there", " use"},
            {" was", " balance"},
            {" a", " wond"},
        ]

    def test_the_token_taken_is_always_among_them(self) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m", logprobs=True))
        (event,) = read_events(reader.feed(token("a", top_tokens=[{"text": "b", "logprob": -0.1}])))
        assert event.choice["logprobs"]["top_logprobs"] == [{"b": -0.1, "a": -0.5}]

    def test_they_go_with_their_text(self) -> None:
        """What may be the beginning of a stop string is held back, and what belongs to one is left out."""
        recorded = recording("tgi", "generate-stop")
        (choice,) = whole(recorded, logprobs=True)["choices"]
        told = choice["logprobs"]
        assert "".join(told["tokens"]) == choice["text"] == "1. apples\n2. pears\n3. plums\n"
        assert [choice["text"][at] for at in told["text_offset"]] == [text[0] for text in told["tokens"]]

    def test_a_token_that_is_held_back_in_part_keeps_its_place_and_those_after_it(self) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m", stops=("ENDS",), logprobs=True))
        body = b"".join(map(reader.feed, map(token, ("abEN", "x", "y"))))
        assert [at for event in read_events(body) for at in event.choice["logprobs"]["text_offset"]] == [0, 4, 5]

    def test_there_are_none_unless_they_are_asked_for(self) -> None:
        assert whole(recording("tgi", "generate-details-top-n"), logprobs=False)["choices"][0]["logprobs"] is None

    def test_the_end_token_has_none(self) -> None:
        told = whole(recording("tgi", "generate-eos"), logprobs=True)["choices"][0]["logprobs"]
        assert "".join(told["tokens"]) == "The capital of France is Paris."


class TestWholeReplies:
    @pytest.mark.parametrize(
        ("name", "text", "reason", "prompt", "output"),
        [
            ("generate-details", " there was a little robot who wanted to", "length", 4, 8),
            ("generate-eos", "The capital of France is Paris.", "stop", 7, 8),
            ("generate-stop", "1. apples\n2. pears\n3. plums\n", "stop", 6, 14),
            ("generate-stop-in-first-token", "", "stop", 4, 1),
            ("generate-grammar-json", '{"n": 2}', "stop", 4, 7),
        ],
    )
    def test_text_end_and_counts(self, name: str, text: str, reason: str, prompt: int, output: int) -> None:
        reply = whole(recording("tgi", name))
        (choice,) = reply["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, reason)
        assert reply["usage"] == usage_of(prompt, output)
        assert (reply["object"], reply["model"]) == ("text_completion", "alias")

    def test_without_the_header_nothing_is_counted(self) -> None:
        body = recording("tgi", "generate-details").body
        assert "usage" not in json.loads(GenerateReader(Asked(Endpoint.COMPLETIONS, "m")).whole(body))

    @pytest.mark.parametrize("recorded", DETAILED, ids=str)
    def test_gathered_is_what_was_streamed(self, recorded: Recording) -> None:
        asked = ask_of(recorded)
        (choice,) = json.loads(GenerateReader(asked).whole(recorded.body))["choices"]
        stream = read(asked, recorded.body)
        assert (choice["text"], [choice["finish_reason"]]) == (text_of(stream), finish_reasons(stream))

    @pytest.mark.parametrize(
        ("name", "error", "status"),
        [
            ("overload-generate-stream", EngineRefused, 429),
            ("generate-stream-context-overflow", EngineRefused, 422),
            ("died-mid-generate-stream", EngineReported, 502),
        ],
    )
    def test_an_error_in_what_is_gathered_keeps_its_sense(self, name: str, error: type[Exception], status: int) -> None:
        recorded = recording("tgi", name)
        with pytest.raises(error) as caught:
            GenerateReader(ask_of(recorded)).whole(recorded.body)
        assert getattr(caught.value, "status", None) == status

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"<html>", b"{", b"{}", b"[]"),
            b'{"generated_text":"a"}',
            b'{"generated_text":null,"details":null}',
            recording("tgi", "generate-stream-details").body[:500],
        ],
    )
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(ValueError):
            GenerateReader(Asked(Endpoint.COMPLETIONS, "m")).whole(body)


class TestReports:
    @pytest.mark.parametrize(
        ("name", "report"),
        [
            ("queue-waited-generate", EngineReport(prompt_tokens=1, completion_tokens=490, queue=5.65)),
            ("generate-details", EngineReport(prompt_tokens=4, completion_tokens=8, queue=0.0)),
            ("chat", EngineReport(prompt_tokens=33, completion_tokens=8, queue=0.0)),
            ("generate-stream", EngineReport()),
            ("chat-stream", EngineReport()),
        ],
    )
    def test_headers_tell_counts_and_the_wait(self, name: str, report: EngineReport) -> None:
        """Prefill and decode are told together only."""
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m"))
        reader.head(headers_of(recording("tgi", name)))
        assert reader.report == report

    def test_the_last_event_alone_has_the_counts_of_a_stream(self) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m", usage=True))
        reader.head({b"x-prompt-tokens": b"4"})
        *_, counts, _done = read_events(reader.feed(recording("tgi", "generate-stream-details").body))
        assert counts.json["usage"]["total_tokens"] == 12

    def test_sums_of_several_prompts_are_no_wait(self) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m", choices=2))
        reader.head(headers_of(recording("tgi", "completion-batch")))
        assert reader.report == EngineReport(prompt_tokens=14, completion_tokens=16)

    @pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"soon", "²".encode()])
    def test_what_is_no_number_tells_nothing(self, value: bytes) -> None:
        reader = GenerateReader(Asked(Endpoint.COMPLETIONS, "m"))
        reader.head({b"x-queue-time": value, b"x-prompt-tokens": value})
        assert reader.report == EngineReport()
