"""OpenAI's text completions as TGI's own endpoints take them, `/generate` and `/generate_stream`.

Sources: `GenerateParameters` in `router/src/lib.rs` of https://github.com/huggingface/text-generation-inference, and
recordings of its router.
"""

from collections.abc import Mapping

from gateway.translate.chat import Json

GENERATE, GENERATE_STREAM = "/generate", "/generate_stream"

_PARAMETERS = {
    "max_tokens": "max_new_tokens",
    "response_format": "grammar",
    "logprobs": "top_n_tokens",
    **{
        name: name
        for name in (
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "stop",
            "temperature",
            "top_k",
            "top_p",
            "truncate",
            "typical_p",
        )
    },
}
"""OpenAI's name of each parameter, or the one it has with TGI, and then TGI's."""
_NEUTRAL: dict[str, tuple[Json, ...]] = {
    "temperature": (0,),
    "top_k": (0, -1),
    "typical_p": (1,),
}
"""Values that ask for nothing, which TGI refuses."""


def to_generate(body: Mapping[str, Json], prompt: str) -> tuple[str, dict[str, Json]]:
    """The endpoint's path and the body, for one already in the form of TGI's `/v1/completions`.

    What has no parameter there is left out.
    """
    given = {theirs: body[ours] for ours, theirs in _PARAMETERS.items() if ours in body}
    parameters = {name: value for name, value in given.items() if value not in _NEUTRAL.get(name, ())}
    parameters["do_sample"] = given.get("temperature") != 0  # without it TGI takes the likeliest tokens
    parameters["details"] = True  # the end's reason and the counts
    path = GENERATE_STREAM if body.get("stream") else GENERATE
    return path, {"inputs": prompt, "parameters": parameters}
