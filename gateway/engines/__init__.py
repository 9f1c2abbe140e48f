"""Adapters for the engines behind the gateway, by kind."""

from gateway.engines.base import Engine
from gateway.engines.llamacpp import LlamaCppEngine
from gateway.engines.ollama import OllamaEngine
from gateway.engines.openai import OpenAIEngine
from gateway.engines.tgi import TgiEngine
from gateway.engines.vllm import VllmEngine

KINDS: dict[str, type[Engine]] = {
    engine.kind: engine
    for engine in (
        LlamaCppEngine,
        OllamaEngine,
        TgiEngine,
        VllmEngine,
        OpenAIEngine,
    )
}

__all__ = ["KINDS", "Engine"]
