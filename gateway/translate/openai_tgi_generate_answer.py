"""Answers of TGI's own `/generate` and `/generate_stream` as those of OpenAI's text completions.

Each event holds one token; the last one, after which no `[DONE]` comes, holds the whole text too. Sources:
`router/src/lib.rs` in https://github.com/huggingface/text-generation-inference, and recordings of its router.
"""

import msgspec

from gateway.translate.chat import Json
from gateway.translate.openai_tgi import Asked
from gateway.translate.openai_tgi_answer import TgiReader
from gateway.translate.openai_tgi_choice import Given, GivenChoice, GivenLogprobs, Usage
from gateway.translate.stops import Entry, Text


class _Token(msgspec.Struct):
    """`special` ones, such as the one that ends an answer, are no part of its text."""

    text: str = ""
    logprob: float | None = None
    special: bool = False


class _Details(msgspec.Struct):
    """Whole replies have `tokens` and streams `input_length`, the tokens of the prompt."""

    finish_reason: str | None = None
    generated_tokens: int = 0
    input_length: int | None = None
    tokens: list[_Token] = []
    top_tokens: list[list[_Token]] | None = None


class _Said(msgspec.Struct):
    """An event, or a whole reply, which has no `token`."""

    token: _Token | None = None
    top_tokens: list[_Token] | None = None
    generated_text: str | None = None
    details: _Details | None = None
    error: str | None = None
    error_type: str = ""


_decode = msgspec.json.Decoder(_Said).decode


class GenerateReader(TgiReader):
    """Reads one answer; see `gateway.engines.call.Reader`."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._place = 0
        """Where in the text the next token begins."""

    def _read(self, payload: bytes) -> Given:
        said = _decode(payload)
        if said.error is not None:
            return Given(error=said.error, error_type=said.error_type)
        details = said.details or _Details()
        if said.token is not None:
            text = "" if said.token.special else said.token.text
            entries = self._entries([said.token], [said.top_tokens or []])
        elif said.generated_text is not None:
            text = said.generated_text
            entries = self._entries(details.tokens, details.top_tokens or [[]] * len(details.tokens))
        else:
            return Given()
        choice = GivenChoice(text=text, logprobs=GivenLogprobs(entries), finish_reason=details.finish_reason)
        return Given(choices=[choice], usage=self._usage_of(details), done=said.generated_text is not None)

    def _entries(self, tokens: list[_Token], likeliest: list[list[_Token]]) -> list[Entry]:
        if not self._asked.logprobs:
            return []
        return [
            {"token": token.text, "logprob": token.logprob, "top": {one.text: one.logprob for one in [*likely, token]}}
            for token, likely in zip(tokens, likeliest, strict=True)
            if not token.special
        ]

    def _usage_of(self, details: _Details) -> Usage | None:
        """Only headers tell how long the prompt of a whole reply is."""
        prompt = self.report.prompt_tokens if details.input_length is None else details.input_length
        if prompt is None or details.finish_reason is None:
            return None
        return Usage(prompt, details.generated_tokens, prompt + details.generated_tokens)

    def _logprobs(self, said: Text) -> Json:
        """In the form of text completions, where each token has its place in the whole text."""
        if not self._asked.logprobs:
            return None
        places: list[int] = []
        for entry in said.logprobs:
            places.append(self._place)
            self._place += len(str(entry["token"]))
        return {
            "tokens": [entry["token"] for entry in said.logprobs],
            "token_logprobs": [entry["logprob"] for entry in said.logprobs],
            "top_logprobs": [entry["top"] for entry in said.logprobs],
            "text_offset": places,
        }
