"""What is learned of an engine's speed with a model, from what each request showed."""

from typing import Protocol

_WEIGHT = 0.2
"""Of the latest request in each mean; the older ones share the rest, so that about the last ten count."""
_LEAST_TOKENS = 16
"""A prefill of fewer tokens says more of the engine's overhead than of its speed."""


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
        self.service = _mean(self.service, held)
        computed = (report.prompt_tokens or 0) - (report.cached_tokens or 0)
        prefill = report.prefill if report.prefill is not None else ttft
        if computed >= _LEAST_TOKENS and prefill:
            self.prefill = _mean(self.prefill, computed / prefill)
        if report.completion_tokens:
            self.output = _mean(self.output, report.completion_tokens)
            decode = report.decode
            if decode is None and ttft is not None and held > ttft:
                decode = held - ttft
            if decode and report.completion_tokens > 1:
                self.decode = _mean(self.decode, report.completion_tokens / decode)

    def prefill_time(self, tokens: int) -> float:
        """Seconds to compute `tokens` of a prompt, or 0 while that is not known."""
        return tokens / self.prefill if self.prefill else 0.0


class TokenRatio:
    """Tokens per byte of a model's prompts, learned from what engines counted."""

    START = 0.25
    """English text in JSON, before anything was counted."""

    def __init__(self) -> None:
        self.ratio = self.START
        self.learned = False

    def learn(self, size: int, tokens: int) -> None:
        """`size` bytes of a request turned out to be `tokens`; a few bytes say more of the chat template."""
        if size >= 64 and tokens > 0:
            seen = min(4.0, tokens / size)
            self.ratio = _mean(self.ratio, seen) if self.learned else seen
            self.learned = True

    def estimate(self, size: int) -> int:
        return round(size * self.ratio)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
