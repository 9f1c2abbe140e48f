"""A real vLLM on the CPU, from the environment of its own that `scripts/vllm` makes."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.engines.managed import free_port
from gateway.upstream.http import httpx

ENVIRONMENT = Path(__file__).parents[2] / ".venv-vllm"
MODEL = "smollm2-135m"
CONTEXT = 4096
"""Tokens that a prompt and its answer have together."""
FLAGS = (
    f"--served-model-name={MODEL}",
    "--host=127.0.0.1",
    "--dtype=bfloat16",
    f"--max-model-len={CONTEXT}",
    "--max-num-seqs=4",
    "--enforce-eager",
    "--block-size=32",
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
)
SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
}
START = 180.0
"""Seconds that it may take to be healthy."""


@contextmanager
def vllm(*flags: str) -> Iterator[str]:
    """The URL of a vLLM that serves SmolLM2; `flags` are added to its command line.

    Raises:
        FileNotFoundError: its environment is not there.
        RuntimeError: it ended before it was healthy.
        TimeoutError: it was not healthy in time.
    """
    if not list(ENVIRONMENT.glob(".sluice-*")):
        raise FileNotFoundError(f"there is no vLLM in {ENVIRONMENT}: run scripts/vllm, which installs it")
    port = free_port()
    program = [str(ENVIRONMENT / "bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
    command = [*program, f"--model={ENVIRONMENT / 'model'}", f"--port={port}", *FLAGS, *flags]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            command, env=os.environ | SETTINGS, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            try:
                _until_healthy(process, f"http://127.0.0.1:{port}")
            except (RuntimeError, TimeoutError) as error:
                output.seek(0)
                raise type(error)(f"{error}; it said:\n{output.read()[-4000:].decode(errors='replace')}") from error
            yield f"http://127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    give_up_at = time.monotonic() + START
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended with code {process.returncode}")
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"vLLM is not healthy after {START:g} s")
