"""OpenAI's Responses dialect over chats: requests."""

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from tests.support.responses import (
    IMAGE,
    IMAGE_PART,
    SCHEMA,
    TOOL,
    call,
    called,
    chat_for,
    input_text,
    output_text,
    result,
    says,
    thought,
)

HI = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant"}

CONVERSATIONS: list[tuple[str, Any, list[dict[str, Any]]]] = [
    ("a text", "hi", [HI]),
    ("an empty text", "", [{"role": "user", "content": ""}]),
    ("a message without its type", [{"role": "user", "content": "hi"}], [HI]),
    ("one text part", [says("user", [input_text("hi")])], [HI]),
    (
        "two text parts",
        [says("user", [input_text("a"), input_text("b")])],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    ),
    (
        "an image",
        [says("user", [input_text("a"), IMAGE])],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE_PART]}],
    ),
    (
        "an image and its detail",
        [says("user", [IMAGE | {"detail": "low"}])],
        [{"role": "user", "content": [IMAGE_PART | {"image_url": IMAGE_PART["image_url"] | {"detail": "low"}}]}],
    ),
    ("two messages of a user", [says("user", "hi"), says("user", "hi")], [HI, HI]),
    (
        "system messages at the start are one",
        [says("developer", "a"), says("system", [input_text("b"), input_text("c")]), says("user", "hi")],
        [{"role": "system", "content": "a\n\nbc"}, HI],
    ),
    (
        "a developer later on",
        [says("user", "hi"), says("developer", "a")],
        [HI, {"role": "system", "content": "a"}],
    ),
    ("nothing but a system message", [says("system", "a")], [{"role": "system", "content": "a"}]),
    (
        "an answer's text",
        [says("user", "hi"), says("assistant", [output_text("a"), output_text("b")]), says("user", "hi")],
        [HI, ASSISTANT | {"content": "ab"}, HI],
    ),
    ("an assistant's text as such", [says("assistant", "a")], [ASSISTANT | {"content": "a"}]),
    ("a refusal", [says("assistant", [{"type": "refusal", "refusal": "No."}])], [ASSISTANT | {"content": "No."}]),
    (
        "all items of an answer are one message",
        [thought("hm"), says("assistant", [output_text("a")]), call("c1", "f", "{}"), call("c2", "g", "")],
        [
            ASSISTANT
            | {
                "content": "a",
                "tool_calls": [called("c1", "f", "{}"), called("c2", "g", "{}")],
                "reasoning_content": "hm",
            }
        ],
    ),
    (
        "a thought of which there is but a summary",
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"}],
        [ASSISTANT | {"content": "", "reasoning_content": "hm"}],
    ),
    (
        "a call and its result",
        [call("c1", "f", '{"a":1}'), result("20C")],
        [
            ASSISTANT | {"tool_calls": [called("c1", "f", '{"a":1}')]},
            {"role": "tool", "tool_call_id": "c1", "content": "20C"},
        ],
    ),
    (
        "results in parts, and images after all of them",
        [result([input_text("a"), IMAGE, input_text("b")]), result("c", "c2")],
        [
            {"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
            {"role": "tool", "tool_call_id": "c2", "content": "c"},
            {"role": "user", "content": [IMAGE_PART]},
        ],
    ),
]

CARRIED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"instructions": "Be terse."}, {"messages": [{"role": "system", "content": "Be terse."}, HI]}),
    (
        {"instructions": "a", "input": [says("developer", "b"), says("user", "hi")]},
        {"messages": [{"role": "system", "content": "a\n\nb"}, HI]},
    ),
    ({"max_output_tokens": 8}, {"max_tokens": 8}),
    ({"temperature": 0.5, "top_p": 0.9, "user": "u"}, {"temperature": 0.5, "top_p": 0.9, "user": "u"}),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
    ({"reasoning": {"effort": None}}, {}),
    ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {
            "text": {
                "format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"}
            }
        },
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"},
            }
        },
    ),
    ({"tool_choice": "auto", "parallel_tool_calls": True, "tools": []}, {}),
    ({"tool_choice": "required"}, {"tool_choice": "required"}),
]
DROPPED: list[dict[str, Any]] = [
    {"store": True},
    {"store": False},
    {"metadata": {"a": "b"}},
    {"include": ["reasoning.encrypted_content"]},
    {"truncation": "disabled"},
    {"service_tier": "auto", "safety_identifier": "u", "prompt_cache_key": "k", "max_tool_calls": 3},
    {"previous_response_id": None, "conversation": None, "background": False, "prompt": None, "top_logprobs": 0},
    {"presence_penalty": None, "context_management": []},
]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps no responses"),
    ({"conversation": "conv_1"}, "conversation", "keeps no responses"),
    ({"conversation": {"id": "conv_1"}}, "conversation", "keeps no responses"),
    ({"background": True}, "background", "keeps no responses"),
    ({"prompt": {"id": "p"}}, "prompt", "template"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "keeps no responses"),
    ({"input": [{"id": "msg_1"}]}, "input[0]", "keeps no responses"),
    ({"truncation": "auto"}, "truncation", "disabled"),
    ({"top_logprobs": 2}, "top_logprobs", "cannot"),
    ({"include": ["message.output_text.logprobs"]}, "include", "logprobs"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "told"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "grammar"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format", "schema"),
    ({"presence_penalty": 1}, "presence_penalty", "cannot"),
    ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type", "web_search"),
    ({"tools": [{"type": "mcp", "server_label": "s", "server_url": "u"}]}, "tools[0].type", "mcp"),
    ({"tools": [{"type": "function"}]}, "tools[0]", "name"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "web_search"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.type", "allowed_tools"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "maybe"),
    ({"input": []}, "input", "empty"),
    ({"input": 5}, "input", "int"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", "computer_call"),
    ({"input": [says("tool", "a")]}, "input[0].role", "tool"),
    ({"input": [HI, says("user", [{"type": "input_audio"}])]}, "input[1].content[0].type", "input_audio"),
    ({"input": [says("user", [{"type": "input_file", "file_id": "f"}])]}, "input[0].content[0].type", "input_file"),
    ({"input": [says("user", [{"type": "input_image", "file_id": "f"}])]}, "input[0].content[0]", "image_url"),
    ({"input": [says("user", [{"type": "input_text"}])]}, "input[0].content[0]", "no text"),
    ({"input": [says("assistant", [IMAGE])]}, "input[0].content[0]", "role"),
    ({"input": [says("system", [IMAGE])]}, "input[0].content[0]", "role"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0]", "call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c1"}]}, "input[0]", "output"),
    ({"max_output_tokens": "8"}, "max_output_tokens", "int"),
]


class TestRequests:
    @pytest.mark.parametrize(
        ("items", "messages"), [case[1:] for case in CONVERSATIONS], ids=[case[0] for case in CONVERSATIONS]
    )
    def test_conversations(self, items: Any, messages: list[dict[str, Any]]) -> None:
        assert chat_for(input=items) == {"model": "m", "messages": messages}

    @pytest.mark.parametrize(("fields", "chat"), CARRIED, ids=[",".join(case[0]) for case in CARRIED])
    def test_carried(self, fields: dict[str, Any], chat: dict[str, Any]) -> None:
        assert chat_for(**fields) == {"model": "m", "messages": [HI]} | chat

    @pytest.mark.parametrize("fields", DROPPED, ids=lambda fields: ",".join(fields))
    def test_dropped(self, fields: dict[str, Any]) -> None:
        assert chat_for(**fields) == chat_for()

    def test_tools(self) -> None:
        chosen = {"type": "function", "name": "weather"}
        tool = TOOL | {"description": "d", "strict": True}
        chat = chat_for(tools=[tool], tool_choice=chosen, parallel_tool_calls=False)
        function = {"name": "weather", "description": "d", "parameters": SCHEMA, "strict": True}
        assert chat["tools"] == [{"type": "function", "function": function}]
        assert chat["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
        assert chat["parallel_tool_calls"] is False

    @pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=[str(case[0])[:60] for case in REFUSED])
    def test_refused(self, fields: dict[str, Any], param: str, words: str) -> None:
        with pytest.raises(InvalidRequest, match=words) as refused:
            chat_for(**fields)
        assert (refused.value.status, refused.value.param) == (400, param)
        assert param in refused.value.message

    def test_an_input_that_is_missing(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            chat_for(input=None)
        assert refused.value.param == "input"
