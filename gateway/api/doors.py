"""All front doors."""

from gateway.api import anthropic, ollama, openai, responses
from gateway.api.door import Door
from gateway.api.models import Names

DOORS: list[Door] = [*openai.DOORS, *anthropic.DOORS, *responses.DOORS]


def all_doors(names: Names) -> list[Door]:
    """Those of Ollama's dialect too, whose clients have their own names for models."""
    return [*DOORS, *ollama.doors(names)]
