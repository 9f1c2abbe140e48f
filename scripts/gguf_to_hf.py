"""Turns a llama.cpp model file into a directory that vLLM loads: `gguf_to_hf.py MODEL.gguf DIRECTORY`.

Runs in the environment of vLLM, which has torch and transformers.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(gguf: Path, directory: Path) -> None:
    """Writes the tokenizer and the weights of `gguf` in bfloat16, without its quantization."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    del loaded.config.quantization_config  # the weights are not quantized any more, and vLLM would believe it
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
