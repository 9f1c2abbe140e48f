"""What is learned of an engine's speed with a model, from what each request showed."""

from typing import Protocol

_WEIGHT = 0.2
"""Of the latest request in each mean; the older ones share the rest, so that about the last ten count."""
_LEAST_TOKENS = 16
"""A prefill of fewer tokens says more of the engine's overhead than of its speed."""
_MOST_TOKENS, _FASTEST, _LONGEST = 100_000_000, 10_000_000.0, 86_400.0
"""Tokens of a request, tokens per second, and seconds, beyond which an engine's report cannot be true."""


class Report(Protocol):
    """What an engine told of a request; see `gateway.upstream.facts.EngineReport`."""

    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def completion_tokens(self) -> int | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def prefill(self) -> float | None: ...
    @property
    def decode(self) -> float | None: ...


class Rates:
    """Means that follow the latest requests. `None` is not known yet.

    Attributes:
        prefill: tokens of a prompt per second that are computed, cached ones left out.
        decode: tokens of an answer per second, of one request.
        service: seconds that a request holds its place at the engine.
        output: tokens of an answer.
    """

    def __init__(
        self,
        prefill: float | None = None,
        decode: float | None = None,
        service: float | None = None,
        output: float | None = None,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.service = service
        self.output = output

    def learn(self, report: Report, *, held: float, ttft: float | None) -> None:
        """Takes a request that was answered.

        Args:
            held: seconds that it had its place.
            ttft: seconds from its dispatch to its first output, which stands for the prefill where the engine does
                not tell it.
        """
        self.service = _mean(self.service, _true(held, _LONGEST))
        computed = (_true(report.prompt_tokens, _MOST_TOKENS) or 0) - max(0, report.cached_tokens or 0)
        if computed >= _LEAST_TOKENS:
            prefill = _true(report.prefill, _LONGEST) or _true(ttft, _LONGEST)
            self.prefill = _mean(self.prefill, _rate(computed, prefill))
        completion = _true(report.completion_tokens, _MOST_TOKENS)
        self.output = _mean(self.output, completion)
        if completion is not None and completion > 1:
            answering = None if ttft is None else held - ttft
            decode = _true(report.decode, _LONGEST) or _true(answering, _LONGEST)
            self.decode = _mean(self.decode, _rate(completion, decode))

    def prefill_time(self, tokens: int) -> float:
        """Seconds to compute `tokens` of a prompt, or 0 while that is not known."""
        return tokens / self.prefill if self.prefill else 0.0


class TokenRatio:
    """Tokens per byte of a model's prompts, learned from what engines counted."""

    START = 0.25
    """English text in JSON, before anything was counted."""
    LEAST, MOST = 0.01, 4.0
    """What is beyond cannot be true."""

    def __init__(self) -> None:
        self.ratio = self.START
        self.learned = False

    def learn(self, size: int, tokens: int) -> None:
        """`size` bytes of a request turned out to be `tokens`; a few bytes say more of the chat template."""
        if size >= 64 and tokens > 0:
            seen = min(self.MOST, max(self.LEAST, tokens / size))
            self.ratio = self.ratio + _WEIGHT * (seen - self.ratio) if self.learned else seen
            self.learned = True

    def estimate(self, size: int) -> int:
        return round(size * self.ratio)


def _true(told: float | None, most: float) -> float | None:
    """What was told, if it can be true."""
    return told if told is not None and 0 < told <= most else None


def _rate(tokens: float, seconds: float | None) -> float | None:
    return None if seconds is None else _true(tokens / seconds, _FASTEST)


def _mean(old: float | None, new: float | None) -> float | None:
    """The mean with one more value, if that is known."""
    if old is None or new is None:
        return old if new is None else new
    return old + _WEIGHT * (new - old)
