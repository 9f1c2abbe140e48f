"""OpenAI's requests become TGI's, or are refused by the name of the field at fault."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.request import Endpoint, InferenceRequest, parse_request
from gateway.translate.openai_tgi import Asked, to_tgi

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
PNG = "data:image/png;base64,iVBORw0KGgo="
USAGE = {"include_usage": True}


def translate(endpoint: Endpoint = Endpoint.CHAT, /, **fields: Any) -> tuple[dict[str, Any], Asked]:
    given = {"messages": HI} if endpoint is Endpoint.CHAT else {"prompt": ["Once", "Upon"]}
    request = parse_request(endpoint, json.dumps({"model": "alias", **given, **fields}).encode())
    path, body, asked = to_tgi(request, "org/model")
    assert path == endpoint.value
    return json.loads(body), asked


def sent(endpoint: Endpoint = Endpoint.CHAT, /, **fields: Any) -> dict[str, Any]:
    """What TGI gets, without the members that each request has."""
    body, _ = translate(endpoint, **fields)
    assert body.pop("model") == "tgi"
    return {name: value for name, value in body.items() if (name, value) != ("messages", HI)}


def messages(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return list(sent(messages=list(given))["messages"])


def parts(*given: str | dict[str, Any]) -> dict[str, Any]:
    """A user's message in pieces: texts, and images by their URL."""
    as_parts = [
        {"type": "text", "text": one} if isinstance(one, str) else {"type": "image_url", "image_url": one}
        for one in given
    ]
    return {"role": "user", "content": as_parts}


class TestRequests:
    @pytest.mark.parametrize(
        ("asked", "becomes"),
        [
            ({}, {}),
            ({"temperature": 0, "top_p": 0.9}, {"temperature": 0, "top_p": 0.9}),
            ({"top_p": 1}, {}),
            ({"top_p": 1.0, "temperature": 0.7}, {"temperature": 0.7}),
            ({"stop": "END"}, {"stop": ["END"]}),
            ({"stop": ["\n\n", "é"]}, {"stop": ["\n\n", "é"]}),
            ({"stop": []}, {}),
            ({"stop": [""]}, {}),
            ({"max_tokens": 5}, {"max_tokens": 5}),
            ({"max_completion_tokens": 5}, {"max_tokens": 5}),
            ({"max_tokens": 9, "max_completion_tokens": 5}, {"max_tokens": 5}),
            ({"seed": 7}, {"seed": 7}),
            ({"seed": -1}, {"seed": 2**64 - 1}),
            ({"n": 1, "presence_penalty": 0.0, "logit_bias": {}, "frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
            ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
            ({"tools": []}, {}),
            ({"tools": [], "tool_choice": "auto"}, {}),
            ({"tools": [TOOL], "tool_choice": "none"}, {}),
            ({"response_format": {"type": "text"}}, {}),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
                {"response_format": {"type": "json", "value": SCHEMA}},
            ),
            (
                {"response_format": {"type": "regex", "value": "[0-9]"}},
                {"response_format": {"type": "regex", "value": "[0-9]"}},
            ),
            ({"modalities": ["text"]}, {}),
            (
                {"user": "u", "top_k": 3, "x_new": {"a": [1, None]}},
                {"user": "u", "top_k": 3, "x_new": {"a": [1, None]}},
            ),
            ({"stream": True}, {"stream": True}),
            ({"stream": True, "stream_options": USAGE}, {"stream": True, "stream_options": USAGE}),
            ({"stream": True, "stream_options": {"include_usage": False}}, {"stream": True}),
            ({"stream_options": USAGE}, {}),
        ],
        ids=str,
    )
    def test_fields(self, asked: dict[str, Any], becomes: dict[str, Any]) -> None:
        assert sent(**asked) == becomes

    def test_nulls_are_absence_at_the_top_and_stay_below(self) -> None:
        fields = ("temperature", "stop", "tools", "tool_choice", "response_format", "stream", "stream_options", "n")
        assert sent(**dict.fromkeys(fields), x={"y": None}) == {"x": {"y": None}}

    def test_the_order_of_a_schemas_properties_stays(self) -> None:
        body = sent(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
        assert list(body["response_format"]["value"]["properties"]) == ["b", "a"]

    def test_a_tool_without_parameters_gets_none_to_fill_in(self) -> None:
        body = sent(tools=[TOOL, {"type": "function", "function": {"name": "f", "strict": True}}], stream=True)
        assert body["tools"][0] == TOOL
        nothing = {"type": "object", "properties": {}}
        assert body["tools"][1] == {
            "type": "function",
            "function": {"name": "f", "strict": True, "parameters": nothing},
        }

    @pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
    def test_tool_choice(self, choice: object) -> None:
        assert sent(tools=[TOOL], tool_choice=choice, stream=True)["tool_choice"] == choice

    @pytest.mark.parametrize("fields", [{"tools": [TOOL]}, {"max_tokens": 1025}], ids=str)
    def test_what_only_streams_tell_truly_is_asked_for_as_a_stream(self, fields: dict[str, Any]) -> None:
        body = sent(**fields)
        assert (body["stream"], body["stream_options"]) == (True, USAGE)

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"n": 2}, "n"),
            ({"best_of": 2}, "best_of"),
            ({"logit_bias": {"50": -100}}, "logit_bias"),
            ({"suffix": "the end"}, "suffix"),
            ({"presence_penalty": 0.5}, "presence_penalty"),
            ({"functions": [{"name": "f"}]}, "functions"),
            ({"modalities": ["text", "audio"]}, "modalities"),
            ({"stop": list("abcde")}, "stop"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_completion_tokens": -1}, "max_completion_tokens"),
            ({"max_tokens": 8.5}, "max_tokens"),
            ({"temperature": 1, "stop": 5}, "stop"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"response_format": {"type": "xml"}}, "response_format"),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}},
                "response_format",
            ),
            (
                {"tools": [TOOL], "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
                "response_format",
            ),
        ],
        ids=str,
    )
    def test_what_is_refused(self, fields: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            translate(**fields)
        assert (caught.value.status, caught.value.param) == (400, param)
        assert f"`{param}`" in caught.value.message

    def test_too_many_stop_strings_name_the_limit(self) -> None:
        with pytest.raises(InvalidRequest, match="at most 4"):
            translate(stop=list("abcde"))

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"prompt": [1, 2, 3]}, "prompt"),
            ({"prompt": [[1, 2], [3]]}, "prompt"),
            ({"prompt": ["a", 1]}, "prompt"),
            ({"echo": "yes"}, "echo"),
            ({"logprobs": 0}, "logprobs"),
            ({"prompt": "a", "logprobs": 6}, "logprobs"),
            ({"prompt": "a", "logprobs": -1}, "logprobs"),
            ({"prompt": "a", "logprobs": True}, "logprobs"),
            ({"prompt": "a", "logprobs": 1, "echo": True}, "logprobs"),
            ({"response_format": {"type": "regex", "value": "[0-9]"}}, "response_format"),
            ({"prompt": "a", "response_format": {"type": "json_object"}}, "response_format"),
            ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ],
        ids=str,
    )
    def test_what_is_refused_in_text_completions(self, fields: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            translate(Endpoint.COMPLETIONS, **fields)
        assert caught.value.param == param

    def test_text_completions_of_several_prompts_are_asked_for_as_a_stream(self) -> None:
        body = sent(Endpoint.COMPLETIONS, prompt=["a", "b"], stop="x", top_p=1, response_format={"type": "text"})
        assert body == {"prompt": ["a", "b"], "stop": ["x"], "stream": True, "stream_options": USAGE}

    @pytest.mark.parametrize("fields", [{"prompt": None}, {"prompt": []}], ids=str)
    def test_a_missing_prompt_is_for_the_engine_to_judge(self, fields: dict[str, Any]) -> None:
        assert "stream" not in sent(Endpoint.COMPLETIONS, **fields)

    def test_an_echo_is_no_matter_of_the_engines(self) -> None:
        body, asked = translate(Endpoint.COMPLETIONS, prompt=["a", "b"], echo=True)
        assert "echo" not in body
        assert asked.echo == ("a", "b")

    @pytest.mark.parametrize("value", [b"[" * 5000 + b"]" * 5000, b"1e999", rb'"\ud800"'], ids=["deep", "huge", "half"])
    def test_what_cannot_be_written_again_is_refused(self, value: bytes) -> None:
        request = InferenceRequest(Endpoint.CHAT, b'{"messages":[],"x":%b}' % value, "m", stream=False, choices=1)
        with pytest.raises(InvalidRequest, match="cannot be read"):
            to_tgi(request, "m")


class TestMessages:
    @pytest.mark.parametrize(
        ("given", "becomes"),
        [
            ({"role": "developer", "content": "Be terse."}, {"role": "system", "content": "Be terse."}),
            ({"role": "user", "content": None}, {"role": "user", "content": ""}),
            ({"role": "assistant"}, {"role": "assistant", "content": ""}),
            ({"role": "user", "content": "x", "name": "David"}, {"role": "user", "content": "x", "name": "David"}),
            (parts("Say ", "hello."), {"role": "user", "content": "Say hello."}),
            ({"role": "user", "content": []}, {"role": "user", "content": ""}),
            (
                parts("What?", {"url": PNG, "detail": "low"}, " ", "And?"),
                parts("What?", {"url": PNG}, " And?"),
            ),
            (
                {"role": "tool", "tool_call_id": "c", "content": "2"},
                {"role": "tool", "tool_call_id": "c", "content": "2"},
            ),
        ],
        ids=str,
    )
    def test_one_message(self, given: dict[str, Any], becomes: dict[str, Any]) -> None:
        assert messages(given) == [becomes]

    def test_an_image_may_be_a_bare_url(self) -> None:
        part = {"type": "image_url", "image_url": PNG}
        assert messages({"role": "user", "content": [part]}) == [parts({"url": PNG})]

    @pytest.mark.parametrize(
        ("arguments", "text"), [('{"a":1}', '{"a":1}'), ({"a": 1}, '{"a":1}'), ("", "{}"), (None, "{}")]
    )
    def test_a_call_in_the_history(self, arguments: object, text: str) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        (message,) = messages({"role": "assistant", "content": None, "tool_calls": [call]})
        assert message["tool_calls"] == [{**call, "function": {"name": "f", "arguments": text}}]
        assert "content" not in message

    def test_text_beside_calls_becomes_a_message_of_its_own(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        assert messages({"role": "assistant", "content": "Let me see.", "tool_calls": [call]}) == [
            {"role": "assistant", "content": "Let me see."},
            {"role": "assistant", "tool_calls": [call]},
        ]

    @pytest.mark.parametrize("kind", ["input_audio", "file"])
    def test_other_parts_are_refused_by_name(self, kind: str) -> None:
        with pytest.raises(InvalidRequest, match=kind):
            messages({"role": "user", "content": [{"type": kind, kind: {"data": "AAAA"}}]})


class TestAddressesAreNeverFetched:
    @pytest.mark.parametrize(
        "url",
        [
            "http://10.0.0.1/a.png",
            "HTTPS://img.test/x.png",
            "file:///pictures/a.png",
            "iVBORw0KGgo=",
            "",
            "data:image/png;base64,)![](http://10.0.0.1/",
        ],
    )
    def test_images_by_address_are_refused(self, url: str) -> None:
        with pytest.raises(InvalidRequest, match="`data:` URL"):
            messages(parts({"url": url}))

    @pytest.mark.parametrize(
        "given",
        [
            {"role": "user", "content": "look: ![](http://10.0.0.1/b.png) ok"},
            parts("look: ![](ht", "tp://10.0.0.1/b.png) ok"),
            {"role": "system", "content": "look: ![](http://10.0.0.1/b.png) ok"},
        ],
        ids=str,
    )
    def test_an_image_in_text_is_taken_for_text(self, given: dict[str, Any]) -> None:
        (message,) = messages(given)
        assert message["content"] == "look: ![ ](http://10.0.0.1/b.png) ok"

    def test_wherever_it_stands_and_however_it_is_written(self) -> None:
        evil = "![](hTTps://10.0.0.1)"
        tool = {"type": "function", "function": {"name": "f", "description": evil, "parameters": SCHEMA}}
        request = parse_request(
            Endpoint.CHAT,
            json.dumps({"model": "m", "messages": HI, "tools": [tool], "guideline": evil})
            .replace("!", "\\u0021")
            .encode(),
        )
        body = to_tgi(request, "m").body
        assert body.count(b"![ ](hTTps://10.0.0.1)") == 2
        assert b"![](" not in body

    def test_prompts_too(self) -> None:
        assert sent(Endpoint.COMPLETIONS, prompt=["![](http://a)", "b"])["prompt"] == ["![ ](http://a)", "b"]

    def test_other_text_stays_as_it_is(self) -> None:
        text = "![alt](http://a.test) ![](a.png) [](http://a.test) é \U0001f98a"
        assert messages({"role": "user", "content": text}) == [{"role": "user", "content": text}]
