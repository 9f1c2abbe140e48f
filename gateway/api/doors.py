"""All front doors."""

from gateway.api import openai
from gateway.api.door import Door

DOORS: list[Door] = [*openai.DOORS]
