"""`sluice demo` as a new user has it: what it prints, that what it prints works, and that nothing is left of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.engines.managed import free_port
from tests.support.processes import alive, children
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc"),
    pytest.mark.timeout(300),
]

SLUICE = Path(sysconfig.get_path("scripts"), "sluice")
LAST_LINE = "print(reply.choices[0].message.content)"


@dataclass
class Demo:
    """A demo that has said all it has to say."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str]
    errors: Path

    @property
    def engines(self) -> list[int]:
        return children(self.process.pid)

    def part(self, first: str, last: str) -> str:
        """The lines from the one that starts with `first` to the one that ends with `last`."""
        start = next(at for at, line in enumerate(self.lines) if line.startswith(first))
        end = next(at for at, line in enumerate(self.lines) if at >= start and line.endswith(last))
        return "\n".join(self.lines[start : end + 1])


@contextmanager
def running_demo(folder: Path) -> Iterator[Demo]:
    port = free_port()
    errors = folder / "stderr"
    environment = {**os.environ, "SLUICE_DEMO_PORT": str(port), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [SLUICE, "demo"], env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or lines[-1] != LAST_LINE:
                line = process.stdout.readline()
                assert line, f"the demo ended after {lines}: {errors.read_text()}"
                lines.append(line.rstrip("\n"))
            yield Demo(process, port, lines, errors)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with running_demo(tmp_path_factory.mktemp("demo")) as demo:
        yield demo


def run(command: list[str], demo: Demo) -> str:
    """What the command prints."""
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, env=environment, cwd=demo.errors.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestWhatItSays:
    def test_how_far_its_engines_are(self, demo: Demo) -> None:
        progress = [line for line in demo.lines if line.startswith("Starting llama.cpp")]
        assert progress[-1] == "Starting llama.cpp  fast: ready · long: ready"
        assert len(progress) > 1

    def test_a_question_and_its_answer(self, demo: Demo) -> None:
        asked = next(at for at, line in enumerate(demo.lines) if line.startswith("You: "))
        answer = demo.lines[asked + 1]
        assert answer.startswith("smollm2: ")
        assert len(answer.split()) > 10
        assert any(line.startswith("[first token after ") and line.endswith(" tokens/s]") for line in demo.lines)

    def test_where_it_is_and_its_key(self, demo: Demo) -> None:
        assert f"  endpoint  http://127.0.0.1:{demo.port}/v1" in demo.lines
        assert "  API key   sk-sluice-demo" in demo.lines

    def test_no_errors(self, demo: Demo) -> None:
        assert demo.errors.read_text() == ""


class TestWhatItSuggests:
    @pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
    def test_the_curl_line_answers(self, demo: Demo) -> None:
        line = demo.part("curl ", "}'")
        reply = json.loads(run(["sh", "-c", line], demo))
        assert reply["choices"][0]["message"]["content"]

    def test_the_python_lines_answer(self, demo: Demo) -> None:
        assert run([sys.executable, "-c", demo.part("from openai import OpenAI", LAST_LINE)], demo).strip()


@pytest.mark.anyio
class TestItsEnd:
    async def test_ctrl_c_ends_it_and_its_engines(self, tmp_path: Path) -> None:
        with running_demo(tmp_path) as demo:
            engines = demo.engines
            assert len(engines) == 2
            demo.process.send_signal(signal.SIGINT)
            assert demo.process.wait(60) == 0
            assert not any(map(alive, engines))
            assert demo.errors.read_text() == ""

    async def test_its_engines_do_not_outlive_a_killed_one(self, tmp_path: Path) -> None:
        with running_demo(tmp_path) as demo:
            engines = demo.engines
            assert len(engines) == 2
            demo.process.kill()
            await eventually(lambda: not any(map(alive, engines)), timeout=30)

    async def test_ctrl_c_while_it_starts(self, tmp_path: Path) -> None:
        environment = {**os.environ, "SLUICE_DEMO_PORT": str(free_port())}
        command = [SLUICE, "demo"]
        with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("Starting llama.cpp")
                engines = children(process.pid)
                assert engines
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
                assert not any(map(alive, engines))
            finally:
                process.kill()
