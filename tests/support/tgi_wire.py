"""What TGI's router takes and says, endpoint by endpoint, around a model that knows a few answers by heart.

Sources: `router/src/lib.rs` in https://github.com/huggingface/text-generation-inference, version 3.3.7, and the
recordings in `tests/wire/tgi`, which every form here is held against in `tests/engines/test_tgi_emulator.py`.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
CONTEXT = 4096
MOST_STOPS = 4
END = "<|im_end|>"
_KEPT = 1024
_TEMPLATE, _TEMPLATE_CHARACTERS = 30, 148
"""What the chat template adds to a single message, in tokens and in characters."""


def _pieces(text: str) -> list[str]:
    return text.split("|")


BY_HEART = {
    "Once upon a time": (4, _pieces(" there| was| a| little| robot| who| wanted| to| learn")),
    "What is the capital of France?": (7, _pieces("The| capital| of| France| is| Paris|.")),
    "What is the capital of Italy?": (7, _pieces("The| capital| of| Italy| is| Rome|.")),
    "Make a list and stop.": (6, _pieces("1|.| apples|\n|2|.| pears|\n|3|.| pl|ums|\n|END| and more")),
    "Say hello.": (
        3,
        _pieces(
            "Hello|!| I|'m| here| to| help| you| with| any| questions| or| information| you| might| need|.| How| can"
            "| I| assist| you| today|?"
        ),
    ),
}
"""How many tokens a prompt has, and those of the answer before its end."""
_OTHER = (2, ["one", " two", " three", " four", " five", " six"])

Natural = Annotated[int, msgspec.Meta(ge=0)]


# What it takes


class Grammar(msgspec.Struct):
    type: Literal["json", "regex", "json_schema"]
    value: Any


class Parameters(msgspec.Struct):
    """Those of `/generate`. Fields without `None` refuse null, as TGI's do."""

    best_of: Natural | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: Natural | None = None
    return_full_text: bool | None = None
    stop: list[str] = []
    truncate: Natural | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: Natural | None = None
    top_n_tokens: Natural | None = None
    grammar: Grammar | None = None


class Generate(msgspec.Struct):
    inputs: str
    parameters: Parameters = msgspec.field(default_factory=Parameters)
    stream: bool = False


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class OpenAi(msgspec.Struct, kw_only=True):
    """What its OpenAI endpoints have in common."""

    max_tokens: Natural | None = msgspec.field(default=None)
    temperature: float | None = None
    top_p: float | None = None
    seed: Natural | None = None
    stop: list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)

    def parameters(self, top: int | None = None) -> Parameters:
        greedy = self.temperature == 0
        return Parameters(
            temperature=None if greedy else self.temperature,
            do_sample=not greedy,
            top_p=self.top_p,
            seed=self.seed,
            stop=self.stop or [],
            max_new_tokens=self.max_tokens,
            details=True,
            top_n_tokens=top,
        )


class Message(msgspec.Struct):
    role: str
    content: str = ""


class Chat(OpenAi, kw_only=True):
    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: Natural | None = None


class Completion(OpenAi, kw_only=True):
    prompt: str | list[str]


def complaint(prompt: str, wanted: Parameters, *, stream: bool) -> str | None:
    """Why TGI would refuse this, in its words."""
    length, limit = _length(prompt), min(wanted.max_new_tokens or 1, _KEPT)
    found = {
        "`best_of` != 1 is not supported when streaming tokens": stream and (wanted.best_of or 1) != 1,
        "`inputs` cannot be empty": not prompt,
        "`temperature` must be strictly positive": wanted.temperature is not None and wanted.temperature <= 0,
        "`top_p` must be > 0.0 and < 1.0": wanted.top_p is not None and not 0 < wanted.top_p < 1,
        "`max_new_tokens` must be strictly positive": wanted.max_new_tokens == 0,
        f"`stop` supports up to {MOST_STOPS} stop sequences. Given: {len(wanted.stop)}": len(wanted.stop) > MOST_STOPS,
        f"`top_n_tokens` must be >= 0 and <= 5. Given: {wanted.top_n_tokens}": (wanted.top_n_tokens or 0) > 5,
        f"`inputs` tokens + `max_new_tokens` must be <= {CONTEXT}. Given: {length} `inputs` tokens and {limit} "
        "`max_new_tokens`": length + limit > CONTEXT,
    }
    return next((f"Input validation error: {text}" for text, applies in found.items() if applies), None)


# What the model makes of it


@dataclass(frozen=True)
class Token:
    """`reason` ends the answer, and `said` is then all of it."""

    index: int
    text: str
    special: bool = False
    reason: str | None = None
    said: str = ""

    def json(self) -> dict[str, Any]:
        number = 2 if self.special else 3 + sum(self.text.encode())
        return {"id": number, "text": self.text, "logprob": -0.5, "special": self.special}

    def top(self, number: int) -> list[dict[str, Any]]:
        return [self.json(), *(Token(0, f" or{at}").json() for at in range(number))][:number]


def generate(prompt: str, wanted: Parameters) -> list[Token]:
    """TGI goes on from a limit above 1024 to a multiple of that, and keeps a stop string in the text."""
    limit = wanted.max_new_tokens or CONTEXT
    if limit > _KEPT:
        limit = min(-(-limit // _KEPT) * _KEPT, CONTEXT - _length(prompt))
    made: list[Token] = []
    said = ""
    for index, text in enumerate(itertools.islice(_tokens(prompt), limit), 1):
        special = text == END
        said += "" if special else text
        stopped = any(said.endswith(stop) for stop in wanted.stop)
        reason = "eos_token" if special else "stop_sequence" if stopped else "length" if index == limit else None
        made.append(Token(index, text, special, reason, said if reason else ""))
        if reason:
            break
    return made


def _length(prompt: str) -> int:
    return BY_HEART[prompt][0] if prompt in BY_HEART else max(len(prompt.split()), 1)


def _tokens(prompt: str) -> Iterator[str]:
    """A prompt that asks to COUNT gets an answer without an end."""
    if prompt.startswith("COUNT"):
        return itertools.repeat("x")
    return iter([*BY_HEART.get(prompt, _OTHER)[1], END])


# What it says


Forms: TypeAlias = "NativeForm | ChatForm | CompletionForm"
_FINGERPRINT = "3.3.6-dev0-native"


class _Form:
    done: ClassVar[bytes]
    prompts: list[str]
    wanted: Parameters
    stream: bool

    @property
    def characters(self) -> int:
        return sum(map(len, self.prompts))


class NativeForm(_Form):
    """`/generate` and `/generate_stream`; `/` is one or the other by its `stream`, and answers with a list."""

    done = b""

    def __init__(self, path: str, body: bytes) -> None:
        self._asked = msgspec.json.decode(body, type=Generate)
        self._list = path == "/"
        self.stream = path == "/generate_stream" or (self._list and self._asked.stream)
        self.wanted = self._asked.parameters
        self.prompts = [self._asked.inputs]

    def length(self, _: str) -> int:
        return _length(self._asked.inputs)

    def events(self, _: int, token: Token) -> list[object]:
        last = token.reason is not None
        details = {**self._ending(token), "input_length": _length(self._asked.inputs)} if last else None
        top = {"top_tokens": token.top(self.wanted.top_n_tokens)} if self.wanted.top_n_tokens else {}
        return [
            {
                "index": token.index,
                "token": token.json(),
                **top,
                "generated_text": self._full(token.said) if last else None,
                "details": details if self.wanted.details else None,
            }
        ]

    def whole(self, answers: Sequence[Sequence[Token]]) -> object:
        (tokens,) = answers
        answer: dict[str, Any] = {"generated_text": self._full(tokens[-1].said)}
        if self.wanted.details:
            top = [token.top(self.wanted.top_n_tokens) for token in tokens] if self.wanted.top_n_tokens else None
            answer["details"] = {
                **self._ending(tokens[-1]),
                "prefill": [],
                "tokens": [token.json() for token in tokens],
                **({"top_tokens": top} if top else {}),
            }
        return [answer] if self._list else answer

    def error(self, kind: str, message: str) -> object:
        return {"error": message, "error_type": kind}

    def _ending(self, last: Token) -> dict[str, Any]:
        seed = self.wanted.seed or 7 if self.wanted.do_sample else None
        return {"finish_reason": last.reason, "generated_tokens": last.index, "seed": seed}

    def _full(self, said: str) -> str:
        wanted = self.wanted.return_full_text
        return f"{self._asked.inputs}{said}" if (self._list if wanted is None else wanted) else said


class _OpenAiForm(_Form):
    done = b"data: [DONE]\n\n"

    def error(self, _: str, message: str) -> object:
        return {"error": {"message": message, "http_status_code": 422}}

    def _reply(self, kind: str, choices: list[Any], **members: Any) -> dict[str, Any]:
        head = {"object": kind, "id": "", "created": 1, "model": MODEL, "system_fingerprint": _FINGERPRINT}
        return {**head, "choices": choices, **members}


class ChatForm(_OpenAiForm):
    """`/v1/chat/completions`, without tools."""

    def __init__(self, _: str, body: bytes) -> None:
        self._asked = asked = msgspec.json.decode(body, type=Chat)
        self.stream = asked.stream
        self.wanted = asked.parameters(asked.top_logprobs)
        self.prompts = [asked.messages[-1].content if asked.messages else ""]

    @property
    def characters(self) -> int:
        return super().characters + _TEMPLATE_CHARACTERS

    def length(self, prompt: str) -> int:
        return _length(prompt) + _TEMPLATE

    def events(self, _: int, token: Token) -> list[object]:
        delta = {"role": "assistant", "content": "" if token.special else token.text}
        reason = "stop" if token.reason == "eos_token" else token.reason
        choice = {"index": 0, "delta": delta, "logprobs": self._logprobs([token]), "finish_reason": reason}
        events: list[object] = [self._reply("chat.completion.chunk", [choice], usage=None)]
        if token.reason and self._asked.stream_options.include_usage:
            usage = usage_of(self.length(self.prompts[0]), token.index)
            events.append(self._reply("chat.completion.chunk", [], usage=usage))
        return events

    def whole(self, answers: Sequence[Sequence[Token]]) -> object:
        (tokens,) = answers
        last = tokens[-1]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": last.said},
            "logprobs": self._logprobs(tokens),
            "finish_reason": "stop" if last.reason == "eos_token" else last.reason,
        }
        return self._reply("chat.completion", [choice], usage=usage_of(self.length(self.prompts[0]), last.index))

    def _logprobs(self, tokens: Sequence[Token]) -> object:
        if not self._asked.logprobs:
            return None

        def told(token: dict[str, Any]) -> dict[str, Any]:
            return {"token": token["text"], "logprob": token["logprob"]}

        top = self._asked.top_logprobs or 0
        return {"content": [{**told(one.json()), "top_logprobs": [*map(told, one.top(top))]} for one in tokens]}


class CompletionForm(_OpenAiForm):
    """`/v1/completions`. Its streams have other reasons than its whole replies, and the text of the end token."""

    def __init__(self, _: str, body: bytes) -> None:
        self._asked = asked = msgspec.json.decode(body, type=Completion)
        self.stream = asked.stream
        self.wanted = asked.parameters()
        self.prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt

    def length(self, prompt: str) -> int:
        return _length(prompt)

    def events(self, at: int, token: Token) -> list[object]:
        choice = {"index": at, "text": token.text, "logprobs": None, "finish_reason": token.reason or ""}
        usage = {"usage": usage_of(self.length(self.prompts[at]), token.index)} if token.reason else {}
        return [self._reply("text_completion", [choice], **usage)]

    def whole(self, answers: Sequence[Sequence[Token]]) -> object:
        reasons = ["stop" if tokens[-1].reason == "eos_token" else tokens[-1].reason for tokens in answers]
        choices = [
            {"index": at, "text": tokens[-1].said, "logprobs": None, "finish_reason": reason}
            for at, (tokens, reason) in enumerate(zip(answers, reasons, strict=True))
        ]
        usage = usage_of(sum(map(self.length, self.prompts)), sum(tokens[-1].index for tokens in answers))
        return self._reply("text_completion", choices, usage=usage)


def usage_of(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


FORMS: dict[str, type[Forms]] = {
    "/": NativeForm,
    "/generate": NativeForm,
    "/generate_stream": NativeForm,
    "/v1/chat/completions": ChatForm,
    "/v1/completions": CompletionForm,
}
