"""The dialects in which the gateway is asked, each by the library that its users have."""

from tests.conformance.dialects.anthropic import AnthropicMessages
from tests.conformance.dialects.base import Clients, Dialect, clients
from tests.conformance.dialects.ollama import OllamaChat, OllamaGenerate
from tests.conformance.dialects.openai_chat import OpenAIChat
from tests.conformance.dialects.openai_completions import OpenAICompletions
from tests.conformance.dialects.openai_responses import OpenAIResponses

DIALECTS: tuple[type[Dialect], ...] = (
    OpenAIChat,
    OpenAICompletions,
    OpenAIResponses,
    AnthropicMessages,
    OllamaChat,
    OllamaGenerate,
)

__all__ = ["DIALECTS", "Clients", "Dialect", "clients"]
