"""A llama.cpp server for one GGUF file on 127.0.0.1, which never outlives the process that started it.

It ends at once when its standard input reaches end of file, so the parent keeps the other end of that pipe open and
writes nothing. Nothing of Sluice is imported here: the file runs by its path as well as with `-m`.
"""

import argparse
import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any, NoReturn

HOST = "127.0.0.1"
ERRORS, EVERYTHING = 1, 3
"""llama.cpp's log levels."""


def main() -> NoReturn:
    options = _options()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_stdin()
    _check_model(options.model)
    _check_port(options.port)
    _server = _serve(options)  # kept: the server ends with this object
    while os.read(0, 4096):
        pass
    os._exit(0)  # without waiting for requests that are still running


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llamacpp_child", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="PATH", help="the GGUF file")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens in each slot")
    parser.add_argument("--slots", type=int, required=True, help="requests that run at the same time")
    parser.add_argument("--threads", type=int, help="CPU threads; by default one per core")
    parser.add_argument("--alias", required=True, metavar="NAME", help="the model's name in replies")
    parser.add_argument("--verbose", action="store_true", help="show llama.cpp's log, not just its errors")
    return parser.parse_args()


def _end_with_stdin() -> None:
    """Let the kernel end this process at end of file: loading a model keeps every Python thread waiting.

    Linux only. Elsewhere an end of file during loading is noticed after it.
    """
    if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(0).st_mode):
        import fcntl
        import select

        signal.signal(signal.SIGIO, signal.SIG_DFL)  # which is to end the process
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([0], [], [], 0)[0]:  # it was over before it was watched
            os._exit(0)


def _check_model(model: Path) -> None:
    try:
        with model.open("rb") as file:
            if file.read(4) != b"GGUF":
                _fail(f"not a GGUF file: {model}")
    except OSError as error:
        _fail(f"cannot read {model}: {error.strerror}")


def _check_port(port: int) -> None:
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError) as error:
        _fail(f"cannot listen on {HOST}:{port}: {getattr(error, 'strerror', error)}")


def _serve(options: argparse.Namespace) -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        _fail(f"xllamacpp cannot be imported ({error}): pip install 'sluice-gateway[demo]'")

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias}
    params.n_ctx, params.n_parallel = options.context * options.slots, options.slots  # n_ctx is split over the slots
    if options.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.hostnames, params.port = [HOST], options.port
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.ui = False
    params.cors_origins = f"http://{HOST}:{options.port}"  # llama.cpp lets any web page read its replies by default
    params.verbosity = EVERYTHING if options.verbose else ERRORS
    try:
        return xllamacpp.Server(params)
    except RuntimeError:  # which never says why; llama.cpp has
        _fail(f"llama.cpp cannot serve {options.model}; its own messages say why")


def _fail(message: str) -> NoReturn:
    sys.exit(message)


if __name__ == "__main__":
    main()
