"""What is asked and answered, in no dialect: each feature is checked once, and every dialect writes and reads it."""

from enum import Enum
from typing import Any, NamedTuple

import msgspec

MODEL = "chat"
"""What the gateway calls the engine's model."""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""An image of one pixel, in base64."""
TOOL, ABOUT = "get_weather", "Weather of a city"
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
"""The one tool that models are offered."""


class Call(NamedTuple):
    """A tool call; `arguments` is what its text holds as JSON."""

    id: str
    arguments: Any
    name: str = TOOL


class User(msgspec.Struct, frozen=True):
    text: str
    image: bool = False


class Assistant(msgspec.Struct, frozen=True):
    text: str = ""
    thoughts: str = ""
    calls: tuple[Call, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """What came of the tool call with this id."""

    call: str
    text: str


Turn = User | Assistant | Result


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request."""

    turns: tuple[Turn, ...]
    limit: int = 8
    """Tokens of the answer at most."""
    stream: bool = False
    tools: bool = False
    forced: bool = False
    """The model must call a tool."""
    schema: dict[str, Any] | None = None
    stop: str | None = None
    logprobs: int = 0
    """How many alternatives to tell with each token."""
    n: int = 1
    temperature: float = 0
    think: bool = False
    model: str = MODEL

    @property
    def prompt(self) -> str:
        """What the user said last."""
        return next(turn.text for turn in reversed(self.turns) if isinstance(turn, User))


class End(Enum):
    """Why an answer ended. `SEQUENCE` is that a stop sequence did it, where a dialect tells that apart."""

    STOP = "stop"
    SEQUENCE = "sequence"
    LIMIT = "limit"
    CALLS = "calls"


class Token(NamedTuple):
    logprob: float
    alternatives: int


class Answer(msgspec.Struct, kw_only=True):
    """An answer as a client library understood it."""

    texts: list[str]
    """That of each choice."""
    end: End
    prompt_tokens: int | None
    output_tokens: int | None
    calls: list[Call] = []
    thoughts: str = ""
    tokens: list[Token] = []
    """The log probability of each token, if they were told."""
    pieces: int = 1
    """How many parts of text a stream had."""
    remark: str = ""
    """What is odd about it, though a client can live with it."""

    @property
    def text(self) -> str:
        return self.texts[0]


class Refusal(Exception):
    """An error answer in the form that the dialect has for it.

    `code` is the dialect's most precise word for it, and `param` the field that it is about, if the dialect has that.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message, self.param = status, code, message, param

    @property
    def words(self) -> str:
        """Its status and code."""
        return f"{self.status} `{self.code}`" if self.code else f"{self.status}"
