"""Requests in OpenAI's dialect become Ollama's, or are refused with the field's name."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.translate import openai_ollama
from gateway.translate.openai_ollama import Settings

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
WEATHER = {"name": "get_weather", "description": "Get it", "parameters": SCHEMA}
PNG = "iVBORw0KGgo="


def chat(*messages: dict[str, Any], settings: Settings = Settings(), **fields: Any) -> dict[str, Any]:  # noqa: B008
    """What Ollama is sent for a chat."""
    body = {"model": "asked", "messages": list(messages) or [{"role": "user", "content": "hi"}], **fields}
    asked = openai_ollama.read_chat(json.dumps(body).encode())
    return dict(json.loads(openai_ollama.chat_body(asked, "m", settings)))


def completion(**fields: Any) -> dict[str, Any]:
    asked = openai_ollama.read_completion(json.dumps({"model": "asked", "prompt": "Once", **fields}).encode())
    return dict(json.loads(openai_ollama.completion_body(asked, "m", Settings(2048, -1))))


def embedding(**fields: Any) -> dict[str, Any]:
    asked, texts = openai_ollama.read_embedding(json.dumps({"model": "asked", "input": "a", **fields}).encode())
    return dict(json.loads(openai_ollama.embedding_body(asked, texts, "m", Settings(2048, "5m"))))


def message(**fields: Any) -> dict[str, Any]:
    """What becomes of one message."""
    (sent,) = chat(fields)["messages"]
    return dict(sent)


def image(url: object) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": url}]}


class TestChatRequests:
    def test_the_least(self) -> None:
        assert chat() == {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": False,
            "truncate": False,
            "shift": False,
            "options": {},
        }

    def test_the_engines_settings_go_with_every_request(self) -> None:
        sent = chat(settings=Settings(context=4096, keep_alive="10m"), temperature=0)
        assert (sent["options"], sent["keep_alive"]) == ({"num_ctx": 4096, "temperature": 0.0}, "10m")

    @pytest.mark.parametrize(
        ("asked", "sent"),
        [
            ({"stream": True}, {"stream": True}),
            ({"stream": None}, {"stream": False}),
            ({"logprobs": True}, {"logprobs": True}),
            ({"logprobs": True, "top_logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
            ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
            ({"logprobs": False, "top_logprobs": 0}, {"logprobs": None, "top_logprobs": None}),
            ({"response_format": {"type": "text"}}, {"format": None}),
            ({"response_format": {"type": "json_object"}}, {"format": "json"}),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
                {"format": SCHEMA},
            ),
            ({"reasoning_effort": "none"}, {"think": False}),
            ({"reasoning_effort": "minimal"}, {"think": "low"}),
            ({"reasoning_effort": "low"}, {"think": "low"}),
            ({"reasoning_effort": "medium"}, {"think": "medium"}),
            ({"reasoning_effort": "high"}, {"think": "high"}),
            ({"reasoning_effort": "xhigh"}, {"think": "max"}),
            ({"reasoning_effort": None}, {"think": None}),
            ({"tools": []}, {"tools": None}),
            (
                {"tools": [{"type": "function", "function": WEATHER}]},
                {"tools": [{"type": "function", "function": WEATHER}]},
            ),
            (
                {"tools": [{"type": "function", "function": {"name": "now", "strict": True}}], "tool_choice": "auto"},
                {
                    "tools": [
                        {
                            "type": "function",
                            "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
                        }
                    ]
                },
            ),
            ({"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "none"}, {"tools": None}),
            ({"n": 1, "logit_bias": {}, "parallel_tool_calls": False, "modalities": ["text"]}, {}),
            ({"user": "u", "metadata": {"k": "v"}, "store": True, "service_tier": "auto", "prediction": {}}, {}),
        ],
    )
    def test_what_is_carried(self, asked: dict[str, Any], sent: dict[str, Any]) -> None:
        expected = {name: value for name, value in {**chat(), **sent}.items() if value is not None}
        assert chat(**asked) == expected

    def test_a_schema_keeps_its_order(self) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
        assert json.dumps(chat(response_format=wanted)["format"]) == json.dumps(SCHEMA)

    @pytest.mark.parametrize(
        ("asked", "options"),
        [
            ({"max_tokens": 5}, {"num_predict": 5}),
            ({"max_completion_tokens": 5}, {"num_predict": 5}),
            ({"max_completion_tokens": 5, "max_tokens": 9}, {"num_predict": 5}),
            ({"max_completion_tokens": None, "max_tokens": 9}, {"num_predict": 9}),
            ({"stop": "END"}, {"stop": ["END"]}),
            ({"stop": ["\n\n", "é"]}, {"stop": ["\n\n", "é"]}),
            ({"stop": [str(i) for i in range(12)]}, {"stop": [str(i) for i in range(12)]}),
            ({"stop": []}, {}),
            ({"temperature": 0, "top_p": 0.5, "seed": 0}, {"temperature": 0, "top_p": 0.5, "seed": 0}),
            ({"top_k": 7, "min_p": 0.05, "repeat_penalty": 1.1}, {"top_k": 7, "min_p": 0.05, "repeat_penalty": 1.1}),
            ({"presence_penalty": -1, "frequency_penalty": 0}, {"presence_penalty": -1, "frequency_penalty": 0}),
            (
                dict.fromkeys(["temperature", "top_p", "stop", "tools", "tool_choice", "response_format", "user", "n"]),
                {},
            ),
        ],
    )
    def test_options(self, asked: dict[str, Any], options: dict[str, Any]) -> None:
        assert chat(**asked) == {**chat(), "options": options}

    @pytest.mark.parametrize(
        ("asked", "param", "code"),
        [
            ({"n": 2}, "n", "unsupported_value"),
            ({"logit_bias": {"50": -1}}, "logit_bias", "unsupported_value"),
            ({"top_logprobs": 2}, "top_logprobs", "unsupported_value"),
            ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
            ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "unsupported_value"),
            ({"tools": [{"type": "web", "function": WEATHER}]}, "tools[0].type", "unsupported_value"),
            ({"max_tokens": 0}, "max_tokens", "unsupported_value"),
            ({"max_completion_tokens": -1, "max_tokens": 5}, "max_completion_tokens", "unsupported_value"),
            ({"stop": [""]}, "stop", "unsupported_value"),
            ({"reasoning_effort": "a lot"}, "reasoning_effort", "unsupported_value"),
            ({"response_format": {"type": "grammar"}}, "response_format.type", "unsupported_value"),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_field"),
            ({"temperature": "hot"}, "temperature", "invalid_type"),
            ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
            ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "unsupported_field"),
            ({"options": {"num_ctx": 8192}}, "options", "unsupported_field"),
            ({"keep_alive": 0}, "keep_alive", "unsupported_field"),
            ({"modalities": ["text", "audio"]}, "modalities", "unsupported_field"),
            ({"modalities": "text"}, "modalities", "unsupported_field"),
        ],
    )
    def test_what_is_refused(self, asked: dict[str, Any], param: str, code: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            chat(**asked)
        assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)
        assert f"`{param}`" in refused.value.message

    def test_a_refusal_names_every_field_and_what_to_do_instead(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            chat(think=True, x_new=1)
        assert refused.value.message == (
            "The engine of this model (Ollama) has no means for `think`, `x_new`; for `think`, use `reasoning_effort`."
        )


class TestMessages:
    @pytest.mark.parametrize(
        ("role", "sent"),
        [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")],
    )
    def test_roles(self, role: str, sent: str) -> None:
        assert message(role=role, content="x") == {"role": sent, "content": "x"}

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("a\nb", "a\nb"),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
            ([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}], "ano"),
            ([], ""),
            (None, ""),
        ],
    )
    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
    def test_content_is_one_text(self, role: str, content: object, text: str) -> None:
        assert message(role=role, content=content)["content"] == text

    def test_an_assistants_refusal_stands_for_its_content(self) -> None:
        assert message(role="assistant", content=None, refusal="No.")["content"] == "No."

    @pytest.mark.parametrize(
        "url",
        [
            f"data:image/png;base64,{PNG}",
            f"data:image/png;charset=x;base64,{PNG}",
            f"data:;base64,{PNG}",
            f"DATA:IMAGE/PNG;BASE64,{PNG}",
            PNG,
        ],
    )
    @pytest.mark.parametrize(
        "form", [lambda url: {"url": url, "detail": "high"}, lambda url: url], ids=["object", "text"]
    )
    def test_images(self, url: str, form: Any) -> None:
        assert message(**image(form(url))) == {"role": "user", "content": "See", "images": [PNG]}

    @pytest.mark.parametrize(
        "url",
        [
            "https://img.test/x.png",
            "http://169.254.169.254/x",
            "file:///etc/hostname",
            "data:image/png,raw",
            f"data:text/plain;base64,{PNG}",
            "data:image/png;base64,",
            "data:image/png;base64,?",
            "data:image/png;base64",
            "/etc/hostname",
            "images/ü.png",
            "",
        ],
    )
    def test_an_image_that_would_have_to_be_fetched_or_is_none_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            chat(image({"url": url}))
        where = "messages[0].content[1].image_url"
        assert (refused.value.status, refused.value.param, refused.value.code) == (400, where, "unsupported_content")

    def test_a_tool_call_and_its_result(self) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        first, second, third = chat(
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Let me see."},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "user", "content": "And?"},
        )["messages"]
        function = {"name": "f", "arguments": {"a": 1}}
        assert first == {
            "role": "assistant",
            "content": "",
            "thinking": "Let me see.",
            "tool_calls": [{"id": "c1", "function": function}],
        }
        assert second == {"role": "tool", "content": "2", "tool_name": "f", "tool_call_id": "c1"}
        assert third == {"role": "user", "content": "And?"}

    def test_a_result_belongs_to_the_latest_call_with_its_id(self) -> None:
        turns = [
            turn
            for name in ("f", "g")
            for turn in (
                {"role": "assistant", "tool_calls": [{"id": "0", "function": {"name": name, "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "0", "content": "x"},
            )
        ]
        assert [sent.get("tool_name") for sent in chat(*turns)["messages"]] == [None, "f", None, "g"]

    @pytest.mark.parametrize(
        ("arguments", "sent"),
        [('{"a":1}', {"a": 1}), ("{}", {}), ("", {}), (None, {}), ({"a": [1, None, "é"]}, {"a": [1, None, "é"]})],
    )
    def test_arguments_are_an_object(self, arguments: object, sent: dict[str, Any]) -> None:
        calls = [{"id": "c", "function": {"name": "f", "arguments": arguments}}]
        assert message(role="assistant", tool_calls=calls)["tool_calls"][0]["function"]["arguments"] == sent

    @pytest.mark.parametrize(
        ("fields", "where", "code"),
        [
            ({"role": "wizard", "content": "x"}, "messages[0].role", "unsupported_value"),
            ({"role": "function", "name": "f", "content": "x"}, "messages[0].role", "unsupported_value"),
            ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0]", "unsupported_content"),
            ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]", "unsupported_content"),
            (
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "not json"}}]},
                "messages[0].tool_calls[0].function.arguments",
                "invalid_arguments",
            ),
            (
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[1]"}}]},
                "messages[0].tool_calls[0].function.arguments",
                "invalid_arguments",
            ),
            (
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f"}}]},
                "messages[0].tool_calls[0].function.name",
                "missing_field",
            ),
        ],
    )
    def test_what_is_refused(self, fields: dict[str, Any], where: str, code: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            message(**fields)
        assert (refused.value.status, refused.value.param, refused.value.code) == (400, where, code)
        assert where in refused.value.message


class TestOtherRequests:
    def test_a_completion_is_the_text_alone(self) -> None:
        assert completion(max_tokens=5, stop="END", stream=True, echo=False, n=1, best_of=1) == {
            "model": "m",
            "prompt": "Once",
            "stream": True,
            "truncate": False,
            "shift": False,
            "raw": True,
            "think": False,
            "options": {"num_ctx": 2048, "num_predict": 5, "stop": ["END"]},
            "keep_alive": -1,
        }

    def test_a_suffix_needs_the_models_template(self) -> None:
        sent = completion(suffix="return 1")
        assert (sent["suffix"], sent["raw"]) == ("return 1", False)

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"prompt": ["a", "b"]}, "prompt"),
            ({"prompt": [1, 2]}, "prompt"),
            ({"prompt": ""}, "prompt"),
            ({"prompt": None}, "prompt"),
            ({"echo": True}, "echo"),
            ({"best_of": 2}, "best_of"),
            ({"n": 2}, "n"),
            ({"logprobs": 0}, "logprobs"),
            ({"logit_bias": {"1": 1}}, "logit_bias"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"grammar": "x"}, "grammar"),
            ({"temperature": "hot"}, "temperature"),
        ],
    )
    def test_a_completion_that_cannot_be_carried(self, fields: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            completion(**fields)
        assert (refused.value.status, refused.value.param) == (400, param)

    @pytest.mark.parametrize(
        ("fields", "sent"),
        [
            ({}, {"input": ["a"]}),
            ({"input": ["a", "b"]}, {"input": ["a", "b"]}),
            ({"dimensions": 2, "encoding_format": "float", "user": "u"}, {"input": ["a"], "dimensions": 2}),
        ],
    )
    def test_an_embedding(self, fields: dict[str, Any], sent: dict[str, Any]) -> None:
        common = {"model": "m", "truncate": False, "options": {"num_ctx": 2048}, "keep_alive": "5m"}
        assert embedding(**fields) == {**common, **sent}

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"input": [1, 2]}, "input"),
            ({"input": [[1], [2]]}, "input"),
            ({"input": []}, "input"),
            ({"input": ""}, "input"),
            ({"input": ["a", ""]}, "input"),
            ({"input": {"text": "a"}}, "input"),
            ({"encoding_format": "int8"}, "encoding_format"),
            ({"stream": True}, "stream"),
            ({"truncate": True}, "truncate"),
        ],
    )
    def test_an_embedding_that_cannot_be_carried(self, fields: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            embedding(**fields)
        assert (refused.value.status, refused.value.param) == (400, param)
