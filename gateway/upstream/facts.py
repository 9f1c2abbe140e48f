"""What an engine says of its own work: token counts and times, as found in OpenAI-shaped replies."""

import msgspec

NO_VALUE = msgspec.Raw(b"")
"""Stands for a field that is absent."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's `usage` object."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class Progress(msgspec.Struct):
    """llama.cpp's `prompt_progress`: tokens of the prompt, and milliseconds since its slot began."""

    total: int = 0
    processed: int = 0
    cache: int | None = None
    time_ms: float = 0.0


class _Timings(msgspec.Struct):
    """llama.cpp's `timings`: milliseconds, and tokens with the cached ones apart."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class EngineReport(msgspec.Struct, frozen=True):
    """Token counts, and times in seconds; `None` is what the engine did not say, never zero.

    `prompt_tokens` counts the cached ones too. `queue` is how long the engine let the request wait, and `load` how
    long it took to load the model for it.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prefill: float | None = None
    decode: float | None = None
    queue: float | None = None
    load: float | None = None

    def with_more(self, more: "EngineReport") -> "EngineReport":
        """This report, with what only `more` says."""
        if more == _NOTHING:
            return self
        return EngineReport(*(a if a is not None else b for a, b in zip(_members(self), _members(more), strict=True)))


_members = msgspec.structs.astuple
_NOTHING = EngineReport()
_EMPTY = frozenset({b"", b"null", b'""', b"[]", b"{}"})

_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_timings = msgspec.json.Decoder(_Timings).decode


def read_report(before: EngineReport, usage: Usage | None, timings: msgspec.Raw) -> EngineReport:
    """`before`, brought up to date with what one more reply or event said."""
    prompt, completion, cached = before.prompt_tokens, before.completion_tokens, before.cached_tokens
    prefill, decode = before.prefill, before.decode
    if timings is not NO_VALUE and (told := _timings(timings)) is not None:
        if told.prompt_n is not None:
            prompt = told.prompt_n + (told.cache_n or 0)
        completion = _known(told.predicted_n, completion)
        cached = _known(told.cache_n, cached)
        prefill = prefill if told.prompt_ms is None else told.prompt_ms / 1000
        decode = decode if told.predicted_ms is None else told.predicted_ms / 1000
    if usage is not None:
        prompt = _known(usage.prompt_tokens, prompt)
        completion = _known(usage.completion_tokens, completion)
        if usage.prompt_tokens_details is not None:
            cached = _known(usage.prompt_tokens_details.cached_tokens, cached)
    return EngineReport(prompt, completion, cached, prefill, decode, before.queue, before.load)


def read_progress(raw: msgspec.Raw) -> Progress:
    """What `prompt_progress` says; nothing where it has another form."""
    try:
        return _decode_progress(raw)
    except msgspec.DecodeError:
        return Progress()


def filled(value: msgspec.Raw) -> bool:
    """Whether a field is there and holds something."""
    return value is not NO_VALUE and bytes(value) not in _EMPTY


def _known(new: int | None, old: int | None) -> int | None:
    return old if new is None else new


def _timings(raw: msgspec.Raw) -> _Timings | None:
    try:
        return _decode_timings(raw)
    except msgspec.DecodeError:
        return None
