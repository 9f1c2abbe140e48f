"""What becomes of a request in Anthropic's Messages dialect when it is sent to an engine as an OpenAI chat."""

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.translate.anthropic import parse_messages
from tests.support.messages import (
    ASK,
    IMAGE,
    IMAGE_PART,
    LINK,
    LINK_PART,
    SCHEMA,
    TOOL,
    USER,
    called,
    chat_for,
    result,
    text,
    thinking,
    tool_use,
)

FUNCTION: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def tool(content: str, call_id: str = "t1") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


class TestFields:
    def test_the_smallest_request(self) -> None:
        assert chat_for() == {"model": "m", "messages": [USER], "max_tokens": 16}

    @pytest.mark.parametrize(
        ("fields", "carried"),
        [
            ({"temperature": 0}, {"temperature": 0}),
            ({"top_p": 0.5, "top_k": 7}, {"top_p": 0.5, "top_k": 7}),
            ({"stop_sequences": ["END", "\n"]}, {"stop": ["END", "\n"]}),
            ({"stop_sequences": []}, {}),
            ({"stream": False}, {"stream": False}),
            ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
            ({"metadata": {"user_id": "u1"}}, {"user": "u1"}),
            ({"metadata": {}}, {}),
            ({"tools": [TOOL]}, {"tools": [FUNCTION]}),
            ({"tools": [TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}}]}, {"tools": [FUNCTION]}),
            (
                {"tools": [TOOL | {"description": "of a city", "strict": True}]},
                {
                    "tools": [
                        {**FUNCTION, "function": FUNCTION["function"] | {"description": "of a city", "strict": True}}
                    ]
                },
            ),
            ({"tools": []}, {}),
            ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
            ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
            ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
            (
                {"tool_choice": {"type": "tool", "name": "weather"}},
                {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            ),
            (
                {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
                {"tool_choice": "auto", "parallel_tool_calls": False},
            ),
            ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}, {"tool_choice": "auto"}),
        ],
    )
    def test_carried(self, fields: dict[str, Any], carried: dict[str, Any]) -> None:
        assert chat_for(**fields) == chat_for() | carried

    def test_a_form_for_the_answer(self) -> None:
        form = chat_for(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})["response_format"]
        schema = form["json_schema"]
        assert form["type"] == "json_schema"
        assert (schema["schema"], schema["strict"]) == (SCHEMA, True)
        assert schema["name"]

    @pytest.mark.parametrize(
        ("config", "effort"),
        [
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
            ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "medium"),
            ({"thinking": {"type": "enabled", "budget_tokens": 16384}}, "high"),
            ({"thinking": {"type": "adaptive"}}, None),
            ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}, "medium"),
            ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high"),
            ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, None),
            ({"output_config": {"effort": "high"}}, None),
        ],
    )
    def test_thinking_is_an_effort_where_it_was_asked_for(self, config: dict[str, Any], effort: str | None) -> None:
        assert chat_for(**config) == chat_for() | ({} if effort is None else {"reasoning_effort": effort})

    @pytest.mark.parametrize(
        ("config", "shown"),
        [
            (None, True),
            ({"type": "enabled", "budget_tokens": 1024}, True),
            ({"type": "adaptive", "display": "summarized"}, True),
            ({"type": "adaptive", "display": "omitted"}, False),
            ({"type": "disabled"}, False),
        ],
    )
    def test_thoughts_are_shown_unless_the_client_wants_none(self, config: Any, shown: bool) -> None:
        assert parse_messages(json.dumps(ASK | {"thinking": config}).encode()).shows_thinking is shown

    @pytest.mark.parametrize(
        "fields",
        [
            {"service_tier": "auto"},
            {"cache_control": {"type": "ephemeral"}},
            {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
            {"inference_geo": "us", "speed": "fast", "diagnostics": {}},
            {"container": None, "mcp_servers": []},
        ],
    )
    def test_dropped(self, fields: dict[str, Any]) -> None:
        assert chat_for(**fields) == chat_for()


class TestSystem:
    @pytest.mark.parametrize(
        ("system", "content"),
        [
            ("Be terse.", "Be terse."),
            ([text("Be terse.")], "Be terse."),
            ([text("Be terse."), text("Be kind.") | {"cache_control": {"type": "ephemeral"}}], "Be terse.\n\nBe kind."),
            ([text("x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"), text("Be terse.")], "Be terse."),
        ],
    )
    def test_becomes_the_first_message(self, system: Any, content: str) -> None:
        assert chat_for(system=system)["messages"] == [{"role": "system", "content": content}, USER]

    @pytest.mark.parametrize("system", ["", [], [text("")], None])
    def test_none_at_all(self, system: Any) -> None:
        assert chat_for(system=system)["messages"] == [USER]


ASSISTANT = "assistant"
CONVERSATIONS: list[tuple[str, list[tuple[str, Any]], list[dict[str, Any]]]] = [
    ("a text as a block", [("user", [text("hi")])], [USER]),
    ("texts", [("user", [text("a"), text("b")])], [{"role": "user", "content": [text("a"), text("b")]}]),
    (
        "images",
        [("user", [IMAGE, LINK, text("what?")])],
        [{"role": "user", "content": [IMAGE_PART, LINK_PART, text("what?")]}],
    ),
    ("an image alone", [("user", [IMAGE])], [{"role": "user", "content": [IMAGE_PART]}]),
    ("nothing", [("user", [])], [{"role": "user", "content": ""}]),
    (
        "turns",
        [("user", "hi"), (ASSISTANT, "ho"), ("user", "hi")],
        [USER, {"role": ASSISTANT, "content": "ho"}, USER],
    ),
    (
        "two turns of one role are one",
        [("user", "a"), ("user", "b"), (ASSISTANT, "c"), (ASSISTANT, "d")],
        [{"role": "user", "content": [text("a"), text("b")]}, {"role": ASSISTANT, "content": "cd"}],
    ),
    (
        "a system message among the others",
        [("user", "hi"), ("system", "Be terse.")],
        [USER, {"role": "system", "content": "Be terse."}],
    ),
    (
        "an answer to go on with",
        [("user", "hi"), (ASSISTANT, "{")],
        [USER, {"role": ASSISTANT, "content": "{"}],
    ),
    ("an empty answer", [(ASSISTANT, [])], [{"role": ASSISTANT, "content": ""}]),
    (
        "a call",
        [(ASSISTANT, [text("Let me "), text("look."), tool_use("t1", "weather", city="Paris")])],
        [
            {
                "role": ASSISTANT,
                "content": "Let me look.",
                "tool_calls": [called("t1", "weather", '{"city":"Paris"}')],
            }
        ],
    ),
    (
        "calls and nothing else",
        [(ASSISTANT, [tool_use("t1", "a"), tool_use("t2", "b")])],
        [{"role": ASSISTANT, "tool_calls": [called("t1", "a", "{}"), called("t2", "b", "{}")]}],
    ),
    (
        "thoughts",
        [
            (
                ASSISTANT,
                [thinking("Hm. "), {"type": "redacted_thinking", "data": "x"}, thinking("Ah."), text("Yes.")],
            )
        ],
        [{"role": ASSISTANT, "content": "Yes.", "reasoning_content": "Hm. Ah."}],
    ),
    (
        "results, in order, before what else was said",
        [("user", [text("and now?"), result("a", "t1"), result("b", "t2"), IMAGE])],
        [tool("a", "t1"), tool("b", "t2"), {"role": "user", "content": [text("and now?"), IMAGE_PART]}],
    ),
    ("a result alone", [("user", [result()])], [tool("20C")]),
    ("a result in blocks", [("user", [result([text("a"), text("b")])])], [tool("a\nb")]),
    ("a result of nothing", [("user", [result(None)])], [tool("")]),
    ("a failure", [("user", [result("no such city", is_error=True)])], [tool("Error: no such city")]),
    ("no failure", [("user", [result("fine", is_error=False)])], [tool("fine")]),
    (
        "an image as a result is shown by the user",
        [("user", [result([text("done"), IMAGE]), text("what?")])],
        [tool("done"), {"role": "user", "content": [IMAGE_PART, text("what?")]}],
    ),
]


@pytest.mark.parametrize(
    ("turns", "messages"),
    [(turns, messages) for _, turns, messages in CONVERSATIONS],
    ids=[c[0] for c in CONVERSATIONS],
)
def test_conversations(turns: list[tuple[str, Any]], messages: list[dict[str, Any]]) -> None:
    asked = [{"role": role, "content": content} for role, content in turns]
    assert chat_for(messages=asked)["messages"] == messages


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": role, "content": list(blocks)}]}


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            ({"max_tokens": 0}, "max_tokens", ">= 1"),
            ({"max_tokens": "many"}, "max_tokens", "Expected `int`"),
            ({"messages": "hi"}, "messages", "Expected `array`"),
            (said("robot"), "messages[1].role", "robot"),
            (said("user", {"type": "document"}), "messages[1].content[0].type", "document"),
            (said("user", {"type": "text", "text": 1}), "messages[1].content[0].text", "Expected `str`"),
            (said("user", result([{"type": "document"}])), "messages[1].content[0].content[0].type", "document"),
            (
                said("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}),
                "messages[1].content[0].source.type",
                "file",
            ),
            ({"messages": [{"role": "user", "content": [thinking("a")]}]}, "messages[0].content[0]", "role"),
            ({"messages": [{"role": "user", "content": [tool_use("t", "f")]}]}, "messages[0].content[0]", "role"),
            (said("assistant", text("a"), result()), "messages[1].content[1]", "assistant"),
            (said("assistant", IMAGE), "messages[1].content[0]", "assistant"),
            (said("assistant", tool_use("t", "f") | {"input": "{}"}), "messages[1].content[0].input", "object"),
            (said("system", result()), "messages[1].content[0]", "role"),
            (
                {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                "tools[0].type",
                "web_search_20250305",
            ),
            ({"tools": [TOOL, {"name": "f"}]}, "tools[1].input_schema", "missing"),
            ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
            ({"tool_choice": {"type": "some"}}, "tool_choice.type", "some"),
            ({"thinking": {"type": "deep"}}, "thinking.type", "deep"),
            ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", "cannot be sent"),
            ({"container": "c1"}, "container", "cannot be sent"),
            ({"seed": 1}, "seed", "cannot be sent"),
        ],
    )
    def test_name_the_field(self, fields: dict[str, Any], param: str, words: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            chat_for(**fields)
        assert (refused.value.status, refused.value.param) == (400, param)
        assert f"`{param}`" in refused.value.message
        assert words in refused.value.message

    def test_without_a_limit_for_the_answer(self) -> None:
        with pytest.raises(InvalidRequest, match="`max_tokens`"):
            parse_messages(json.dumps({"model": "m", "messages": [USER]}).encode())
