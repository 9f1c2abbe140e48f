"""Requests of Ollama's dialect as OpenAI's."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.request import Endpoint
from gateway.translate import openai_ollama
from gateway.translate.ollama_openai import Chat, Embed, Embeddings, Generate, OllamaRequest, parse
from tests.support.wire import Recording, recording, recordings

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HI = {"role": "user", "content": "hi"}
WEATHER = {"function": {"name": "weather", "arguments": {"city": "Zürich"}}}
TIME = {"function": {"name": "time", "arguments": {}}}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}


def translate(kind: type[OllamaRequest], **fields: Any) -> dict[str, Any]:
    """The body that an engine gets, for a model that Sluice knows as `M`."""
    body = json.dumps({"model": "m", **fields}).encode()
    return dict(json.loads(parse(kind, body).to_openai("M").body))


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return translate(Chat, messages=list(messages) or [HI], **fields)


def generate(**fields: Any) -> dict[str, Any]:
    return translate(Generate, **fields)


def messages_of(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return list(chat(*messages)["messages"])


class TestChatRequests:
    def test_it_streams_and_counts_tokens_unless_told_otherwise(self) -> None:
        for fields in ({}, {"stream": None}, {"stream": True}):
            assert chat(**fields) == {
                "model": "M",
                "messages": [HI],
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        assert chat(stream=False) == {"model": "M", "messages": [HI]}

    @pytest.mark.parametrize(
        ("fields", "sent"),
        [
            ({"format": "json"}, {"response_format": {"type": "json_object"}}),
            (
                {"format": SCHEMA},
                {"response_format": {"type": "json_schema", "json_schema": {"name": "format", "schema": SCHEMA}}},
            ),
            ({"format": ""}, {}),
            ({"format": None}, {}),
            ({"think": True}, {"reasoning_effort": "medium"}),
            ({"think": False}, {"reasoning_effort": "none"}),
            ({"think": "high"}, {"reasoning_effort": "high"}),
            ({"options": {"reasoning_effort": "low"}}, {"reasoning_effort": "low"}),
            ({"think": "high", "options": {"reasoning_effort": "low"}}, {"reasoning_effort": "high"}),
            ({"options": {"logit_bias": {"5": -100}}}, {"logit_bias": {"5": -100.0}}),
            ({"think": ""}, {}),
            ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
            ({"logprobs": False, "top_logprobs": 2}, {}),
            ({"tools": [TOOL]}, {"tools": [TOOL]}),
            ({"tools": [{"function": TOOL["function"]}]}, {"tools": [TOOL]}),
            ({"tools": []}, {}),
            ({"keep_alive": "5m"}, {}),
            ({"keep_alive": -1}, {}),
            ({"truncate": True, "shift": True, "foo": 1}, {}),
        ],
        ids=str,
    )
    def test_fields(self, fields: dict[str, Any], sent: dict[str, Any]) -> None:
        assert chat(stream=False, **fields) == {"model": "M", "messages": [HI], **sent}

    @pytest.mark.parametrize(
        ("options", "sent"),
        [
            ({"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.05}, None),
            ({"seed": -3, "presence_penalty": 1, "frequency_penalty": 0.5, "repeat_penalty": 1.1}, None),
            ({"num_predict": 5}, {"max_tokens": 5}),
            ({"num_predict": -1}, {}),
            ({"num_predict": -2}, {}),
            ({"num_predict": 0}, {}),
            ({"stop": ["\n\n", "é"]}, None),
            ({"stop": "END"}, None),
            ({"stop": []}, {}),
            ({"num_ctx": 4096, "num_gpu": 1, "num_thread": 8, "use_mmap": True, "low_vram": False}, {}),
            ({"num_keep": 4, "repeat_last_n": 64, "typical_p": 0.7, "mirostat": 1, "tfs_z": 1}, {}),
            ({"temperature": None, "num_predict": None, "stop": None, "num_ctx": None}, {}),
            (None, {}),
        ],
        ids=str,
    )
    def test_options(self, options: dict[str, Any] | None, sent: dict[str, Any] | None) -> None:
        """`None` stands for options that are sent as they are."""
        expected = options if sent is None else sent
        assert chat(stream=False, options=options) == {"model": "M", "messages": [HI], **(expected or {})}

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"options": {"temprature": 1}}, r"`options`: Object contains unknown field `temprature`\."),
            ({"options": {"num_predict": "many"}}, r"`options.num_predict`: Expected `int . null`, got `str`\."),
            ({"format": "xml"}, "`format`: it is neither"),
            ({"format": [1]}, "`format`: it is neither"),
            (
                {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
                r"`messages\[0\].content`: Expected `str",
            ),
            ({"messages": [{"content": "hi"}]}, "missing required field `role`"),
            (
                {"messages": [HI | {"images": ["https://example.com/a.png"]}]},
                r"`messages\[0\].images`: an image is not",
            ),
            ({"messages": [HI | {"images": [f"data:image/png;base64,{PNG}"]}]}, "in base64"),
            ({"tools": [{"type": "function"}]}, "missing required field `function`"),
            ({"model": 7}, "`model`: Expected `str`, got `int`"),
        ],
        ids=str,
    )
    def test_what_is_refused(self, fields: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidRequest, match=problem):
            translate(Chat, **{"messages": [HI], **fields})

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"m","messages":["\xff"]}', b"{}"])
    def test_bodies_that_are_no_request(self, body: bytes) -> None:
        with pytest.raises(InvalidRequest):
            parse(Chat, body)

    @pytest.mark.parametrize("member", ["format", "odd"])
    def test_bodies_that_are_nested_too_deeply(self, member: str) -> None:
        with pytest.raises(InvalidRequest, match="nested too deeply"):
            parse(Chat, b'{"model":"m","%b":' % member.encode() + b"[" * 100_000)


class TestMessages:
    def test_images_become_data_urls(self) -> None:
        [message] = messages_of(HI | {"images": [PNG, "/9j/4AAQ", "UklGRg==", "R0lGODlh"]})
        text, *images = message["content"]
        assert text == {"type": "text", "text": "hi"}
        assert [image["image_url"]["url"] for image in images] == [
            f"data:image/png;base64,{PNG}",
            "data:image/jpeg;base64,/9j/4AAQ",
            "data:image/webp;base64,UklGRg==",
            "data:image/gif;base64,R0lGODlh",
        ]

    def test_an_image_without_text(self) -> None:
        [message] = messages_of({"role": "user", "images": [PNG]})
        assert [part["type"] for part in message["content"]] == ["image_url"]

    def test_thinking_goes_back_as_reasoning(self) -> None:
        assert messages_of({"role": "assistant", "content": "4", "thinking": "2+2"}) == [
            {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
        ]

    def test_no_content_is_an_empty_text(self) -> None:
        for message in ({"role": "user"}, {"role": "user", "content": None}):
            assert messages_of(message) == [{"role": "user", "content": ""}]

    def test_roles_are_left_to_the_engine(self) -> None:
        assert messages_of({"role": "wizard", "content": "hi"}) == [{"role": "wizard", "content": "hi"}]

    def test_arguments_become_text(self) -> None:
        for arguments in ({"city": "Zürich"}, '{"city":"Zürich"}'):
            call = {"id": "c1", "function": {"name": "weather", "arguments": arguments}}
            [message] = messages_of({"role": "assistant", "tool_calls": [call]})
            [sent] = message["tool_calls"]
            assert json.loads(sent["function"].pop("arguments")) == {"city": "Zürich"}
            assert sent == {"id": "c1", "type": "function", "function": {"name": "weather"}}
            assert message["content"] == ""

    def test_calls_and_results_without_ids_are_paired_by_name_and_order(self) -> None:
        sent = messages_of(
            HI,
            {"role": "assistant", "tool_calls": [WEATHER, TIME, WEATHER]},
            {"role": "tool", "tool_name": "time", "content": "noon"},
            {"role": "tool", "tool_name": "weather", "content": "20"},
            {"role": "tool", "content": "21"},
            {"role": "assistant", "tool_calls": [TIME]},
            {"role": "tool", "tool_name": "clock", "content": "one"},
        )
        weather, time, again = (call["id"] for call in sent[1]["tool_calls"])
        [later] = (call["id"] for call in sent[5]["tool_calls"])
        assert len({weather, time, again, later}) == 4
        assert [message.get("tool_call_id") for message in sent[2:5]] == [time, weather, again]
        assert sent[2]["name"] == "time"
        assert sent[6]["tool_call_id"] == later

    def test_ids_that_are_given_stay(self) -> None:
        calls = [WEATHER | {"id": "a"}, WEATHER | {"id": "b"}]
        sent = messages_of(
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_name": "weather", "content": "1"},
        )
        assert [message["tool_call_id"] for message in sent[1:]] == ["b", "a"]

    def test_a_result_without_a_call_is_left_as_it_is(self) -> None:
        assert messages_of({"role": "tool", "content": "1"}) == [{"role": "tool", "content": "1"}]
        assert messages_of({"role": "tool", "tool_call_id": "x", "content": "1"})[0]["tool_call_id"] == "x"

    def test_ids_are_the_same_every_time_and_fit_the_strictest_template(self) -> None:
        """Else an engine would find nothing of the prompt in its cache, and Mistral's templates refuse the call."""
        message = {"role": "assistant", "tool_calls": [WEATHER, TIME]}
        first, second = (messages_of(HI, *[message] * turns)[1]["tool_calls"] for turns in (1, 2))
        assert first == second
        assert all(len(call["id"]) == 9 and call["id"].isalnum() for call in first)


class TestGenerateRequests:
    def test_a_prompt_is_a_chat(self) -> None:
        sent = generate(prompt="hi", system="Be brief.", format="json", think=False, options={"seed": 1})
        assert sent == {
            "model": "M",
            "messages": [{"role": "system", "content": "Be brief."}, HI],
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": 1,
            "response_format": {"type": "json_object"},
            "reasoning_effort": "none",
        }

    def test_images_go_with_the_prompt(self) -> None:
        [message] = generate(prompt="hi", images=[PNG])["messages"]
        assert [part["type"] for part in message["content"]] == ["text", "image_url"]

    @pytest.mark.parametrize(
        ("fields", "sent"),
        [
            ({"raw": True}, {}),
            ({"suffix": "return"}, {"suffix": "return"}),
            ({"raw": True, "suffix": "return"}, {"suffix": "return"}),
            ({"raw": True, "options": {"num_predict": 3, "top_k": 1}}, {"max_tokens": 3, "top_k": 1}),
            ({"raw": True, "think": True, "system": "", "images": [], "context": []}, {}),
        ],
        ids=str,
    )
    def test_a_prompt_that_is_to_stay_as_it_is_is_a_completion(
        self, fields: dict[str, Any], sent: dict[str, Any]
    ) -> None:
        assert generate(prompt="def f(", stream=False, **fields) == {"model": "M", "prompt": "def f(", **sent}
        body = json.dumps({"model": "m", "prompt": "p", **fields}).encode()
        assert parse(Generate, body).to_openai("M").endpoint is Endpoint.COMPLETIONS

    @pytest.mark.parametrize("beside", [{"raw": True}, {"suffix": "s"}], ids=str)
    @pytest.mark.parametrize("fields", [{"system": "s"}, {"images": [PNG]}, {"format": "json"}, {"logprobs": True}])
    def test_what_cannot_go_with_it(self, beside: dict[str, Any], fields: dict[str, Any]) -> None:
        [name] = fields
        with pytest.raises(InvalidRequest, match=f"`{name}`: it cannot go with"):
            generate(prompt="p", **beside, **fields)

    @pytest.mark.parametrize("fields", [{"template": "{{ .Prompt }}"}, {"context": [1, 2]}], ids=str)
    def test_what_only_ollama_has(self, fields: dict[str, Any]) -> None:
        [name] = fields
        with pytest.raises(InvalidRequest, match=f"`{name}`: the engine has its own template"):
            generate(prompt="p", **fields)


class TestEmbeddingRequests:
    @pytest.mark.parametrize(
        ("kind", "fields", "sent"),
        [
            (Embed, {"input": "a"}, {"input": "a"}),
            (Embed, {"input": ["a", "b"], "dimensions": 8}, {"input": ["a", "b"], "dimensions": 8}),
            (Embed, {"input": "a", "truncate": True, "options": {"num_ctx": 9}, "keep_alive": 0}, {"input": "a"}),
            (Embeddings, {"prompt": "a"}, {"input": "a"}),
        ],
        ids=str,
    )
    def test_they_ask_for_lists_of_numbers(
        self, kind: type[OllamaRequest], fields: dict[str, Any], sent: dict[str, Any]
    ) -> None:
        assert translate(kind, **fields) == {"model": "M", "encoding_format": "float", **sent}

    def test_no_text_is_refused(self) -> None:
        for fields in ({"input": [[1, 2]]}, {"input": 3}, {}):
            with pytest.raises(InvalidRequest):
                translate(Embed, **fields)


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (Chat, {}, "load"),
        (Chat, {"messages": None}, "load"),
        (Chat, {"messages": [], "keep_alive": "10m"}, "load"),
        (Chat, {"messages": [], "keep_alive": 0}, "unload"),
        (Chat, {"keep_alive": 0.0}, "unload"),
        (Generate, {"prompt": ""}, "load"),
        (Generate, {"prompt": "", "keep_alive": "0s"}, "unload"),
        (Embed, {"input": ""}, "load"),
        (Embed, {"input": []}, "load"),
        (Embeddings, {}, "load"),
    ],
    ids=str,
)
def test_requests_that_ask_for_nothing(kind: type[OllamaRequest], fields: dict[str, Any], reason: str) -> None:
    asked = parse(kind, json.dumps({"model": "m", **fields}).encode())
    assert (asked.empty, asked.done_reason) == (True, reason)


# Against a real Ollama


MISSPELT = "native-chat-unknown-option"
UNDERSTOOD = [one for one in recordings("ollama", "/api/chat") if one.status == 200 and one.name != MISSPELT]


@pytest.mark.parametrize("recorded", UNDERSTOOD, ids=str)
def test_what_a_real_ollama_understands_is_understood(recorded: Recording) -> None:
    asked = parse(Chat, recorded.request_body)
    if not asked.empty:
        sent = json.loads(asked.to_openai("M").body)
        assert [message["role"] for message in sent["messages"]] == [m.role for m in asked.messages or []]


@pytest.mark.parametrize("name", ["bad-json", "content-parts", "bad-option-type", "no-model", "unknown-option"])
def test_what_a_real_ollama_refuses_or_passes_over_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(Chat, recording("ollama", f"native-chat-{name}").request_body)


# Any conversation

ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages as Ollama's programs send them, each result after its call."""
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        images = {"images": [PNG]} if draw(st.booleans()) else {}
        messages.append({"role": "user", "content": draw(st.text(max_size=8)), **images})
        calls = draw(st.lists(st.tuples(st.sampled_from(["f", "g"]), ARGUMENTS), max_size=3))
        thought = draw(st.text(max_size=4))
        answer = {
            "role": "assistant",
            "content": draw(st.text(max_size=8)),
            **({"thinking": thought} if thought else {}),
        }
        if calls:
            answer["tool_calls"] = [{"function": {"name": name, "arguments": made}} for name, made in calls]
        messages.append(answer)
        messages += [{"role": "tool", "content": f"{at}", "tool_name": name} for at, (name, _) in enumerate(calls)]
    return messages


@given(conversations())
def test_each_result_has_the_id_of_its_call(messages: list[dict[str, Any]]) -> None:
    names: dict[str, str] = {}
    for message in messages_of(*messages):
        for call in message.get("tool_calls", []):
            assert call["id"] not in names
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            assert names[message["tool_call_id"]] == message["name"]


@given(conversations())
def test_an_ollama_behind_the_gateway_gets_the_same_messages(messages: list[dict[str, Any]]) -> None:
    sent = parse(Chat, json.dumps({"model": "m", "messages": messages}).encode()).to_openai("M").body
    again = openai_ollama.chat_body(openai_ollama.read_chat(sent), "M", openai_ollama.Settings())
    received = msgspec.json.decode(again)["messages"]
    for message in received:
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", []):
            call.pop("id")
    assert received == messages
