"""Secrets of a config, and values of the environment, never appear in what the loader says."""

import traceback

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.load import ConfigError
from tests.unit.config.cases import BAD, ENVIRON, ONE_ENGINE, URL, failure, parse

SECRET = "Zq9-tell-no-one"

SECRETIVE = f"""
models: {{small: fast}}
engines:
  fast:
    kind: vllm
    api_key: {SECRET}
    url: {URL}
    headers:
      X-Key: {SECRET}
  slow: {{kind: vllm, api_key: {SECRET}, url: {URL}, headers: {{X-Key: {SECRET}}}}}
server:
  keys:
  - name: alice
    key: {SECRET}
  - {{name: bob, key: "{SECRET}2"}}
"""

SECRET_PLACES = {
    "api_key": f"engines:\n  fast:\n    kind: vllm\n    url: {URL}\n    api_key: @\n",
    "header": f"engines:\n  fast:\n    kind: vllm\n    url: {URL}\n    headers:\n      X-Key: @\n",
    "headers": f"engines:\n  fast:\n    kind: vllm\n    url: {URL}\n    headers: @\n",
    "key": f"{ONE_ENGINE}server:\n  keys:\n  - name: a\n    key: @\n",
    "entry": f"{ONE_ENGINE}server:\n  keys:\n  - @\n",
    "keys": f"{ONE_ENGINE}server:\n  keys: @\n",
    "inline": f"engines: {{fast: {{kind: vllm, url: '{URL}', api_key: @}}}}\n",
}

WRONG_FORMS = [
    "[@]", "[@, @]", "{@: }", "{@: a}", "{a: @}", "{api_key:@}", "{key:@: @}", "[@", "{@", "'@", '"@', "'@' @",
    '"@\\q"', '"@\\n"', "!@", "*@", "&@", "%@", "`@", "|@", ">@", "- @", "? @", ": @", "@: @", "a,@", "a: @",
    "\t@", "@é", "${@", "!!int @", "!!binary @", "@\n          @: a", "@\n  @", "@ #", "${@}",
    "{@: 1, @: 2}", "@ ${NONE}", "{key: {@: @}}",
]  # fmt: skip


class TestSecrets:
    def test_the_messages_of_all_mistakes(self) -> None:
        told = "".join(failure(text) for text, _ in BAD.values())
        assert "${TOKEN}" in told
        assert ENVIRON["TOKEN"] not in told
        assert "abcdefg" not in told

    @pytest.mark.parametrize("form", WRONG_FORMS)
    @pytest.mark.parametrize("place", SECRET_PLACES)
    def test_a_secret_of_the_wrong_form(self, place: str, form: str) -> None:
        text = SECRET_PLACES[place].replace("@", form).replace("@", SECRET)
        assert SECRET not in failure(text)

    @settings(deadline=None)
    @given(st.integers(0, len(SECRETIVE)), st.text(" \n\t:{}[],#&*!|>'\"%@`-?$x", min_size=1, max_size=4))
    def test_a_slip_of_the_finger_elsewhere(self, at: int, typed: str) -> None:
        text = SECRETIVE[:at] + typed + SECRETIVE[at:]
        assert SECRET not in failure(text)

    @pytest.mark.parametrize(
        "key", ["kind", "url", "models", "concurrency", "transport", "timeouts", "probe", "managed"]
    )
    @pytest.mark.parametrize("value", ["${LEAK}", "[${LEAK}]", "a ${LEAK}", "{idle: ${LEAK}}"])
    def test_a_value_of_the_environment(self, key: str, value: str) -> None:
        engine = {"kind": "vllm", "url": URL, key: yaml.safe_load(f"'{value}'")}
        told = failure(yaml.safe_dump({"engines": {"fast": engine}, "models": {"a": value}}), {"LEAK": SECRET})
        assert told
        assert SECRET not in told

    def test_a_traceback(self) -> None:
        with pytest.raises(ConfigError) as caught:
            parse(SECRET_PLACES["api_key"].replace("@", f'"{SECRET}\\q"'))
        assert SECRET not in "".join(traceback.format_exception(caught.value))
