"""The files of a config as the gateway sees them change: how they are written, and what is wrong in them."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.backend import Backend
from gateway.config.history import History
from gateway.config.reload import Read, Reloader
from tests.support.answers import OK
from tests.support.client import Reply, get, post_json
from tests.support.command import free_port, run, serving, write_config
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, engine_config
from tests.support.leases import in_flight
from tests.support.processes import open_files
from tests.support.reloading import NEVER, POLL, ReloadingGateway, reloading, replace
from tests.support.sse import DONE, FIN, ROLE, T, is_clean, sse_reply
from tests.support.waiting import becomes, eventually

pytestmark = pytest.mark.anyio

FIXED = (sys.executable, "-c", "import sys; from gateway.cli import main; main([*sys.argv[1:], '--no-reload'])")
URL = "http://127.0.0.1:9"
LINES = """engines:
  a:
    kind: openai
    url: {url}
    models: [m]
{more}"""


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """What was logged of the config."""
    return [
        record.getMessage() for record in caplog.records if record.name == "sluice.config" and record.levelno >= level
    ]


async def serves(sluice: ReloadingGateway) -> bool:
    return (await post_json(sluice.port, CHAT, REQ)).status == 200


MISTAKES = {
    "an unknown key": (LINES.format(url=URL, more="    modles: [m]\n"), ":6: ", "did you mean `models`?"),
    "no YAML": (LINES.format(url=URL, more="\tserver:\n"), ":6: ", "tab"),
    "a model without its engine": (
        LINES.format(url=URL, more="models:\n  chat: b\n"),
        ":7: ",
        "no engine is named",
    ),
    "nothing": ("", ":1: ", "the file is empty"),
    "no text": ("engines: \udcff", ":1: ", "not UTF-8"),
    "no file": (None, "", "there is no such file"),
    "no policy file": (
        LINES.format(url=URL, more="policy: nowhere.yaml\n"),
        "",
        "nowhere.yaml: there is no such file",
    ),
}


class TestBadFiles:
    @pytest.mark.parametrize(("text", "line", "hint"), MISTAKES.values(), ids=MISTAKES)
    async def test_one_changes_nothing_and_is_told_of_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, line: str, hint: str
    ) -> None:
        caplog.set_level(logging.INFO)
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            good, backend, before = sluice.path.read_text(), sluice.backend("a"), await sluice.status()
            if text is None:
                sluice.path.unlink()
            else:
                sluice.path.write_bytes(text.encode("utf-8", "surrogateescape"))
            error = await sluice.refused()
            assert hint in error
            if line:
                assert f"{sluice.path}{line}" in error
            await anyio.sleep(0.2)  # ten looks at the file
            assert messages(caplog, logging.ERROR) == [f"the config stays as it is: {error}"]
            assert await serves(sluice)
            assert sluice.backend("a") is backend
            ready = await get(sluice.port, "/health/ready")
            assert (ready.status, ready.json()["config"]) == (200, before | {"error": error})

            replace(sluice.path, good)
            await sluice.loaded()
            assert await sluice.status() == before
            assert sluice.backend("a") is backend

    async def test_a_policy_with_a_mistake_is_told_with_its_line(self, tmp_path: Path) -> None:
        policy = "models:\n  chat:\n    tiers: {all: a}\n"
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, policy=policy) as sluice,
        ):
            replace(sluice.policy, f"{policy}    rules:\n      - {{when: imags > 0, route: [all]}}\n")
            assert f"{sluice.policy}:5: " in await sluice.refused("imags")
            assert (await post_json(sluice.port, CHAT, REQ | {"model": "chat"})).status == 200

    async def test_a_fault_of_the_gateway_changes_nothing_either(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            with monkeypatch.context() as patched:
                patched.setattr(type(sluice.fleet), "update", broken)
                sluice.write(models={"chat": "a"})
                assert "its log knows why" in await sluice.refused()
            assert "LookupError" in caplog.text
            assert await serves(sluice)
            await sluice.change(models={"talk": "a"})


async def broken(*_: object) -> None:
    raise LookupError("a fault")

    async def test_one_that_could_not_be_opened_is_taken_once_it_can(self, tmp_path: Path) -> None:
        """Its content is the same then; only its mode is another."""
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            new = tmp_path / "new"
            new.write_text(json.dumps(json.loads(sluice.path.read_text()) | {"models": {"chat": "a"}}))
            new.chmod(0)
            new.replace(sluice.path)
            assert "Permission denied" in await sluice.refused()
            sluice.path.chmod(0o600)
            await sluice.loaded()


class TestAddress:
    async def test_another_port_needs_a_restart_and_all_else_is_taken(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            await sluice.change(server={"port": free_port()}, models={"chat": "a"})
            assert (await post_json(sluice.port, CHAT, REQ | {"model": "chat"})).status == 200
        said = messages(caplog)[-1]
        assert "model name `chat` added" in said
        assert "server.port needs a restart, and stays as it was until then" in said

    async def test_keys_may_be_dropped_with_another_port_of_this_machine_alone(self, tmp_path: Path) -> None:
        keys = [{"name": "alice", "key": "sk-of-alice"}]
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, server={"keys": keys}) as sluice,
        ):
            assert not await serves(sluice)
            await sluice.change(server={"port": free_port()})
            assert await serves(sluice)

    async def test_keys_are_not_dropped_where_the_address_would_stay_open(self, tmp_path: Path) -> None:
        closed = {"host": "0.0.0.0", "keys": [{"name": "alice", "key": "sk-of-alice"}]}
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, server=closed) as sluice,
        ):
            sluice.write(server={"host": "127.0.0.1"})
            assert "restart" in await sluice.refused("open to everyone")
            assert (await post_json(sluice.port, CHAT, REQ)).status == 401


class TestWatching:
    async def test_each_way_to_write_a_file_is_seen(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            for at, write in enumerate([replaced, written, removed_first, linked, linked, mapped, mapped]):
                content = json.loads(sluice.path.read_text()) | {"models": {f"name-{at}": "a"}}
                await write(sluice.path, json.dumps(content))
                await sluice.loaded()
                listed = (await get(sluice.port, "/v1/models")).json()["data"]
                assert [model["id"] for model in listed] == ["m", f"name-{at}"], write.__name__

    async def test_one_that_is_being_written_is_waited_for(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Each of its halves is a good config by itself, and none of them is taken."""
        caplog.set_level(logging.INFO)
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, poll=0.25) as sluice,
        ):
            with sluice.path.open("w") as file:
                file.write(LINES.format(url=engine.url, more="models:\n"))
                for at in range(20):
                    file.write(f"  name-{at}: a\n")
                    file.flush()
                    await anyio.sleep(0.05)
            await eventually(lambda: messages(caplog), timeout=5)
            assert len(messages(caplog)) == 1
            assert "`name-19` added" in messages(caplog)[0]

    async def test_one_that_is_written_anew_as_it_was_changes_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            before = await sluice.status()
            replace(sluice.path, sluice.path.read_text())
            await eventually(lambda: messages(caplog))
            assert "nothing in its files is different" in messages(caplog)[0]
            assert await sluice.status() == before

    async def test_a_hangup_takes_no_half_of_one(self, tmp_path: Path) -> None:
        """What changes while it is read is read again."""
        path, texts = tmp_path / "sluice.yaml", iter(["half", "whole"])
        path.write_text("first")

        def load(file: Path, read: Read) -> str:
            text = read(file)
            if text != "first" and (more := next(texts, None)) is not None:
                file.write_text(more)
            return text

        loaded: list[str] = []

        async def apply(text: str) -> list[str]:
            loaded.append(text)
            return []

        reloader = Reloader(path, load, poll=POLL)
        assert reloader.first() == "first"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reloader.run, apply)
            path.write_text("begun")
            reloader.ask()
            await eventually(lambda: loaded)
            tasks.cancel_scope.cancel()
        assert loaded == ["whole"]

    async def test_touched_or_with_another_mode_it_is_the_same_one(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            sluice.path.chmod(0o600)
            await eventually(lambda: messages(caplog))
            assert "nothing in its files is different" in messages(caplog)[0]

    async def test_two_changes_in_quick_succession_end_with_the_second(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine, reloading(tmp_path, {"a": engine_config(engine.url)}) as sluice:
            for at in range(20):
                sluice.write(models={f"name-{at}": "a"})
                os.kill(os.getpid(), signal.SIGHUP)
                await anyio.sleep(0.005 * (at % 4))
            await sluice.loaded()
            listed = (await get(sluice.port, "/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["m", "name-19"]

    async def test_a_hangup_loads_it_at_once(self, tmp_path: Path) -> None:
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, poll=NEVER) as sluice,
        ):
            sluice.write(models={"chat": "a"})
            os.kill(os.getpid(), signal.SIGHUP)
            await sluice.loaded()
            assert sluice.router.model("chat").ready

    async def test_what_is_told_of_a_change_is_no_secret(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        server = {"keys": [{"name": "alice", "key": "sk-of-alice"}, {"name": "bob", "key": "sk-of-bob"}]}
        async with ScriptedEngine([OK]) as engine:
            before = {"a": engine_config(engine.url, api_key="sk-1"), "b": engine_config(engine.url)}
            async with reloading(tmp_path, before, models={"x": "a", "y": "a"}, server=server) as sluice:
                after = {
                    "a": engine_config(engine.url, api_key="sk-2", headers={"X-A": "sk-3"}, timeouts={"idle": 9}),
                    "c": engine_config(engine.url),
                }
                keys = [{"name": "bob", "key": "sk-of-bob-2"}, {"name": "carl", "key": "sk-of-carl"}]
                await sluice.change(
                    engines=after,
                    models={"y": ["c"], "z": "a"},
                    queue={"limit": 5},
                    server={"keys": keys, "body_timeout": 3},
                )
        assert messages(caplog)[-1].partition(": ")[2].split("; ") == [
            "engine `a` changed (api_key, headers, timeouts.idle)",
            "engine `b` removed",
            "engine `c` added",
            "model name `x` removed",
            "model name `y` changed",
            "model name `z` added",
            "key `alice` removed",
            "key `bob` changed (key)",
            "key `carl` added",
            "queue.limit changed",
            "server.body_timeout changed",
        ]


async def replaced(path: Path, text: str) -> None:
    replace(path, text)


async def written(path: Path, text: str) -> None:
    path.write_text(text)


async def removed_first(path: Path, text: str) -> None:
    path.unlink()
    await anyio.sleep(0.1)
    path.write_text(text)


async def linked(path: Path, text: str) -> None:
    """A symbolic link to another file each time."""
    target = path.with_name(f"{abs(hash(text))}.yaml")
    target.write_text(text)
    link(path, target)


async def mapped(path: Path, text: str) -> None:
    """As Kubernetes updates a ConfigMap: the file leads to `..data/`, which leads to a folder that is another then."""
    folder = path.with_name(f"..{abs(hash(text))}")
    folder.mkdir()
    (folder / path.name).write_text(text)
    link(path.with_name("..data"), folder)
    if path.readlink() != Path("..data") / path.name:
        link(path, Path("..data") / path.name)


def link(path: Path, target: Path) -> None:
    new = path.with_suffix(".link")
    new.symlink_to(target)
    new.replace(path)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
async def test_fifty_reloads_under_load_fail_no_request_and_leave_nothing_behind(tmp_path: Path) -> None:
    stream = sse_reply(ROLE, T("a"), FIN("stop"), DONE)
    script = [stream[:200], 0.02, stream[200:]]
    async with ScriptedEngine(script) as same, ScriptedEngine(script) as one, ScriptedEngine(script) as other:

        def engines(at: int) -> dict[str, Any]:
            """One that stays, one that moves each time, and one that comes and goes."""
            moving = engine_config((one if at % 2 else other).url, concurrency=2)
            coming = {"coming": engine_config(one.url)} if at % 3 else {}
            return {"same": engine_config(same.url, concurrency=2), "moving": moving, **coming}

        async with reloading(tmp_path, engines(0), history=True) as sluice:
            await load(sluice, lambda: anyio.sleep(0.3))
            await eventually(lambda: not in_flight(sluice))
            tasks, files = len(asyncio.all_tasks()), open_files(os.getpid())
            backends: list[weakref.ref[Backend]] = []

            async def reload() -> None:
                for at in range(1, 51):
                    backends.extend(map(weakref.ref, sluice.fleet.backends.values()))
                    await sluice.change(engines=engines(at), queue={"limit": 100 + at}, models={f"name-{at}": "same"})

            replies = await load(sluice, reload)
            assert len(replies) > 100
            assert {reply.status for reply in replies} == {200}
            assert all(is_clean(reply.body) for reply in replies)

            await sluice.change(engines=engines(0))
            await eventually(lambda: not in_flight(sluice) and not sluice.router.admission.waiting)
            await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
            await eventually(
                lambda: open_files(os.getpid()) <= files + 2, timeout=10
            )  # idle connections are closed after 3 s
            await eventually(lambda: alive(backends) <= {id(backend) for backend in sluice.fleet.backends.values()})


def alive(backends: list["weakref.ref[Backend]"]) -> set[int]:
    gc.collect()
    return {id(backend) for ref in backends if (backend := ref()) is not None}


async def load(sluice: ReloadingGateway, meanwhile: Callable[[], Awaitable[None]]) -> list[Reply]:
    """Eight clients ask without a pause for as long as something else takes."""
    replies: list[Reply] = []
    over = False

    async def client() -> None:
        while not over:
            replies.append(await post_json(sluice.port, CHAT, REQ | {"stream": True}))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(client)
        await meanwhile()
        over = True
    return replies


class TestHistory:
    async def test_where_none_can_be_kept_the_gateway_serves_and_says_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / ".sluice").write_text("in the way")
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, history=True) as sluice,
        ):
            await eventually(lambda: messages(caplog, logging.WARNING))
            await sluice.change(models={"chat": "a"})
            assert await serves(sluice)
            (tmp_path / ".sluice").unlink()
            await sluice.change(models={"talk": "a"})
            await eventually(lambda: History(sluice.path).latest() == sluice.reloader.status.version)
        assert ".sluice/history/sluice.yaml cannot be written" in messages(caplog, logging.WARNING)[0]

    async def test_a_fault_in_it_ends_nothing_either(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails(*_: object) -> None:
            raise LookupError("a fault")

        monkeypatch.setattr(History, "record", fails)
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, history=True) as sluice,
        ):
            await eventually(lambda: "LookupError" in caplog.text)
            await sluice.change(models={"chat": "a"})
            assert await serves(sluice)

    async def test_it_has_what_was_in_force_and_not_what_was_refused(self, tmp_path: Path) -> None:
        async with (
            ScriptedEngine([OK]) as engine,
            reloading(tmp_path, {"a": engine_config(engine.url)}, history=True) as sluice,
        ):
            first = sluice.reloader.status.version
            good = sluice.path.read_text()
            replace(sluice.path, "engines: nothing")
            await sluice.refused()
            replace(sluice.path, good)
            await sluice.loaded()
            await sluice.change(models={"chat": "a"})
            await eventually(lambda: len(History(sluice.path).loads()) == 2)
        loads = History(sluice.path).loads()
        assert [load.version for load in loads] == [first, sluice.reloader.status.version]
        assert [load.changes for load in loads] == [["the gateway was started with it"], ["model name `chat` added"]]


class TestServe:
    async def test_it_follows_its_file_and_a_rollback(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine:
            engines = {"a": engine_config(engine.url)}
            async with serving(tmp_path, engines) as sluice:
                first = await version(sluice.port)
                port = {"port": sluice.port}
                replace(
                    tmp_path / "sluice.yaml", json.dumps({"engines": engines, "server": port, "models": {"chat": "a"}})
                )
                await becomes(lambda: has(sluice.port, ["chat", "m"]), timeout=10)
                listed = await anyio.to_thread.run_sync(lambda: run("config", "history", cwd=tmp_path))
                done = await anyio.to_thread.run_sync(lambda: run("config", "rollback", first, cwd=tmp_path))
                assert done.returncode == 0, done.stderr
                await becomes(lambda: has(sluice.port, ["m"]), timeout=10)
                assert await version(sluice.port) == first
                assert await sluice.stop() == 0
        assert "model name `chat` added" in listed.stdout

    async def test_it_does_not_if_told_so(self, tmp_path: Path) -> None:
        async with (
            ScriptedEngine([OK]) as engine,
            serving(tmp_path, {"a": engine_config(engine.url)}, command=FIXED) as sluice,
        ):
            first = await version(sluice.port)
            write_config(tmp_path, {"b": engine_config(engine.url, models=["n"])}, port=sluice.port)
            await anyio.sleep(2.5)  # more than two looks
            assert await has(sluice.port, ["m"])
            assert await version(sluice.port) == first


async def has(port: int, names: list[str]) -> bool:
    return [model["id"] for model in (await get(port, "/v1/models")).json()["data"]] == names


async def version(port: int) -> str:
    return str((await get(port, "/health/ready")).json()["config"]["version"])
