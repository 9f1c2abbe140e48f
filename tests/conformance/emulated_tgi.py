"""TGI with what its emulator has not: tools, schemas and images, as they were recorded."""

import json
from typing import Any

from tests.support.engine import Connection, Request
from tests.support.tgi import Tgi
from tests.support.wire import recording

PAUSE = 0.002
"""Seconds before each token, for clients that leave in between."""
SCHEMA: dict[str, Any] = json.loads(recording("tgi", "chat-json-value-stream").request_body)["response_format"]["value"]
"""The one that an answer was recorded for."""


def emulator() -> Tgi:
    engine = Tgi(pause=PAUSE)
    others = engine.script

    async def play(request: Request, connection: Connection) -> None:
        name = _recorded(request.json())
        if name is None:
            assert callable(others)
            await others(request, connection)
            return
        for step in recording("tgi", name).script():
            await connection.do(step)

    engine.script = play
    return engine


def _recorded(body: dict[str, Any]) -> str | None:
    """The recording that answers this request."""
    streamed = "-stream" if body.get("stream") else ""
    last: dict[str, Any] = body.get("messages", [{}])[-1]
    if body.get("tools"):
        assert streamed, "the gateway asks for tools in a stream only"
        return "chat-tools-no-tool-stream" if last["role"] == "tool" else "chat-tools-stream"
    if body.get("response_format"):
        return f"chat-json-value{streamed}" if streamed else "chat-json-schema-value"
    if isinstance(last.get("content"), list):
        return f"vision-image{streamed}"
    return None
