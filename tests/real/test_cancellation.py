"""Clients that leave a real llama.cpp in the middle of its work: it stops, and its slots are free for others."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from tests.real.conftest import KEY
from tests.real.llamacpp import LONG_ANSWER, Watcher
from tests.support.client import RawClient, post_json
from tests.support.gateway import CHAT, RunningGateway, gateway
from tests.support.sse import finish_reasons, is_clean

pytestmark = [pytest.mark.anyio, pytest.mark.real]

HEADERS = {"Authorization": f"Bearer {KEY}"}
TOKEN = b'"content":"'
LEAVE = pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["fin", "reset"])


def question(text: str = "Tell me a story.", **fields: Any) -> dict[str, Any]:
    """One whose answer has no end of its own."""
    message = {"role": "user", "content": text}
    return {"model": "chat", "messages": [message], "max_tokens": LONG_ANSWER, "ignore_eos": True, **fields}


@pytest.fixture
async def finished_before(llamacpp: Watcher) -> float:
    """Tokens of all answers that llama.cpp has finished so far."""
    await llamacpp.until_idle()
    return await llamacpp.metric("tokens_predicted_total")


@pytest.mark.usefixtures("finished_before")
class TestLeaving:
    async def given_up(self, llamacpp: Watcher, finished_before: float) -> None:
        """Waits until llama.cpp has nothing to do, which is not because it came to the end of the long answer."""
        await llamacpp.until_idle()
        assert await llamacpp.metric("tokens_predicted_total") - finished_before < LONG_ANSWER

    @LEAVE
    async def test_in_the_middle_of_a_stream(
        self, sluice: RunningGateway, llamacpp: Watcher, finished_before: float, leave: Callable[[RawClient], None]
    ) -> None:
        async with RawClient(sluice.port) as client:
            await client.request("POST", CHAT, question(stream=True), HEADERS)
            await client.read_until(TOKEN, count=5, timeout=60)
            assert await llamacpp.busy_slots() == 1
            leave(client)
            await self.given_up(llamacpp, finished_before)
        record = await sluice.record()
        assert (record["outcome"], record["status"]) == ("cancelled", 200)
        assert record["events"] < LONG_ANSWER

    @pytest.mark.parametrize(
        ("stream", "leave"), [(False, RawClient.close), (True, RawClient.reset)], ids=["whole", "streamed"]
    )
    async def test_while_a_long_prompt_is_read(
        self,
        sluice: RunningGateway,
        llamacpp: Watcher,
        finished_before: float,
        leave: Callable[[RawClient], None],
        stream: bool,
    ) -> None:
        async with RawClient(sluice.port) as client:
            long = question("word " * 900, stream=stream, cache_prompt=False)
            await client.request("POST", CHAT, long, HEADERS)
            await anyio.sleep(0.5)  # llama.cpp does not say what it is doing before it has read the prompt
            leave(client)
            await self.given_up(llamacpp, finished_before)
        record = await sluice.record()
        assert (record["outcome"], record["status"]) == ("cancelled", 499)
        assert "dispatched" in record
        assert "ttft" not in record

    @LEAVE
    async def test_while_an_answer_in_one_piece_is_written(
        self, sluice: RunningGateway, llamacpp: Watcher, finished_before: float, leave: Callable[[RawClient], None]
    ) -> None:
        async with RawClient(sluice.port) as client:
            await client.request("POST", CHAT, question(), HEADERS)
            await llamacpp.until_busy()
            leave(client)
            await self.given_up(llamacpp, finished_before)
        record = await sluice.record()
        assert (record["outcome"], record["status"]) == ("cancelled", 499)

    async def test_while_others_have_all_slots(
        self, llamacpp_url: str, llamacpp: Watcher, finished_before: float
    ) -> None:
        engine = {"kind": "llamacpp", "url": llamacpp_url, "concurrency": 3}  # one more than it has slots
        async with gateway(engines={"local": engine}, models={"chat": [{"engine": "local"}]}) as sluice:
            await self.leave_with_all_slots_taken(sluice, llamacpp, finished_before)

    async def leave_with_all_slots_taken(
        self, sluice: RunningGateway, llamacpp: Watcher, finished_before: float
    ) -> None:
        async with RawClient(sluice.port) as first, RawClient(sluice.port) as second, RawClient(sluice.port) as waiting:
            for client in (first, second):
                await client.request("POST", CHAT, question(stream=True), HEADERS)
                await client.read_until(TOKEN, timeout=60)
            await waiting.request("POST", CHAT, question(stream=True), HEADERS)
            with anyio.fail_after(30):
                while not await llamacpp.metric("requests_deferred"):
                    await anyio.sleep(0.05)
            for client in (waiting, first, second):
                client.close()
            await self.given_up(llamacpp, finished_before)
        outcomes = [(await sluice.record(number))["outcome"] for number in range(3)]
        assert outcomes == ["cancelled"] * 3


class TestTheOthers:
    async def test_a_neighbour_in_the_other_slot_gets_its_whole_answer(
        self, sluice: RunningGateway, llamacpp: Watcher
    ) -> None:
        async with RawClient(sluice.port) as leaving, RawClient(sluice.port) as staying:
            await staying.request("POST", CHAT, question(stream=True, max_tokens=60), HEADERS)
            await staying.read_until(TOKEN, timeout=60)
            await leaving.request("POST", CHAT, question(stream=True), HEADERS)
            await leaving.read_until(TOKEN, timeout=60)
            leaving.reset()
            reply = await staying.finish(timeout=60)
        assert is_clean(reply.body)
        assert finish_reasons(reply.body) == ["length"]
        await llamacpp.until_idle()

    async def test_more_clients_leave_than_there_are_slots_and_the_next_one_is_served(
        self, sluice: RunningGateway, llamacpp: Watcher
    ) -> None:
        for _ in range(5):
            async with RawClient(sluice.port) as client:
                await client.request("POST", CHAT, question(stream=True), HEADERS)
                await client.read_until(TOKEN, timeout=60)
                client.reset()
        reply = await post_json(sluice.port, CHAT, question(max_tokens=4), HEADERS, timeout=60)
        assert reply.status == 200
        assert reply.json()["usage"]["completion_tokens"] == 4
        assert [record["outcome"] for record in sluice.records()[:5]] == ["cancelled"] * 5
