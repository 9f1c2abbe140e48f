"""The recordings of real engines in `tests/wire`; its README says how they were made."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from tests.support.engine import Script, Step
from tests.support.http1 import Headers, ReplyMessage, read_reply

WIRE = Path(__file__).parent.parent / "wire"
CUT = "<TimeoutError>"
"""Stands in a recording for a read that was given up."""


@dataclass(frozen=True)
class Recording:
    """One exchange. `reads` are the reads of the client, with the seconds since it had sent the request."""

    engine: str
    name: str
    method: str
    path: str
    request_headers: dict[str, str]
    request_body: bytes
    reads: tuple[tuple[float, bytes], ...]

    def __str__(self) -> str:
        return f"{self.engine}/{self.name}"

    @property
    def raw(self) -> bytes:
        """The reply as it was on the wire."""
        return b"".join(data for _, data in self.reads)

    @functools.cached_property
    def reply(self) -> ReplyMessage:
        return read_reply(self.raw, self.method)

    @property
    def status(self) -> int:
        """0 where the engine never answered."""
        return self.reply.status

    @property
    def headers(self) -> Headers:
        return self.reply.headers

    @property
    def body(self) -> bytes:
        """The reply's body without its HTTP chunks."""
        return self.reply.body

    def script(self, pace: float = 0.0) -> Script:
        """The reply as an engine's script, read by read; at a `pace` of 1 with the engine's own pauses."""
        steps: list[bytes | float | Step] = []
        before = 0.0
        for at, data in self.reads:
            steps += [pace * (at - before), data]
            before = at
        return [*steps, Step.FIN]


@functools.cache
def load(file: Path) -> Recording:
    recorded = json.loads(file.read_text())
    request = recorded["request"]
    body = request["body"]
    return Recording(
        engine=recorded["engine"],
        name=file.stem,
        method=request["method"],
        path=request["path"],
        request_headers=request["headers"],
        request_body=b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode(),
        reads=tuple((at, text.encode("latin-1")) for at, text in recorded["reads"] if text != CUT),
    )


def recording(engine: str, name: str) -> Recording:
    return load(WIRE / engine / f"{name}.json")


def recordings(engine: str = "*", path: str | None = None) -> list[Recording]:
    """All recordings of an engine and a request path, for `pytest.mark.parametrize(..., ids=str)`."""
    found = map(load, sorted(WIRE.glob(f"{engine}/*.json")))
    return [one for one in found if path in (None, one.path)]
