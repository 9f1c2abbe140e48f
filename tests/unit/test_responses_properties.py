"""What holds for every conversation and every answer that is translated between Responses and chats."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from tests.support.responses import (
    ASK,
    IMAGE,
    TOOL,
    call,
    called,
    chat_for,
    read_response,
    result,
    says,
    thought,
    whole,
    write,
)
from tests.support.sse import FIN, ROLE, TC, USE, R, read_events

HI = {"role": "user", "content": "hi"}

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ARGUMENTS = st.dictionaries(WORDS, st.integers() | WORDS, max_size=3).map(json.dumps)
TEXTS = st.builds(R, st.sampled_from(["content", "reasoning", "reasoning_content"]), WORDS)


@st.composite
def answers(draw: st.DrawFn) -> list[bytes]:
    """An answer as OpenAI's events: texts and thoughts, then calls with their parts in any order between them."""
    queues = []
    for at, arguments in enumerate(draw(st.lists(ARGUMENTS, max_size=3))):
        place = draw(st.integers(0, len(arguments)))
        queues.append([TC(at, f"c{at}", "f", arguments[:place]), TC(at, args=arguments[place:])])
    order = draw(st.permutations([at for at, queue in enumerate(queues) for _ in queue[1:]]))
    parts = [queue[0] for queue in queues] + [queues[at][1] for at in order]
    return [ROLE, *draw(st.lists(TEXTS, max_size=5)), *parts, FIN(draw(st.sampled_from(["stop", "length"]))), USE(3, 2)]


def without_ids(stream: bytes) -> list[Any]:
    """The events, but for the ids and times that are new with each answer."""
    hidden = ("id", "item_id", "created_at", "completed_at")

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(inner) for name, inner in value.items() if name not in hidden}
        return [bare(inner) for inner in value] if isinstance(value, list) else value

    return [bare(event.json) for event in read_events(stream)]


def together(events: list[bytes]) -> list[tuple[str, ...]]:
    """What the events say, without the translator."""
    said: list[tuple[str, ...]] = []
    calls: dict[int, str] = {}
    for event in read_events(b"".join(events)):
        told = event.choice.get("delta", {})
        for kind, key in (("reasoning", "reasoning"), ("reasoning", "reasoning_content"), ("message", "content")):
            if told.get(key):
                before = said.pop()[1] if said and said[-1][0] == kind else ""
                said.append((kind, before + told[key]))
        for part in told.get("tool_calls", []):
            calls[part["index"]] = calls.get(part["index"], "") + part["function"].get("arguments", "")
    return [*said, *(("function_call", f"c{at}", "f", calls[at]) for at in sorted(calls))]


@given(answers())
def test_any_answer_is_read_by_a_strict_client(events: list[bytes]) -> None:
    told = read_response(write(*events))
    assert told.said == together(events)
    assert told.response is not None
    assert told.response["usage"]["total_tokens"] == 5


@given(answers(), st.data())
def test_how_the_events_come_makes_no_difference(events: list[bytes], choose: st.DataObject) -> None:
    places = sorted(choose.draw(st.sets(st.integers(0, len(events)))))
    blocks = [b"".join(events[a:b]) for a, b in zip([0, *places], [*places, len(events)], strict=True)]
    assert without_ids(write(*blocks)) == without_ids(write(*events))


@given(WORDS | st.none(), WORDS | st.none(), st.lists(ARGUMENTS, max_size=3))
def test_what_an_engine_said_comes_back_to_it_unchanged(
    said: str | None, thinking: str | None, calls: list[str]
) -> None:
    tool_calls = [called(f"c{at}", "f", arguments) for at, arguments in enumerate(calls)]
    output = whole({"content": said, "reasoning_content": thinking, "tool_calls": tool_calls})["output"]
    *before, last = chat_for(input=[says("user", "hi"), *output])["messages"]
    if output:
        assert before == [HI]
        assert (last.get("content") or None, last.get("reasoning_content")) == (said, thinking)
        assert last.get("tool_calls", []) == tool_calls


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.just("type"), inner, max_size=3),
    max_leaves=6,
)
ITEMS = st.sampled_from(
    [HI, says("user", [IMAGE]), says("system", "a"), thought("a"), call("c1", "f", "{}"), result(), result([IMAGE])]
)


@given(st.sampled_from(["input", "tools", "tool_choice", "text", "reasoning", "instructions", "include"]), JSON)
def test_any_member_of_any_form_is_carried_or_refused(name: str, value: Any) -> None:
    try:
        chat = chat_for(**ASK | {"tools": [TOOL], name: value})
    except InvalidRequest as refused:
        assert refused.message  # noqa: PT017 - either is right
    else:
        assert chat["messages"]


@given(st.lists(ITEMS, min_size=1, max_size=8))
def test_no_two_messages_of_the_assistant_follow_each_other(items: list[dict[str, Any]]) -> None:
    roles = [message["role"] for message in chat_for(input=items)["messages"]]
    assert not any(pair == ("assistant", "assistant") for pair in itertools.pairwise(roles))
    assert roles.count("tool") == sum(item.get("type") == "function_call_output" for item in items)
