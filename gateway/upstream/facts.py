"""What an engine says of its own work: token counts and times, as found in OpenAI-shaped replies."""

import json

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


class _Timings(msgspec.Struct):
    """llama.cpp's `timings`: milliseconds, and tokens with the cached ones apart."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class EngineReport(msgspec.Struct, frozen=True):
    """Token counts, and times in seconds; `None` is what the engine did not say, never zero.

    `prompt_tokens` counts the cached ones too.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prefill: float | None = None
    decode: float | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: msgspec.Raw = NO_VALUE
    usage: Usage | None = None
    timings: msgspec.Raw = NO_VALUE


_decode_completion = msgspec.json.Decoder(_Completion).decode
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
    return EngineReport(prompt, completion, cached, prefill, decode)


def read_completion(body: bytes) -> EngineReport:
    """The report inside a reply that came in one piece.

    JSON of odd types, or with NaN, is an answer that tells nothing here.

    Raises:
        ValueError: `body` is not a JSON object, or is an error.
    """
    try:
        reply = _decode_completion(body)
    except msgspec.DecodeError:
        value = json.loads(body)
        if not isinstance(value, dict) or (value.get("error") and not value.get("choices")):
            raise ValueError("not an answer") from None
        return EngineReport()
    if not reply.choices and reply.error is not NO_VALUE and bytes(reply.error) != b"null":
        raise ValueError("an error")
    return read_report(EngineReport(), reply.usage, reply.timings)


def _known(new: int | None, old: int | None) -> int | None:
    return old if new is None else new


def _timings(raw: msgspec.Raw) -> _Timings | None:
    try:
        return _decode_timings(raw)
    except msgspec.DecodeError:
        return None
