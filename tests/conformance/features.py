"""What is tried of every engine in every dialect, and what counts as working."""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import anyio
import jsonschema
import msgspec

from tests.conformance.ask import PNG, Answer, Ask, Assistant, Call, End, Refusal, Result, Turn, User
from tests.conformance.dialects import Dialect
from tests.conformance.engines import Engine

LIMIT = 8
HELLO = Ask(turns=(User("Say hello."),), limit=LIMIT)
YES_OR_NO = Ask(turns=(User("Is the sky blue? Answer yes or no, as JSON."),), limit=60)
COUNT = Ask(turns=(User("COUNT to a thousand: one, two, three, four, five,"),), limit=1500, stream=True)
"""Its answer is long; TGI's emulator knows it by its first word."""
WHOLE_AND_STREAMED = (False, True)
replace = msgspec.structs.replace


class Cell(NamedTuple):
    """What the table says: one of its few words, and what there is to add."""

    value: str
    note: str = ""


YES, ENGINE, DROPPED = Cell("yes"), Cell("engine"), Cell("dropped")


@dataclass(frozen=True)
class Talk:
    """A client that speaks `dialect` to a gateway, and the engine behind it."""

    dialect: Dialect
    engine: Engine

    async def ask(self, ask: Ask) -> Answer:
        return await self.dialect.answer(ask)

    async def refusal(self, ask: Ask) -> Refusal:
        """The error that it gets.

        Raises:
            AssertionError: it gets an answer.
        """
        try:
            answer = await self.ask(ask)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"answered as if nothing were wrong: {answer}")

    @property
    def sent(self) -> bytes:
        """What the engine was sent last."""
        return self.engine.asked[-1].body

    @property
    def told(self) -> bytes:
        """What the engine said last."""
        return b"".join(data for _, data in self.engine.asked[-1].sent)

    def ignored(self, *traces: bytes) -> Cell:
        """For an answer without what was asked for: whether the engine knew of the wish, by the names it has for it."""
        return ENGINE if any(trace in self.sent for trace in traces) else DROPPED


async def plain_answer(talk: Talk) -> Cell:
    answer = await talk.ask(HELLO)
    assert answer.text.strip()
    assert answer.end is End.LIMIT
    return YES


async def stream(talk: Talk) -> Cell:
    whole, streamed = [await talk.ask(replace(HELLO, stream=stream)) for stream in WHOLE_AND_STREAMED]
    assert streamed.pieces > 3
    assert streamed.text == whole.text
    assert streamed.end is End.LIMIT
    return Cell("yes", streamed.remark)


def question(*cities: str) -> User:
    return User(f"Weather in {' and '.join(cities)}?")


def shown(*cities: str) -> tuple[Turn, ...]:
    """A question for the weather there, its calls and results: a small model needs to see how it is done."""
    calls = tuple(Call(city, {"city": city}) for city in cities)
    return question(*cities), Assistant(calls=calls), *(Result(city, "20C") for city in cities)


ONE = Ask(turns=(*shown("Rome"), question("Paris")), tools=True, limit=80)
TWO = Ask(turns=(*shown("Rome", "Oslo"), *shown("Berlin", "Madrid"), question("Paris", "London")), tools=True, limit=80)


async def tool_call(talk: Talk) -> Cell:
    return await _called(talk, ONE, "Paris")


async def forced_tool_call(talk: Talk) -> Cell:
    return await _called(talk, replace(ONE, forced=True), "Paris")


async def parallel_tool_calls(talk: Talk) -> Cell:
    return await _called(talk, TWO, "Paris", "London")


async def _called(talk: Talk, ask: Ask, *cities: str) -> Cell:
    """Whether the answer is a call for each of the cities, in one piece and in a stream."""
    for stream in WHOLE_AND_STREAMED:
        answer = await talk.ask(replace(ask, stream=stream))
        assert answer.end is End.CALLS, answer
        found = [(call.name, call.arguments) for call in answer.calls]
        if 1 == len(found) < len(cities):
            return ENGINE
        assert found == [("get_weather", {"city": city}) for city in cities]
        ids = {call.id for call in answer.calls}
        assert len(ids) == len(cities)
        assert all(ids)
    return YES


async def tool_result(talk: Talk) -> Cell:
    texts = ("21 degrees", "21 degrees in the shade, and sunny all day long")
    asked = question("Paris"), Assistant(calls=(Call("Paris", {"city": "Paris"}),))
    short, long = [
        await talk.ask(Ask(turns=(*asked, Result("Paris", text)), tools=True, limit=LIMIT)) for text in texts
    ]
    assert texts[1].encode() in talk.sent
    assert short.text.strip() or short.calls
    assert talk.engine.emulated or (long.prompt_tokens or 0) > (short.prompt_tokens or 0)
    return YES


async def structured_output(talk: Talk) -> Cell:
    schema = talk.engine.schema
    for stream in WHOLE_AND_STREAMED:
        answer = await talk.ask(replace(YES_OR_NO, schema=schema, stream=stream))
        jsonschema.validate(json.loads(answer.text), schema)
        assert answer.end is End.STOP
    return YES


async def image(talk: Talk) -> Cell:
    without, answer = [
        await talk.ask(Ask(turns=(User("What is this?", image=image),), limit=LIMIT)) for image in (False, True)
    ]
    assert PNG.encode() in talk.sent
    assert answer.text.strip()
    assert talk.engine.emulated or (answer.prompt_tokens or 0) > (without.prompt_tokens or 0)
    return YES


def thought(term: str, result: str) -> tuple[Turn, ...]:
    return User(f"{term}?"), Assistant(result, thoughts=f"{term} is {result}.")


async def reasoning(talk: Talk) -> Cell:
    turns = (*thought("2+2", "4"), *thought("2+3", "5"), User("2+2?"))
    for stream in WHOLE_AND_STREAMED:
        answer = await talk.ask(Ask(turns=turns, think=True, limit=60, stream=stream))
        if not answer.thoughts:
            return talk.ignored(b"reasoning", b"think")
        assert answer.text.strip()
        assert answer.thoughts.strip() not in answer.text
    return YES


async def reasoning_in_vain(talk: Talk) -> Cell:
    answer = await talk.ask(replace(HELLO, think=True))
    assert answer.text.strip()
    assert not answer.thoughts
    return YES


async def logprobs(talk: Talk) -> Cell:
    for stream in WHOLE_AND_STREAMED:
        answer = await talk.ask(replace(HELLO, logprobs=2, stream=stream))
        if not answer.tokens:
            return talk.ignored(b"logprobs")
        assert len(answer.tokens) == LIMIT
        assert all(token.logprob <= 0 for token in answer.tokens)
        assert {token.alternatives for token in answer.tokens} == {2}
    return YES


async def usage(talk: Talk) -> Cell:
    for stream in WHOLE_AND_STREAMED:
        answer = await talk.ask(replace(HELLO, stream=stream))
        assert answer.output_tokens == LIMIT
        assert answer.prompt_tokens == _counted(talk.told)
    return YES


def _counted(told: bytes) -> int:
    """The prompt's tokens as the engine last said, in its answer's head or body."""
    last = {name: int(number) for name, number in re.findall(rb'"?([\w-]+)"?: ?(\d+)', told)}
    names = (b"prompt_tokens", b"prompt_eval_count", b"input_tokens", b"input_length", b"x-prompt-tokens")
    name = next((name for name in names if name in last), None)
    assert name is not None, f"the engine counted nothing: {told!r}"
    return sum(last.get(part, 0) for part in (name, b"cache_creation_input_tokens", b"cache_read_input_tokens"))


async def stop_sequence(talk: Talk) -> Cell:
    free = await talk.ask(HELLO)
    word = free.text.split()[2]
    for stream in WHOLE_AND_STREAMED:
        answer = await talk.ask(replace(HELLO, stop=word, stream=stream))
        assert answer.text.strip() == free.text.partition(word)[0].strip()
        assert answer.end in (End.STOP, End.SEQUENCE)
    if talk.dialect.tells_stop_sequences and answer.end is End.STOP:
        return Cell("yes", "The answer ends as if by itself: the engine does not say that a stop sequence did it.")
    return YES


async def two_answers(talk: Talk) -> Cell:
    for stream in WHOLE_AND_STREAMED:
        answer = await talk.ask(replace(HELLO, n=2, temperature=0.1, stream=stream))
        if len(answer.texts) == 1:
            return talk.ignored(b'"n"')
        assert len(answer.texts) == 2
        assert all(answer.texts)
    return YES


async def unknown_model(talk: Talk) -> Cell:
    for stream in WHOLE_AND_STREAMED:
        refusal = await talk.refusal(replace(HELLO, model="chta", stream=stream))
        assert refusal.status == 404, refusal
        assert "`chta`" in refusal.message
        assert refusal.code in ("model_not_found", "not_found_error", "")
    return YES


async def prompt_too_long(talk: Talk) -> Cell:
    told = []
    for stream in WHOLE_AND_STREAMED:
        refusal = await talk.refusal(replace(HELLO, turns=(User("word " * 5000),), stream=stream))
        assert refusal.status in (400, 422), refusal
        assert re.search("context|max_new_tokens", refusal.message), refusal
        told.append(refusal.words)
    whole, streamed = told
    return Cell("yes", f"Status {whole}" if whole == streamed else f"Status {whole}; of a stream {streamed}")


async def leaving(talk: Talk) -> Cell:
    before = len(talk.engine.asked)
    await talk.dialect.leave(COUNT)
    (request,) = talk.engine.asked[before:]
    with anyio.fail_after(10):
        await request.connection.wait_closed()
    assert not talk.told.endswith(b"0\r\n\r\n"), "the engine came to the end"
    await talk.engine.idle()
    return YES


class Feature(NamedTuple):
    check: Callable[[Talk], Awaitable[Cell]]
    means: str
    """What `yes` says of it."""


FEATURES = {
    "plain answer": Feature(plain_answer, "a text, and why it ended"),
    "stream": Feature(stream, "the same text as without, in pieces"),
    "tool call": Feature(tool_call, "name, arguments as a JSON object, and the reason of ending that is the dialect's"),
    "forced tool call": Feature(forced_tool_call, "the same, with `tool_choice` `required` (Anthropic: `any`)"),
    "parallel tool calls": Feature(parallel_tool_calls, "two calls in one answer, each with its id and arguments"),
    "tool result": Feature(tool_result, "a conversation with a call and its result goes on, and the model reads it"),
    "structured output": Feature(structured_output, "the answer is JSON that is valid by a schema"),
    "image": Feature(image, "the image reaches the model"),
    "reasoning": Feature(
        reasoning, "thoughts in the dialect's place for them, not in the text; earlier ones are carried"
    ),
    "reasoning in vain": Feature(reasoning_in_vain, "asked to think, a model that cannot answers all the same"),
    "log probabilities": Feature(logprobs, "one for each token, with two alternatives"),
    "usage": Feature(usage, "tokens of prompt and answer as the engine counted them"),
    "stop sequence": Feature(stop_sequence, "the answer ends before it, and says so"),
    "two answers": Feature(two_answers, "`n: 2` gives two"),
    "unknown model": Feature(unknown_model, "404 in the dialect's form, with the model's name"),
    "prompt too long": Feature(prompt_too_long, "an error in the dialect's form that says so; nothing is cut"),
    "client leaves": Feature(leaving, "in the middle of a stream: the engine stops at once and is free"),
}
"""In the order of the table's rows."""

OF_THE_MODEL = ("image", "reasoning")
"""Whether these work is for a model to say, and the one tested here is small."""


async def find(feature: str, talk: Talk) -> Cell:
    """What the table has to say.

    Raises:
        AssertionError: a client gets what the table has no word for.
    """
    asked = len(talk.engine.asked)
    try:
        return await FEATURES[feature].check(talk)
    except Refusal as caught:
        refusal = caught
    words = f"{refusal.words}, “{refusal.message}”"
    if len(talk.engine.asked) == asked or not talk.told:
        assert _names(refusal, talk.dialect.fields.get(feature)), f"not for what was asked, or not by name: {refusal}"
        return Cell("refused", words)
    if feature in OF_THE_MODEL:
        return Cell("engine", f"The model tested cannot, and its engine says so: {words}")
    return Cell("refused", f"The engine says {words}")


def _names(refusal: Refusal, field: str | None) -> bool:
    """Whether it says that it is about this field."""
    if field is None:
        return False
    return bool(re.match(rf"{re.escape(field)}\b", refusal.param or "")) or f"`{field}" in refusal.message
