# ruff: noqa: N802 - one-letter builders keep a scripted stream on one line
"""An Ollama on a real socket: the lines of its native streams, and its lists of models as they were recorded.

    async with Ollama([ndjson_reply(N("Hi"), END("stop"))], models=["qwen:latest", "qwen:7b"]) as engine: ...

Each line builder makes one whole line: `N("Hi") + END("stop")` is a whole stream.
"""

import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.support.engine import AnyScript, ScriptedEngine
from tests.support.gateway import RunningGateway, gateway
from tests.support.sse import chunked, http_ok, json_reply
from tests.support.wire import recording

NDJSON_HEAD = http_ok("Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
DIGEST = "765525e6017ab6ad369d812befc610782d2c43da14435f795b5922a44187b6aa"
"""That of the model in the recordings."""


def line(**members: Any) -> bytes:
    head = {"model": "M", "created_at": "2025-01-01T00:00:00Z"}
    return json.dumps({**head, **members}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def N(content: str = "", **message: Any) -> bytes:
    """A piece of the answer; `message` adds to it, such as `thinking`."""
    return line(message={"role": "assistant", "content": content, **message}, done=False)


def CALL(*calls: tuple[str, str | None, Any]) -> bytes:
    """A line with tool calls: the name, the id where there is one, and the arguments of each."""
    return N(
        tool_calls=[
            {
                **({} if call_id is None else {"id": call_id}),
                "function": {"index": 0, "name": name, "arguments": arguments},
            }
            for name, call_id, arguments in calls
        ]
    )


def END(reason: str = "stop", prompt: int = 9, output: int = 3, **members: Any) -> bytes:
    """The last line; `members` adds to it, such as `load_duration` in nanoseconds."""
    counts = {"prompt_eval_count": prompt, "eval_count": output}
    return line(message={"role": "assistant", "content": ""}, done=True, done_reason=reason, **counts, **members)


def G(text: str) -> bytes:
    """A piece of what `/api/generate` continues."""
    return line(response=text, done=False)


def GEND(reason: str = "stop", prompt: int = 9, output: int = 3) -> bytes:
    """The last line of `/api/generate`."""
    return line(response="", done=True, done_reason=reason, prompt_eval_count=prompt, eval_count=output)


def FAIL(message: str) -> bytes:
    """A failure in the middle, after which nothing comes."""
    return json.dumps({"error": message}).encode() + b"\n"


def ndjson_reply(*lines: bytes) -> bytes:
    """A whole streamed reply, one HTTP chunk for each line."""
    return NDJSON_HEAD + chunked(*lines)


def tags_reply(names: Collection[str], *, context: int | None = 8192) -> bytes:
    """What `/api/tags` says of models with these names."""
    listed = recording("ollama", "tags").reply.json()["models"][0]
    details = {**listed["details"], "context_length": context}
    return json_reply({"models": [{**listed, "name": name, "model": name, "details": details} for name in names]})


def ps_reply(loaded: dict[str, int]) -> bytes:
    """What `/api/ps` says of loaded models with these names and context lengths."""
    listed = recording("ollama", "ps").reply.json()["models"][0]
    return json_reply(
        {"models": [{**listed, "name": name, "model": name, "context_length": size} for name, size in loaded.items()]}
    )


VECTORS = json_reply({"model": "M", "embeddings": [[0.5, -1, 2]], "prompt_eval_count": 4})
"""An answer of `/api/embed` for one text."""


class Ollama(ScriptedEngine):
    """A scripted engine whose probes are answered as Ollama does. It knows nothing that Ollama does not.

    Args:
        script: what to do with requests.
        models: the names in its list, as Ollama writes them: with a tag.
        loaded: those in memory, with the context length in force.
        context: what the models were trained with, or `None` for a server too old to tell.
        probes: replies to GETs by path in place of these.
    """

    def __init__(
        self,
        script: AnyScript = (),
        *,
        models: Collection[str] = ("smollm2:latest",),
        loaded: dict[str, int] | None = None,
        context: int | None = 8192,
        probes: Mapping[str, bytes] | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(script, port=port)
        self.probe_replies = {
            "/": recording("ollama", "root").raw,
            "/api/version": json_reply({"version": "0.33.0"}),
            "/api/tags": tags_reply(models, context=context),
            "/api/ps": ps_reply(loaded or {}),
            **(probes or {}),
        }


@asynccontextmanager
async def sluice(engine: ScriptedEngine, **fields: Any) -> AsyncIterator[RunningGateway]:
    """A gateway with this engine alone, `local`, which it asks for its models; `smollm2` is also known as `alias`."""
    async with gateway(
        engines={"local": {"kind": "ollama", "url": engine.url, "probe": {"interval": 60}, **fields}},
        models={"alias": [{"engine": "local", "model": "smollm2"}]},
    ) as running:
        yield running
