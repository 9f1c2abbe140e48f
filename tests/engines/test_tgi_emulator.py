"""The TGI that tests are run against speaks as the real one was recorded, and as its clients understand."""

import json
import re
from typing import Any

import huggingface_hub
import pytest
import text_generation
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError

from tests.support.client import RawClient, Reply
from tests.support.http1 import ReplyMessage
from tests.support.tgi import Fault, Tgi
from tests.support.wire import Recording, recording

pytestmark = pytest.mark.anyio

CAPITAL = "What is the capital of France?"
HI = [{"role": "user", "content": "Say hello."}]

SAME = [
    "generate", "generate-details", "generate-eos", "generate-stop", "generate-return-full-text",
    "generate-do-sample-no-seed", "generate-empty-inputs", "generate-temperature-zero", "generate-top-p-one",
    "generate-max-new-zero", "generate-stop-five", "generate-details-top-n", "generate-stream",
    "generate-stream-eos", "generate-stream-stop", "generate-stream-top-n", "generate-stream-no-max",
    "generate-stream-best-of", "root", "root-details", "root-stream", "root-error", "chat", "chat-eos",
    "chat-stop", "chat-logprobs", "chat-stream", "chat-stream-usage", "chat-stream-eos", "chat-stop-stream",
    "chat-top-logprobs-stream", "chat-null-fields", "chat-top-p-one", "chat-top-p-one-stream",
    "chat-unknown-field", "completion", "completion-eos", "completion-stop", "completion-batch",
    "completion-stream", "completion-stream-eos", "completion-stop-stream", "completion-batch-stream",
    "completion-prompt-empty", "completion-top-p-one-stream",
]  # fmt: skip


HOP = ("connection", "date")
VARYING = re.compile(r"content-length|x-.*-time|x-time-per-token")


def shape(reply: ReplyMessage) -> Any:
    """Status, headers and body as a client sees them, without what is another each time."""
    headers = sorted(
        name if VARYING.fullmatch(name) else f"{name}: {value}" for name, value in reply.headers if name not in HOP
    )
    match reply.headers.get("content-type"):
        case "text/event-stream":
            body: Any = [plain(event) for event in re.split(r"(?<=\n\n)", reply.body.decode())]
        case "application/json":
            body = plain(reply.json())
        case _:
            body = reply.body.decode()
    return reply.status, headers, body


def plain(value: Any, name: str = "") -> Any:
    """Without ids, times and numbers of the model's. An event of a stream is what it holds, if its frame is exact."""
    if isinstance(value, str) and value.startswith("data: {") and value.endswith("}\n\n"):
        return plain(json.loads(value[6:]))
    if isinstance(value, dict):
        return {key: plain(member, key) for key, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    return "..." if name in ("id", "created", "logprob", "seed") and value not in ("", None) else value


async def send(engine: Tgi, recorded: Recording) -> Reply:
    async with RawClient(engine.port) as client:
        await client.request(recorded.method, recorded.path, recorded.request_body, recorded.request_headers)
        return await client.finish()


def ending(body: Any) -> Any:
    """What a stream holds beside tokens; all of any other body."""
    return [event for event in body if not {"choices", "token"} & set(event)] if isinstance(body, list) else body


def likely(value: Any) -> Any:
    """Without the words of tokens that were not taken."""
    return json.loads(re.sub(r'"text": "[^"]*", "logprob"|"token": "[^"]*", "logprob"', '"logprob"', json.dumps(value)))


class TestRecordings:
    @pytest.mark.parametrize("name", SAME)
    async def test_it_answers_as_the_real_one_did(self, name: str) -> None:
        recorded = recording("tgi", name)
        async with Tgi() as engine:
            assert likely(shape(await send(engine, recorded))) == likely(shape(recorded.reply))

    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            *(
                (f"dead-{what}", Fault.DEAD)
                for what in ("generate", "generate-stream", "chat", "chat-stream", "health")
            ),
            *((f"died-mid-{what}", Fault.DIES) for what in ("generate", "generate-stream", "chat-stream")),
        ],
    )
    async def test_it_fails_as_the_real_one_did(self, name: str, fault: Fault) -> None:
        """What came before a stream failed had other words."""
        recorded = recording("tgi", name)
        async with Tgi(fault=fault) as engine:
            status, head, body = shape(await send(engine, recorded))
            real_status, real_head, real_body = shape(recorded.reply)
            assert (status, head) == (real_status, real_head)
            assert ending(body) == ending(real_body)
            assert (len(body) > len(ending(body))) == (len(real_body) > len(ending(real_body)))

    @pytest.mark.parametrize(
        "name", ["overload-generate", "overload-generate-stream", "overload-chat", "overload-chat-stream"]
    )
    async def test_it_is_overloaded_as_the_real_one_was(self, name: str) -> None:
        recorded = recording("tgi", name)
        async with Tgi(slots=0) as engine:
            assert shape(await send(engine, recorded)) == shape(recorded.reply)

    @pytest.mark.parametrize("name", ["auth-wrong-chat", "auth-missing-generate", "auth-missing-generate-stream"])
    async def test_it_asks_for_its_key(self, name: str) -> None:
        recorded = recording("tgi", name)
        async with Tgi(key="Sekret-1") as engine:
            assert shape(await send(engine, recorded)) == shape(recorded.reply)

    @pytest.mark.parametrize(
        "name", ["generate-null-parameters", "chat-stop-string", "chat-null-stream", "chat-seed-negative"]
    )
    async def test_what_is_of_the_wrong_type_is_refused_in_plain_text(self, name: str) -> None:
        recorded = recording("tgi", name)
        async with Tgi() as engine:
            reply = await send(engine, recorded)
            assert (reply.status, reply.headers.get("content-type")) == (422, "text/plain; charset=utf-8")
            assert shape(reply)[:2] == shape(recorded.reply)[:2]

    async def test_a_limit_above_1024_is_not_kept(self) -> None:
        async with Tgi() as engine, RawClient(engine.port) as client:
            asked = {"inputs": "COUNT please", "parameters": {"max_new_tokens": 1100}}
            await client.request("POST", "/generate", asked)
            assert (await client.finish()).headers.get("x-generated-tokens") == "2048"


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
class TestOfficialClient:
    """`text-generation`, which TGI's own repository has. It asks at `/`, and cannot read the chat streams of today."""

    async def test_an_answer(self) -> None:
        async with Tgi() as engine:
            client = text_generation.AsyncClient(engine.url)
            answer = await client.generate(CAPITAL, max_new_tokens=32, top_n_tokens=2)
        assert answer.generated_text == "The capital of France is Paris."
        assert (answer.details.finish_reason.value, answer.details.generated_tokens) == ("eos_token", 8)
        assert [len(top) for top in answer.details.top_tokens] == [2] * 8

    async def test_a_stream(self) -> None:
        async with Tgi() as engine:
            client = text_generation.AsyncClient(engine.url)
            said = [one async for one in client.generate_stream(CAPITAL, max_new_tokens=32)]
        assert "".join(one.token.text for one in said if not one.token.special) == "The capital of France is Paris."
        assert said[-1].generated_text == "The capital of France is Paris."
        assert said[-1].details.finish_reason.value == "eos_token"

    async def test_a_chat(self) -> None:
        async with Tgi() as engine:
            client = text_generation.AsyncClient(engine.url)
            answer = await client.chat([text_generation.types.Message(**HI[0])], max_tokens=8)
        assert answer.choices[0].message.content == "Hello! I'm here to help you"
        assert answer.usage["total_tokens"] == 41

    @pytest.mark.parametrize(
        ("options", "fields", "error"),
        [
            ({"slots": 0}, {}, text_generation.errors.OverloadedError),
            ({"fault": Fault.DEAD}, {}, text_generation.errors.GenerationError),
            ({}, {"stop_sequences": list("abcde")}, text_generation.errors.ValidationError),
        ],
        ids=["overloaded", "dead", "refused"],
    )
    async def test_errors_by_their_class(
        self, options: dict[str, Any], fields: dict[str, Any], error: type[Exception]
    ) -> None:
        async with Tgi(**options) as engine:
            client = text_generation.AsyncClient(engine.url)
            with pytest.raises(error):
                await client.generate(CAPITAL, **fields)
            with pytest.raises(error):
                assert [one async for one in client.generate_stream(CAPITAL, **fields)]


class TestSuccessor:
    """`huggingface_hub`, which has taken its place."""

    async def test_text(self) -> None:
        async with Tgi() as engine:
            client = huggingface_hub.AsyncInferenceClient(engine.url)
            asked = {"max_new_tokens": 32, "details": True, "return_full_text": False}
            answer = await client.text_generation(CAPITAL, **asked)
            stream = await client.text_generation(CAPITAL, **asked, stream=True)
            said = [one async for one in stream]
        assert (answer.generated_text, answer.details.generated_tokens) == ("The capital of France is Paris.", 8)
        assert (said[-1].generated_text, said[-1].details.input_length) == (answer.generated_text, 7)

    async def test_chats(self) -> None:
        async with Tgi() as engine:
            client = huggingface_hub.AsyncInferenceClient(base_url=engine.url)
            answer = await client.chat_completion(HI, max_tokens=8)
            stream = await client.chat_completion(HI, max_tokens=8, stream=True, stream_options={"include_usage": True})
            said = [one async for one in stream]
        assert answer.choices[0].message.content == "Hello! I'm here to help you"
        assert "".join(one.choices[0].delta.content for one in said[:-1]) == answer.choices[0].message.content
        assert said[-1].usage.total_tokens == answer.usage.total_tokens == 41

    @pytest.mark.parametrize(
        ("options", "fields", "error"),
        [
            ({"slots": 0}, {}, OverloadedError),
            ({"fault": Fault.DIES}, {}, GenerationError),
            ({}, {"max_new_tokens": 0}, ValidationError),
        ],
        ids=["overloaded", "dies", "refused"],
    )
    async def test_errors_by_their_class(
        self, options: dict[str, Any], fields: dict[str, Any], error: type[Exception]
    ) -> None:
        async with Tgi(**options) as engine:
            client = huggingface_hub.AsyncInferenceClient(engine.url)
            with pytest.raises(error):
                await client.text_generation(CAPITAL, **fields)
            with pytest.raises(error):
                assert [one async for one in await client.text_generation(CAPITAL, stream=True, **fields)]
