"""A program: llama.cpp with a chat template that knows tools and thoughts, which SmolLM2's own does not.

It ends with its standard input.
"""

import sys
from pathlib import Path

import xllamacpp


def main(model: str, alias: str, port: int, template: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = model, {alias}
    params.n_ctx, params.n_parallel = 4096, 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port = ["127.0.0.1"], port
    params.chat_template = Path(template).read_text()
    params.endpoint_slots = params.endpoint_props = True
    params.ui = False
    params.verbosity = 1
    _server = xllamacpp.Server(params)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
