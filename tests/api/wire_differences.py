"""Recordings that clients of the gateway get in another form than the engine sent them, and why.

Every other recording of `/v1/chat/completions` and `/v1/completions` arrives as it was, byte for byte.
"""

from dataclasses import dataclass
from typing import Any

from tests.support.sse import read_events
from tests.support.wire import Recording


@dataclass(frozen=True)
class Difference:
    """`status` is `None` where the engine's own is kept; `outcome` is what the log says."""

    why: str
    names: str
    status: int | None
    outcome: str
    asked: bool = True
    """Whether the engine saw the request at all."""


DIFFERENCES = [
    Difference(
        "the request is not JSON, which no engine need look at",
        """
        llamacpp/chat-bad-json ollama/chat-bad-json vllm/chat-bad-json tgi/chat-bad-json tgi/auth-missing-bad-json
        tgi/chat-trailing-garbage tgi/chat-no-body
        """,
        400,
        "invalid_json",
        asked=False,
    ),
    Difference(
        "the request has no message, no model's name or no choice, which some engines answer with made-up text",
        """
        llamacpp/chat-empty-messages ollama/chat-empty-messages vllm/chat-empty-messages tgi/chat-empty-messages
        tgi/strict-template-empty tgi/chat-model-empty tgi/chat-n-zero
        """,
        400,
        "invalid_request",
        asked=False,
    ),
    Difference("the model's name has the wrong type", "tgi/chat-model-null", 400, "invalid_type", asked=False),
    Difference("the request has no messages", "tgi/chat-missing-messages", 400, "missing_field", asked=False),
    Difference(
        "the gateway has routes of its own", "tgi/chat-get tgi/cors-preflight", 405, "method_not_allowed", asked=False
    ),
    Difference(
        "the engine refuses the gateway's credentials, not the client's",
        """
        tgi/auth-basic-chat tgi/auth-missing-chat tgi/auth-missing-chat-stream tgi/auth-missing-completion
        tgi/auth-no-bearer-chat tgi/auth-wrong-chat tgi/auth-x-api-key-chat
        """,
        502,
        "engine_credentials",
    ),
    Difference(
        "the error is not in OpenAI's form",
        """
        tgi/chat-audio-part tgi/chat-both-max tgi/chat-content-null tgi/chat-content-type-text
        tgi/chat-context-overflow tgi/chat-duplicate-key tgi/chat-error-decode tgi/chat-error-prefill
        tgi/chat-frequency-penalty-three tgi/chat-json-no-properties tgi/chat-json-object tgi/chat-json-schema
        tgi/chat-logit-bias-object tgi/chat-max-float tgi/chat-negative-max tgi/chat-null-stream
        tgi/chat-null-stream-options tgi/chat-presence-penalty-minus-two tgi/chat-response-format-text
        tgi/chat-seed-negative tgi/chat-stop-five tgi/chat-stop-string tgi/chat-temperature-negative
        tgi/chat-tool-role-no-content-key tgi/chat-tools-and-format tgi/chat-tools-and-format-stream
        tgi/chat-tools-cut tgi/chat-tools-empty tgi/chat-tools-named-unknown tgi/chat-tools-named-unknown-stream
        tgi/chat-tools-no-parameters tgi/chat-top-logprobs-six tgi/chat-top-p-one tgi/chat-total-overflow
        tgi/chat-zero-max tgi/completion-batch-error tgi/completion-batch-five tgi/completion-batch-five-stream
        tgi/completion-context-overflow tgi/completion-error-prefill tgi/completion-null-stream
        tgi/completion-prompt-empty tgi/completion-prompt-empty-list tgi/completion-prompt-ids
        tgi/completion-stop-string tgi/completion-suffix tgi/dead-chat tgi/no-template-chat
        tgi/no-template-chat-stream tgi/overload-alone-completion-batch tgi/overload-chat tgi/overload-completion
        tgi/small-batch-three tgi/small-chat-body-too-large tgi/small-chat-json-schema-grammar-disabled
        tgi/small-chat-tools-grammar-disabled tgi/small-chat-total-overflow tgi/strict-template-developer
        tgi/strict-template-system tgi/strict-template-system-stream tgi/strict-template-two-users
        tgi/vision-bad-base64 tgi/vision-file-scheme tgi/vision-http-refused tgi/vision-image-string-url
        tgi/vision-markdown-in-text tgi/vision-no-base64-marker tgi/vision-not-an-image tgi/vision-unknown-mimetype
        """,
        None,
        "engine_error",
    ),
    Difference(
        "a stream that begins with an error, followed by `[DONE]` or not, has a status of its own",
        """
        tgi/chat-context-overflow-stream tgi/chat-error-prefill-stream tgi/chat-json-no-properties-stream
        tgi/chat-tools-error-decode-stream tgi/chat-top-p-one-stream tgi/completion-context-overflow-stream
        tgi/completion-error-prefill-stream tgi/completion-top-p-one-stream tgi/dead-chat-stream
        tgi/dead-completion-stream tgi/overload-alone-completion-batch-stream tgi/overload-chat-stream
        tgi/overload-completion-stream tgi/small-chat-total-overflow-stream tgi/vision-http-refused-stream
        tgi/vision-not-an-image-stream
        """,
        502,
        "engine_error",
    ),
    Difference(
        "after output, an error event is the last one: no `[DONE]` follows it",
        """
        tgi/chat-error-decode-stream tgi/completion-batch-error-stream tgi/completion-error-decode-stream
        tgi/died-mid-chat-stream
        """,
        200,
        "engine_error",
    ),
    Difference(
        "a stream without any finish_reason is not whole, `[DONE]` or not",
        """
        ollama/chat-runner-killed-stream tgi/chat-tool-result-foreign-id tgi/chat-tool-result-next-id
        tgi/chat-tools-logprobs-stream tgi/chat-tools-required-stream tgi/chat-tools-stream
        """,
        200,
        "engine_failed",
    ),
    Difference(
        "nothing came of it: no reply, comments only, or only `[DONE]`",
        "ollama/chat-max-completion-tokens tgi/hung-chat-stream tgi/chat-tools-cut-stream",
        502,
        "engine_failed",
    ),
]

BY_NAME = {name: difference for difference in DIFFERENCES for name in difference.names.split()}


def words_of(recording: Recording) -> str | None:
    """What the engine says in its error, in whichever of its forms; `None` if it says nothing."""
    body = recording.body
    if (recording.headers.get("content-type") or "").startswith("text/plain"):
        return body.decode()
    if body.startswith(b"{"):
        return str(recording.reply.json()["error"])
    errors: list[dict[str, Any]] = [event.error for event in read_events(body) if event.error]
    return errors[0]["message"] if errors else None
