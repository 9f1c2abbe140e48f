"""The `openai` library against Sluice and a real llama.cpp: what its users do, with both of its clients."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.real.conftest import KEY
from tests.real.llamacpp import ALIAS, LONG_ANSWER, Watcher
from tests.real.sdk import Sdk, sdk_client
from tests.support.client import post_json
from tests.support.gateway import CHAT, COMPLETIONS, RunningGateway

pytestmark = [pytest.mark.anyio, pytest.mark.real]

SKY = [{"role": "user", "content": "Why is the sky blue?"}]
REPEATABLE = {"temperature": 0, "seed": 7, "extra_body": {"cache_prompt": False}}


@pytest.fixture(params=["sync", "async"])
async def sdk(request: pytest.FixtureRequest, sluice: RunningGateway) -> AsyncIterator[Sdk]:
    async with sdk_client(request.param, sluice.url, KEY) as client:
        yield client


def chat(client: Any, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "chat", "messages": SKY, "max_tokens": 8, **fields})


def complete(client: Any, **fields: Any) -> Any:
    return client.completions.create(**{"model": "chat", "prompt": "One, two, three,", "max_tokens": 8, **fields})


def text_of(chunks: list[Any], choice: int = 0) -> str:
    parts = [part for chunk in chunks for part in chunk.choices if part.index == choice]
    return "".join(part.delta.content or "" for part in parts)


class TestChat:
    async def test_an_answer_under_the_engines_own_model_name(self, sdk: Sdk) -> None:
        reply = await sdk(lambda client: chat(client))
        assert reply.choices[0].message.role == "assistant"
        assert reply.choices[0].message.content
        assert reply.model == ALIAS
        assert reply.usage.completion_tokens == 8

    async def test_max_tokens_cuts_it_off_and_says_so(self, sdk: Sdk) -> None:
        reply = await sdk(lambda client: chat(client, max_tokens=3))
        assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 3)

    async def test_a_stream_is_the_same_answer_in_pieces(self, sdk: Sdk) -> None:
        whole = await sdk(lambda client: chat(client, **REPEATABLE))
        chunks = await sdk.all(lambda client: chat(client, **REPEATABLE, stream=True))
        assert text_of(chunks) == whole.choices[0].message.content
        assert len([chunk for chunk in chunks if chunk.choices[0].delta.content]) == 8
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == "length"

    async def test_usage_comes_last_when_asked_for(self, sdk: Sdk) -> None:
        *others, last = await sdk.all(
            lambda client: chat(client, stream=True, stream_options={"include_usage": True}, max_tokens=4)
        )
        assert last.choices == []
        assert last.usage.completion_tokens == 4
        assert not any(chunk.usage for chunk in others)

    async def test_the_same_seed_gives_the_same_answer(self, sdk: Sdk) -> None:
        fields = {**REPEATABLE, "temperature": 1.0, "max_tokens": 16}
        answers = {(await sdk(lambda client: chat(client, **fields))).choices[0].message.content for _ in range(2)}
        assert len(answers) == 1

    async def test_several_choices(self, sdk: Sdk) -> None:
        reply = await sdk(lambda client: chat(client, n=2))
        assert sorted(choice.index for choice in reply.choices) == [0, 1]
        assert all(choice.message.content for choice in reply.choices)

    async def test_several_choices_streamed(self, sdk: Sdk) -> None:
        chunks = await sdk.all(lambda client: chat(client, n=2, stream=True))
        assert text_of(chunks, choice=0)
        assert text_of(chunks, choice=1)
        ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert ends == ["length", "length"]

    async def test_a_stop_text_ends_the_answer_and_is_not_in_it(self, sdk: Sdk) -> None:
        messages = [{"role": "user", "content": "Count from one to ten: one, two, three,"}]
        fields = {**REPEATABLE, "messages": messages, "max_tokens": 40}
        free = (await sdk(lambda client: chat(client, **fields))).choices[0].message.content
        word = free.split()[2]
        reply = await sdk(lambda client: chat(client, **fields, stop=[word]))
        assert reply.choices[0].finish_reason == "stop"
        assert word not in reply.choices[0].message.content
        assert free.startswith(reply.choices[0].message.content)

    async def test_log_probabilities(self, sdk: Sdk) -> None:
        reply = await sdk(lambda client: chat(client, logprobs=True, top_logprobs=3, max_tokens=2, temperature=0))
        tokens = reply.choices[0].logprobs.content
        assert len(tokens) == 2
        assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in tokens)

    async def test_content_in_parts(self, sdk: Sdk) -> None:
        parts = [{"type": "text", "text": "Why is the sky "}, {"type": "text", "text": "blue?"}]
        reply = await sdk(lambda client: chat(client, messages=[{"role": "user", "content": parts}]))
        assert reply.choices[0].message.content

    async def test_an_answer_in_the_form_of_a_json_schema(self, sdk: Sdk) -> None:
        schema = {
            "type": "object",
            "properties": {"blue": {"enum": ["yes", "no"]}, "sure": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["blue", "sure"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "sky", "strict": True, "schema": schema}}
        reply = await sdk(lambda client: chat(client, response_format=form, temperature=0, max_tokens=300))
        answer = json.loads(reply.choices[0].message.content)
        assert answer["blue"] in ("yes", "no")
        assert 1 <= answer["sure"] <= 9


class TestCompletions:
    async def test_a_text_goes_on(self, sdk: Sdk) -> None:
        reply = await sdk(lambda client: complete(client, temperature=0))
        assert "four" in reply.choices[0].text
        assert reply.choices[0].finish_reason == "length"

    async def test_a_stream_is_the_same_text_in_pieces(self, sdk: Sdk) -> None:
        whole = await sdk(lambda client: complete(client, **REPEATABLE))
        chunks = await sdk.all(lambda client: complete(client, **REPEATABLE, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        assert len(chunks) > 4

    async def test_two_prompts_in_one_stream(self, sdk: Sdk) -> None:
        asked = {"prompt": ["One, two,", "A, B, C,"], "extra_body": {"ignore_eos": True}}
        chunks = await sdk.all(lambda client: complete(client, stream=True, **asked))
        ends = {choice.index: choice.finish_reason for chunk in chunks for choice in chunk.choices}
        assert ends == {0: "length", 1: "length"}


class TestModels:
    async def test_the_list_has_aliases_and_own_names(self, sdk: Sdk) -> None:
        assert {model.id for model in await sdk.all(lambda client: client.models.list())} == {"chat", ALIAS}

    async def test_one_by_its_name(self, sdk: Sdk) -> None:
        model = await sdk(lambda client: client.models.retrieve("chat"))
        assert (model.id, model.object, model.max_model_len) == ("chat", "model", 2048)

    async def test_one_that_is_not_there(self, sdk: Sdk) -> None:
        with pytest.raises(openai.NotFoundError, match=r"Did you mean `chat`\?"):
            await sdk(lambda client: client.models.retrieve("chatt"))


class TestErrors:
    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    async def test_an_unknown_model_names_the_nearest_one(self, sdk: Sdk, stream: bool) -> None:
        with pytest.raises(openai.NotFoundError, match=r"`chta` does not exist\. Did you mean `chat`\?") as caught:
            await sdk(lambda client: chat(client, model="chta", stream=stream))
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_a_wrong_key(self, sluice: RunningGateway, kind: str) -> None:
        async with sdk_client(kind, sluice.url, "sk-wrong") as stranger:
            with pytest.raises(openai.AuthenticationError, match="The API key is not valid"):
                await stranger(lambda client: chat(client))

    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    async def test_a_prompt_that_is_too_long_is_refused_in_llama_cpps_words(self, sdk: Sdk, stream: bool) -> None:
        messages = [{"role": "user", "content": "word " * 3000}]
        with pytest.raises(openai.BadRequestError, match=r"exceeds the available context size \(2048 tokens\)"):
            await sdk(lambda client: chat(client, messages=messages, stream=stream))

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"messages": "hi"}, "`messages`: Expected `array`, got `str`"),
            ({"messages": []}, "`messages` is empty"),
            ({"model": 7}, "`model`: Expected `str`, got `int`"),
            ({"extra_body": {"stream": "yes"}}, "`stream`: Expected `bool"),
            ({"temperature": "hot"}, "Field 'temperature': .* must be number"),
        ],
        ids=["messages", "no-messages", "model", "stream", "temperature"],
    )
    async def test_fields_of_a_wrong_type(self, sdk: Sdk, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(openai.BadRequestError, match=message):
            await sdk(lambda client: chat(client, **fields))

    async def test_giving_up_frees_the_slot(self, sdk: Sdk, sluice: RunningGateway, llamacpp: Watcher) -> None:
        finished = await llamacpp.metric("tokens_predicted_total")
        with pytest.raises(openai.APITimeoutError):
            await sdk(
                lambda client: chat(
                    client.with_options(timeout=1.0), max_tokens=LONG_ANSWER, extra_body={"ignore_eos": True}
                )
            )
        await llamacpp.until_idle()
        assert await llamacpp.metric("tokens_predicted_total") < finished + LONG_ANSWER
        assert (await sluice.record())["outcome"] == "cancelled"


class TestNothingIsChanged:
    """Straight from the engine and through Sluice, byte for byte but for what differs each time."""

    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    @pytest.mark.parametrize(
        ("path", "question"),
        [(CHAT, {"messages": SKY}), (COMPLETIONS, {"prompt": "One, two, three,"})],
        ids=["chat", "completions"],
    )
    async def test_an_answer(
        self, sluice: RunningGateway, llamacpp: Watcher, path: str, question: dict[str, Any], stream: bool
    ) -> None:
        fixed = {"max_tokens": 12, "temperature": 0, "cache_prompt": False, "stream": stream}
        body = {"model": ALIAS, **question, **fixed, "stream_options": {"include_usage": True}}
        straight = await llamacpp.ask(path, body)
        through = await post_json(sluice.port, path, body, {"Authorization": f"Bearer {KEY}"})
        assert (through.status, without_chance(through.body)) == (200, without_chance(straight))
        assert len(without_chance(straight)) > 200


def without_chance(body: bytes) -> bytes:
    """An answer without its id and its times."""
    return re.sub(rb'"id":"[^"]*"|"created":\d+|"timings":\{[^}]*\}', b"", body)
