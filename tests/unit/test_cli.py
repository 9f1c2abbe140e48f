"""The `sluice` command: what it prints, its exit status, and how it ends."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway import __version__
from gateway.cli import main
from tests.support.answers import OK, error_of
from tests.support.client import RawClient, post_json
from tests.support.command import Serving, free_port, run, serving, write_config
from tests.support.engine import Script, ScriptedEngine, Step
from tests.support.gateway import CHAT, REQ
from tests.support.waiting import eventually

GOOD = """
engines:
  small: {kind: llamacpp, url: http://127.0.0.1:8080}
  big: {kind: vllm, url: http://127.0.0.1:8081}
models:
  chat: [small, big]
"""

MISTAKES = {
    "an unknown key": ("engines: {a: {kind: vllm, url: http://h}}\nmodles: {}\n", 2, "did you mean `models`?"),
    "an unknown kind": ("engines:\n  a: {kind: vlm, url: http://h}\n", 2, "did you mean `vllm`?"),
    "no YAML": ("engines:\n\ta: 1\n", 2, "tab"),
    "nothing": ("", 1, "empty"),
    "an open door": (f"{GOOD}server:\n  host: 0.0.0.0\n", 8, "server.keys"),
    "an open door on IPv6": (f"{GOOD}server:\n  host: '::'\n", 8, "server.keys"),
    "a port that is none": (f"{GOOD}server:\n  port: 80a\n", 8, "port"),
    "a variable that is not set": (f"{GOOD}server:\n  host: ${{SLUICE_UNSET}}\n", 8, "SLUICE_UNSET"),
}


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, args)])


def write(folder: Path, text: str) -> Path:
    path = folder / "sluice.yaml"
    path.write_text(text)
    return path


class TestCheck:
    def test_a_good_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, GOOD)
        result = invoke("check", "--config", path)
        assert (result.exit_code, result.output) == (0, f"{path}: 2 engines, 1 model name, nothing wrong.\n")

    @pytest.mark.parametrize(("text", "line", "hint"), MISTAKES.values(), ids=MISTAKES)
    def test_a_mistake_is_told_with_its_place(self, tmp_path: Path, text: str, line: int, hint: str) -> None:
        path = write(tmp_path, text)
        result = invoke("check", "-c", path)
        assert result.exit_code == 1
        assert f"{path}:{line}: " in result.output
        assert hint in result.output
        assert "Traceback" not in result.output

    def test_all_mistakes_are_told_at_once(self, tmp_path: Path) -> None:
        path = write(tmp_path, "engines:\n  a: {kind: vlm, url: http://h}\n  b: {kind: vllm, url: ftp://h}\nx: 1\n")
        output = invoke("check", "-c", path).output
        assert [f"{path}:{line}: " in output for line in (1, 2, 3, 4)] == [False, True, True, True]

    @pytest.mark.parametrize("name", ["nowhere.yaml", "", "sub/dir.yaml"])
    def test_a_file_that_is_not_there(self, tmp_path: Path, name: str) -> None:
        result = invoke("check", "-c", tmp_path / name)
        assert result.exit_code == 1
        assert str(tmp_path / name) in result.output
        assert len(result.output.splitlines()) == 1

    def test_a_managed_engine_without_its_model(self, tmp_path: Path) -> None:
        path = write(tmp_path, "engines:\n  a: {kind: llamacpp, managed: {model: nowhere.gguf}}\n")
        result = invoke("check", "-c", path)
        assert result.exit_code == 1
        assert "engines.a.managed.model" in result.output
        assert "nowhere.gguf" in result.output

    def test_the_file_is_looked_for_here_by_default(self, tmp_path: Path) -> None:
        write(tmp_path, GOOD)
        done = run("check", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "sluice.yaml: 2 engines, 1 model name, nothing wrong.\n")


class TestSmallCommands:
    def test_the_schema_is_json(self) -> None:
        result = invoke("config", "schema")
        schema = json.loads(result.output)
        assert result.exit_code == 0
        assert schema["$schema"].startswith("https://json-schema.org/")

    def test_the_version(self) -> None:
        assert invoke("--version").output == f"sluice, version {__version__}\n"

    @pytest.mark.parametrize("command", [[], ["serve"], ["check"], ["config"], ["config", "schema"], ["demo"]])
    def test_help(self, command: list[str]) -> None:
        result = invoke(*command, "--help")
        assert result.exit_code == 0
        assert "Usage:" in result.output

    def test_a_command_that_does_not_exist(self) -> None:
        assert invoke("sreve").exit_code == 2


class TestServeThatCannotStart:
    @pytest.mark.parametrize("name", ["an unknown key", "an open door", "nothing"])
    def test_a_bad_config_ends_it_before_it_listens(self, tmp_path: Path, name: str) -> None:
        text, line, hint = MISTAKES[name]
        done = run("serve", "-c", write(tmp_path, text), cwd=tmp_path)
        assert done.returncode == 1
        assert f"sluice.yaml:{line}: " in done.stderr
        assert hint in done.stderr
        assert "Traceback" not in done.stderr

    def test_no_config(self, tmp_path: Path) -> None:
        done = run("serve", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (1, "Error: sluice.yaml: there is no such file\n")

    def test_a_port_in_use(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            path = write_config(tmp_path, {"a": {"kind": "vllm", "url": "http://127.0.0.1:9"}}, port=port)
            done = run("serve", "-c", path, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr == f"Error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"

    @pytest.mark.parametrize("host", ["203.0.113.1", "nowhere.invalid"])
    def test_an_address_that_is_not_this_machine_s(self, tmp_path: Path, host: str) -> None:
        engines = {"a": {"kind": "vllm", "url": "http://127.0.0.1:9"}}
        path = write_config(tmp_path, engines, host=host, port=free_port(), allow_unauthenticated=True)
        done = run("serve", "-c", path, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"Error: cannot listen on {host} port ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.anyio
class TestServe:
    async def test_it_serves_and_logs_json(self, tmp_path: Path) -> None:
        async with ScriptedEngine([OK]) as engine:
            async with serving(tmp_path, {"a": {"kind": "llamacpp", "url": engine.url}}) as sluice:
                assert (await post_json(sluice.port, CHAT, REQ)).status == 200
                assert await sluice.stop() == 0
            lines = [json.loads(line) for line in sluice.log.read_text().splitlines()]
            assert {line["event"] for line in lines} == {"log", "request"}
            assert [line["outcome"] for line in lines if line["event"] == "request"] == ["ok"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_a_signal_ends_it_with_status_0(self, tmp_path: Path, number: signal.Signals) -> None:
        async with serving(tmp_path, {"a": {"kind": "vllm", "url": "http://127.0.0.1:9"}}) as sluice:
            assert await sluice.stop(number) == 0
            assert "Traceback" not in sluice.log.read_text()
            with pytest.raises(ConnectionRefusedError):
                await post_json(sluice.port, CHAT, REQ)

    async def test_what_runs_is_answered_first_and_nothing_new_is_taken(self, tmp_path: Path) -> None:
        async with busy(tmp_path, [1.0, OK]) as (sluice, client, engine):
            async with asyncio.TaskGroup() as tasks:
                status = tasks.create_task(sluice.stop())
                await asyncio.sleep(0.5)
                with pytest.raises(ConnectionRefusedError):
                    await post_json(sluice.port, CHAT, REQ)
                assert not status.done()
                reply = await client.finish()
            assert (reply.status, reply.headers.get("connection")) == (200, "close")
            assert status.result() == 0
            assert len(engine.requests) == 1

    async def test_what_does_not_end_in_time_is_told_so(self, tmp_path: Path) -> None:
        async with busy(tmp_path, [Step.HANG], drain_timeout=1) as (sluice, client, engine):
            status = await sluice.stop()
            reply = await client.finish()
            assert (status, reply.status, error_of(reply)["code"]) == (0, 503, "shutting_down")
            await engine.gone(1)

    async def test_a_second_signal_ends_it_at_once(self, tmp_path: Path) -> None:
        async with busy(tmp_path, [Step.HANG], drain_timeout=60) as (sluice, client, engine):
            sluice.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            assert sluice.process.returncode is None
            assert await sluice.stop(timeout=10) == 0
            assert "Traceback" not in sluice.log.read_text()
            await client.finish()
            await engine.gone(1)


@asynccontextmanager
async def busy(folder: Path, script: Script, **server: Any) -> AsyncIterator[tuple[Serving, RawClient, ScriptedEngine]]:
    """A `sluice serve` with a client whose request is with its engine."""
    async with ScriptedEngine(script) as engine:
        engines = {"a": {"kind": "llamacpp", "url": engine.url}}
        async with serving(folder, engines, **server) as sluice, RawClient(sluice.port) as client:
            await client.request("POST", CHAT, REQ)
            await eventually(lambda: engine.running == 1)
            yield sluice, client, engine
