"""What a real llama.cpp tells of its load, and where the time of its requests went."""

from typing import Any

import anyio
import pytest

from tests.real.conftest import KEY
from tests.real.llamacpp import Watcher
from tests.support.client import get, post_json
from tests.support.gateway import CHAT, RunningGateway

pytestmark = [pytest.mark.anyio, pytest.mark.real]

HEADERS = {"Authorization": f"Bearer {KEY}"}


def question(tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Tell me a story."}
    return {"model": "chat", "messages": [message], "max_tokens": tokens, "ignore_eos": True, "stream": True, **fields}


async def test_the_wait_for_a_slot_is_told_apart_from_prefill(sluice: RunningGateway, llamacpp: Watcher) -> None:
    await llamacpp.until_idle()
    await post_json(sluice.port, CHAT, question(4), HEADERS)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):  # all slots that it has, taken by somebody who does not ask Sluice
            tasks.start_soon(llamacpp.ask, CHAT, question(100))
        await llamacpp.until_busy(slots=2)
        reply = await post_json(sluice.port, CHAT, question(4), HEADERS)
    at_once, waited = [await sluice.record(at) for at in range(2)]
    assert b"prompt_progress" not in reply.body
    assert at_once["engine_queue"] < waited["engine_queue"]
    prefill_and_queue = waited["ttft"] - waited["dispatched"]
    assert waited["engine_queue"] + waited["engine_prefill"] == pytest.approx(prefill_and_queue, rel=0.1, abs=0.2)


async def test_the_wait_for_a_place_is_told_apart_from_the_engines_own(
    sluice: RunningGateway, llamacpp: Watcher
) -> None:
    await llamacpp.until_idle()
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(post_json, sluice.port, CHAT, question(60), HEADERS)
        await llamacpp.until_busy(slots=2)
        await post_json(sluice.port, CHAT, question(4), HEADERS)
        assert await llamacpp.metric("requests_deferred") == 0
    records = {record["completion_tokens"]: record for record in [await sluice.record(at) for at in range(3)]}
    assert "queued" not in records[60]
    assert records[4]["queued"] > 5 * records[4]["engine_queue"]


async def test_its_load_and_what_its_model_can_do(sluice: RunningGateway, llamacpp: Watcher) -> None:
    await llamacpp.until_idle()
    with anyio.fail_after(20):
        while not (card := await engine_card(sluice))["load"]:
            await anyio.sleep(0.1)
    assert (card["capacity"], card["load"]["waiting"]) == (2, 0)
    assert card["load"]["prefix_hits"] <= card["load"]["prefix_queries"]
    [model] = card["models"]
    assert (model["context"], model["quantization"], "completion" in model["capabilities"]) == (2048, "Q4_1", True)


async def engine_card(sluice: RunningGateway) -> dict[str, Any]:
    [card] = (await get(sluice.port, "/admin/engines", HEADERS)).json()["engines"]
    return dict(card)
