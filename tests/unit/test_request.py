"""What routing reads of a request's body, and the body with another model's name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.request import Endpoint, InferenceRequest, parse_request

MESSAGES = '"messages":[{"role":"user","content":"hi"}]'


def chat(members: str) -> bytes:
    return f'{{"model":"m",{MESSAGES},{members}}}'.encode()


def refusal(body: bytes, endpoint: Endpoint = Endpoint.CHAT) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(endpoint, body)
    return caught.value


def test_a_request_keeps_its_bytes_and_says_what_is_asked() -> None:
    body = b' {"n":3, "stream":true, "model":"\\u006d\xc3\xa9", "messages":[{}], "x":1}\n'
    request = parse_request(Endpoint.CHAT, body)
    assert request.body is body
    assert (request.endpoint, request.model, request.stream, request.choices) == (Endpoint.CHAT, "mé", True, 3)


@pytest.mark.parametrize(
    ("members", "stream", "choices"),
    [
        ('"a":1', False, 1),
        ('"stream":false', False, 1),
        ('"stream":true', True, 1),
        ('"stream":null', False, 1),
        ('"n":null', False, 1),
        ('"n":1', False, 1),
        ('"n":128', False, 128),
        ('"stream":false,"stream":true', True, 1),  # the last one counts, as in most parsers
        ('"Stream":true,"N":4', False, 1),
    ],
)
def test_streaming_and_the_number_of_answers(members: str, stream: bool, choices: int) -> None:
    request = parse_request(Endpoint.CHAT, chat(members))
    assert (request.stream, request.choices) == (stream, choices)


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [
        ('"a"', 1),
        ('["a"]', 1),
        ('["a","b"]', 2),
        (' [ "a" ,\n"b" ] ', 2),
        ("[1,2,3]", 1),
        ("[[1,2],[3]]", 2),
        ("[ [1], [2], [3] ]", 3),
        ("[[]]", 1),
        ("[]", 1),
        ('""', 1),
        ("null", 1),
        ("7", 1),
        ('{"a":["b","c"]}', 1),
    ],
)
def test_each_prompt_of_a_completion_gets_its_own_answers(prompt: str, choices: int) -> None:
    for n, factor in (("", 1), (',"n":2', 2)):
        request = parse_request(Endpoint.COMPLETIONS, f'{{"model":"m","prompt":{prompt}{n}}}'.encode())
        assert request.choices == choices * factor


def test_a_completion_may_come_without_a_prompt_and_a_chat_s_prompt_means_nothing() -> None:
    assert parse_request(Endpoint.COMPLETIONS, b'{"model":"m"}').choices == 1
    assert parse_request(Endpoint.CHAT, chat('"prompt":["a","b"]')).choices == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The request body is empty."),
        (b" \n", "The request body is empty."),
        (b"{", "The request body is not valid JSON: Input data was truncated."),
        (b"\xff", "The request body is not valid UTF-8."),
        (b"[]", "The request body: Expected `object`, got `array`."),
        (b'{"messages":[1]}', "The request body: Object missing required field `model`."),
        (b'{"model":7,"messages":[1]}', "`model`: Expected `str`, got `int`."),
        (b'{"model":"m","messages":"hi"}', "`messages`: Expected `array`, got `str`."),
        (b'{"model":"","messages":[1]}', "`model` is empty: name a model, see GET /v1/models."),
        (b'{"model":"m","messages":[]}', "`messages` is empty: send at least one message."),
        (chat('"n":0'), "`n` must be at least 1."),
        (chat('"x":' + "[" * 500_000 + "]" * 500_000), "The request body is nested too deeply."),
    ],
)
def test_refusals_say_what_is_wrong(body: bytes, message: str) -> None:
    error = refusal(body)
    assert (error.message, error.status) == (message, 400)


def test_a_refusal_repeats_nothing_of_the_body() -> None:
    for body in (
        b'{"model":"m","messages":[{"content":"SECRET"',
        chat('"n":"SECRET"'),
        b'{"model":["SECRET"]}',
        b"SECRET",
    ):
        assert "SECRET" not in refusal(body).message


class TestAnotherModelName:
    def test_the_same_name_leaves_the_very_bytes(self) -> None:
        body = chat('"a": 1.0')
        assert parse_request(Endpoint.CHAT, body).body_for("m") is body

    def test_only_the_outermost_model_changes(self) -> None:
        body = b'{"a":{"model":"m"},"model":"m","b":[{"model" : "m"}],"messages":[{"model":"m"}]}'
        other = b'{"a":{"model":"m"},"model":"n","b":[{"model" : "m"}],"messages":[{"model":"m"}]}'
        assert parse_request(Endpoint.CHAT, body).body_for("n") == other

    @pytest.mark.parametrize("name", ["n", "é漢🦊", 'a"b\\c', "a\r\nb", "\0", "x" * 1000])
    def test_any_name_can_be_written(self, name: str) -> None:
        assert json.loads(parse_request(Endpoint.CHAT, chat('"a":1')).body_for(name))["model"] == name

    @pytest.mark.parametrize(
        "raw",
        [
            "1.10e+05",
            "-0",
            "12345678901234567890123",
            "1e999999",
            r'"\u00e9\/\ud83e\udd8a"',
            '"é"',
            "[1 , {  } ]",
            "null",
        ],
    )
    def test_values_stay_as_they_were_written(self, raw: str) -> None:
        body = parse_request(Endpoint.CHAT, chat(f'"value":{raw}')).body_for("n")
        assert f'"value":{raw}'.encode() in body

    def test_a_body_at_the_edge_of_what_can_be_read_is_renamed_or_refused(self) -> None:
        """How deep that is depends on the calls that lead to the decoder, and renaming comes some calls later."""
        for levels in range(700, 1100):
            request = outcome(Endpoint.CHAT, chat(f'"x":{"[" * levels}{"]" * levels}'))
            if isinstance(request, InferenceRequest):
                renamed = renamed_some_calls_deeper(request)
                assert isinstance(renamed, InvalidRequest) or b"[[[" in renamed


def outcome(endpoint: Endpoint, body: bytes) -> InferenceRequest | InvalidRequest:
    try:
        return parse_request(endpoint, body)
    except InvalidRequest as error:
        return error


def renamed_some_calls_deeper(request: InferenceRequest, calls: int = 5) -> bytes | InvalidRequest:
    if calls:
        return renamed_some_calls_deeper(request, calls - 1)
    try:
        return request.body_for("n")
    except InvalidRequest as error:
        return error


NAMES = st.text(min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.dictionaries(st.text().filter(lambda name: name not in {"model", "stream", "n"}), JSON)


@given(model=NAMES, other=NAMES, members=MEMBERS, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_every_good_request_is_read_and_can_be_renamed(
    model: str, other: str, members: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    value = {**members, "messages": [{"role": "user"}], "model": model}
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    request = parse_request(Endpoint.CHAT, body)
    assert (request.model, request.body) == (model, body)
    renamed = json.loads(request.body_for(other))
    assert renamed == {**value, "model": other}
    assert list(renamed) == list(value)


@given(st.binary() | st.text().map(str.encode) | JSON.map(lambda value: json.dumps(value).encode()))
def test_anything_is_read_or_refused(body: bytes) -> None:
    for endpoint in Endpoint:
        request = outcome(endpoint, body)
        if isinstance(request, InferenceRequest):
            assert json.loads(body)["model"] == request.model
        else:
            assert request.status == 400
            assert request.param in (None, "model", "messages", "stream", "n")


@given(st.data())
def test_a_request_cut_anywhere_is_refused(data: st.DataObject) -> None:
    body = chat('"stream":true,"user":"é"')
    end = data.draw(st.integers(0, len(body) - 1))
    assert refusal(body[:end]).code == "invalid_json"
