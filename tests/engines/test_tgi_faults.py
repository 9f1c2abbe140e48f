"""What a client and the gateway see of a TGI that is full, or whose model fails."""

from typing import Any

import pytest

from tests.support.answers import error_of
from tests.support.client import get, post_json
from tests.support.gateway import CHAT, COMPLETIONS, RunningGateway
from tests.support.sse import failed, finish_reasons
from tests.support.tgi import Fault, Tgi, sluice
from tests.support.tgi_wire import MODEL
from tests.support.waiting import becomes

pytestmark = pytest.mark.anyio

ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Say hello."}]},
    COMPLETIONS: {"prompt": "Once upon a time"},
}
QUICK = {"interval": 0.1, "timeout": 0.3}
EVERY_PATH = pytest.mark.parametrize("path", ASKED)
EITHER_FORM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def ask(running: RunningGateway, path: str, **fields: Any) -> Any:
    return await post_json(running.port, path, {"model": MODEL, **ASKED[path], **fields})


async def state(running: RunningGateway) -> tuple[str, str]:
    told = (await get(running.port, "/health/ready")).json()["engines"]["local"]
    return told["state"], told["reason"]


@EVERY_PATH
@EITHER_FORM
class TestOneRequest:
    async def test_a_full_engine_is_no_failure(self, path: str, stream: bool) -> None:
        """TGI does not say when to come back, and nothing is made up."""
        async with Tgi(slots=0) as engine, sluice(engine) as running:
            answer = await ask(running, path, stream=stream)
            error = error_of(answer)
            assert answer.status == 429
            assert (error["type"], error["code"]) == ("rate_limit_error", "engine_overloaded")
            assert "retry-after" not in answer.headers
            assert (await state(running))[0] == "ready"

    async def test_a_dead_shard_is_the_engines_failure(self, path: str, stream: bool) -> None:
        async with Tgi() as engine, sluice(engine) as running:
            engine.fault = Fault.DEAD
            answer = await ask(running, path, stream=stream)
            assert (answer.status, error_of(answer)["type"]) == (502, "engine_error")
            assert "Connection refused" in error_of(answer)["message"]

    @pytest.mark.parametrize("fault", [Fault.DIES, Fault.BREAKS])
    async def test_one_that_fails_in_the_middle_never_looks_whole(self, path: str, stream: bool, fault: Fault) -> None:
        async with Tgi(fault=fault, pause=0.02) as engine, sluice(engine) as running:
            answer = await ask(running, path, stream=stream)
            if stream:
                assert answer.status == 200
                assert failed(answer.body)
                assert finish_reasons(answer.body) == []
            else:
                assert (answer.status, error_of(answer)["type"]) == (502, "engine_error")

    async def test_comments_alone_keep_nothing_open(self, path: str, stream: bool) -> None:
        async with Tgi() as engine, sluice(engine, timeouts={"ttft": 0.2, "first_byte": 0.2}) as running:
            engine.fault = Fault.HANGS
            answer = await ask(running, path, stream=stream)
            assert (answer.status, error_of(answer)["code"]) == (504, "engine_timeout")
            await engine.gone(2)


class TestHealth:
    async def test_a_dead_shard_gets_no_requests_until_it_is_back(self) -> None:
        async with Tgi(fault=Fault.DEAD) as engine, sluice(engine, probe=QUICK, models=[MODEL]) as running:
            assert await state(running) == ("down", "its shard is dead")
            answer = await ask(running, CHAT)
            assert (answer.status, engine.requests) == (503, [])
            assert "its shard is dead" in error_of(answer)["message"]
            engine.fault = None
            await becomes(lambda: _is_served(running))

    async def test_a_shard_that_stands_still_is_found_by_its_silence(self) -> None:
        async with Tgi() as engine, sluice(engine, probe=QUICK) as running:
            assert await _is_served(running)
            engine.fault = Fault.HANGS
            await becomes(lambda: _is_down(running))
            assert "does not answer" in (await state(running))[1]
            engine.fault = None
            await becomes(lambda: _is_served(running))

    async def test_a_key_that_is_wrong_is_the_configs_fault(self) -> None:
        async with Tgi(key="Sekret-1") as engine, sluice(engine, api_key="another-key") as running:
            answer = await ask(running, CHAT)
            assert (answer.status, error_of(answer)["code"]) == (502, "engine_credentials")
        async with Tgi(key="Sekret-1") as engine, sluice(engine, api_key="Sekret-1") as running:
            assert (await ask(running, CHAT)).status == 200


async def _is_served(running: RunningGateway) -> bool:
    return bool((await ask(running, CHAT)).status == 200)


async def _is_down(running: RunningGateway) -> bool:
    return (await state(running))[0] == "down"
