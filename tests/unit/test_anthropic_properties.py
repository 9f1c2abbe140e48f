"""What holds for every conversation and every answer that is translated between Anthropic's dialect and OpenAI's."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from tests.support.messages import (
    IMAGE,
    LINK,
    TOOL,
    USER,
    called,
    chat_for,
    read_message,
    result,
    text,
    thinking,
    tool_use,
    whole,
    write,
)
from tests.support.sse import FIN, ROLE, TC, USE, R, read_events

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
OBJECTS = st.dictionaries(WORDS, st.integers() | WORDS | st.none() | st.lists(st.booleans(), max_size=2), max_size=3)


@st.composite
def cut(draw: st.DrawFn, value: str) -> list[str]:
    """`value` in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(value)), max_size=4)))
    return [value[start:end] for start, end in zip([0, *places], [*places, len(value)], strict=True)]


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Parallel calls as events, their parts in any order between them, and as blocks."""
    inputs = draw(st.lists(OBJECTS, min_size=1, max_size=3))
    queues: list[list[bytes]] = []
    for at, arguments in enumerate(inputs):
        first, *rest = draw(cut(json.dumps(arguments)))
        queues.append([TC(at, f"c{at}", "f", first), *(TC(at, args=part) for part in rest)])
    events = [queue.pop(0) for queue in queues]  # they begin in order
    order = draw(st.permutations([at for at, queue in enumerate(queues) for _ in queue]))
    events += [queues[at].pop(0) for at in order]
    return events, [tool_use(f"c{at}", "f", **arguments) for at, arguments in enumerate(inputs)]


TEXTS = st.lists(st.tuples(st.sampled_from(["content", "reasoning", "reasoning_content"]), WORDS), max_size=5)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[bytes], list[dict[str, Any]]]:
    """An answer as OpenAI's events, and the content that it has."""
    texts = draw(TEXTS)
    events, content = draw(st.just(([], [])) | calls())
    blocks: list[dict[str, Any]] = []
    for key, words in texts:
        kind = "text" if key == "content" else "thinking"
        if not blocks or blocks[-1]["type"] != kind:
            blocks.append(text("") if kind == "text" else thinking(""))
        blocks[-1][kind] += words
    return [ROLE, *(R(key, words) for key, words in texts), *events, FIN("stop"), USE(3, 2)], [*blocks, *content]


def without_id(stream: bytes) -> list[dict[str, Any]]:
    events = [event.json for event in read_events(stream)]
    del events[0]["message"]["id"]
    return events


@given(answers())
def test_any_answer_is_read_by_a_strict_client(answer: tuple[list[bytes], list[dict[str, Any]]]) -> None:
    events, content = answer
    told = read_message(write(*events))
    assert told.parsed == content
    assert told.usage["input_tokens"] == 3


@given(answers(), st.data())
def test_how_the_events_come_makes_no_difference(answer: tuple[list[bytes], Any], data: st.DataObject) -> None:
    events, _ = answer
    places = sorted(data.draw(st.sets(st.integers(0, len(events)))))
    blocks = [b"".join(events[a:b]) for a, b in zip([0, *places], [*places, len(events)], strict=True)]
    assert without_id(write(*blocks)) == without_id(write(*events))


@given(WORDS | st.none(), WORDS | st.none(), st.lists(OBJECTS, max_size=3))
def test_what_an_engine_said_comes_back_to_it_unchanged(
    said: str | None, thought: str | None, inputs: list[dict[str, Any]]
) -> None:
    calls = [called(f"c{at}", "f", json.dumps(arguments)) for at, arguments in enumerate(inputs)]
    message = {"content": said, "reasoning_content": thought, "tool_calls": calls}
    [back] = chat_for(messages=[{"role": "assistant", "content": whole(message)["content"]}])["messages"]
    assert (back.get("content") or None, back.get("reasoning_content")) == (said, thought)
    found = [(call["id"], json.loads(call["function"]["arguments"])) for call in back.get("tool_calls", [])]
    assert found == [(f"c{at}", arguments) for at, arguments in enumerate(inputs)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.just("type"), inner, max_size=3),
    max_leaves=6,
)
BLOCKS = st.sampled_from(
    [
        text("a"),
        IMAGE,
        LINK,
        thinking("a"),
        {"type": "redacted_thinking"},
        tool_use("t", "f"),
        result(),
        result([IMAGE]),
    ]
)
FULL: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "messages": [USER],
    "system": [text("a")],
    "tools": [TOOL],
    "tool_choice": {"type": "any"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "u"},
}


def carried(**fields: Any) -> dict[str, Any] | None:
    """The chat, or `None` where the request is refused."""
    try:
        return chat_for(**fields)
    except InvalidRequest:
        return None


@given(st.sampled_from(sorted(FULL)), JSON)
def test_any_member_of_any_form_is_carried_or_refused(name: str, value: Any) -> None:
    chat = carried(**FULL | {name: value})
    assert chat is None or chat["messages"]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.lists(BLOCKS | JSON)), min_size=1))
def test_any_conversation_is_carried_or_refused(turns: list[tuple[str, list[Any]]]) -> None:
    chat = carried(messages=[{"role": role, "content": blocks} for role, blocks in turns])
    assert chat is None or chat["messages"]


TALK = {
    "user": WORDS.map(text) | WORDS.map(result) | st.sampled_from([IMAGE, LINK, result([IMAGE])]),
    "assistant": WORDS.map(text) | WORDS.map(thinking) | st.builds(tool_use, WORDS, WORDS),
}
TURNS = st.sampled_from(sorted(TALK)).flatmap(lambda role: st.tuples(st.just(role), st.lists(TALK[role], max_size=4)))


@given(st.lists(TURNS, min_size=1, max_size=5))
def test_nothing_of_a_conversation_is_lost_and_roles_take_turns(turns: list[tuple[str, list[dict[str, Any]]]]) -> None:
    messages = chat_for(messages=[{"role": role, "content": blocks} for role, blocks in turns])["messages"]
    told = json.dumps(messages, ensure_ascii=False)
    for block in (block for _, blocks in turns for block in blocks):
        words = [block[key] for key in ("text", "thinking", "name", "id", "tool_use_id") if key in block]
        assert all(json.dumps(word, ensure_ascii=False)[1:-1] in told for word in words)
    images = sum("source" in block or "source" in str(block.get("content")) for _, blocks in turns for block in blocks)
    assert told.count('"image_url": {') == images
    roles = [message["role"] for message in messages]
    assert all(one != next_one or one == "tool" for one, next_one in itertools.pairwise(roles))
