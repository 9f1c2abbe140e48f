"""A reply while it arrives, seen by its reader. How it is parsed is told in test_transport*.py."""

import asyncio

import pytest

from gateway.upstream.reply import Reply

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"


def new_reply() -> Reply:
    return Reply("POST", 1000, pause=lambda: None, resume=lambda: None, done=lambda _: None)


async def pushing(reply: Reply, sink: "Sink") -> "asyncio.Task[None]":
    """A task that waits in `push`."""
    reply.feed(HEAD)
    task = asyncio.create_task(reply.push(sink))
    await asyncio.sleep(0)
    return task


class Sink:
    """Takes chunks until it has `enough`, and may fail at one."""

    def __init__(self, enough: int = 100, fail_at: bytes = b"-") -> None:
        self.taken: list[bytes] = []
        self._enough = enough
        self._fail_at = fail_at

    def __call__(self, data: bytes) -> bool:
        if data == self._fail_at:
            raise LookupError("a fault of the sink")
        self.taken.append(data)
        return len(self.taken) < self._enough


async def test_chunks_are_pushed_in_the_moment_they_come() -> None:
    reply, sink = new_reply(), Sink()
    task = await pushing(reply, sink)
    reply.feed(b"abc")
    assert sink.taken == [b"abc"]
    reply.feed(b"def")
    assert sink.taken == [b"abc", b"def"]
    assert not task.done()
    reply.feed(b"ghi")
    await task
    assert sink.taken == [b"abc", b"def", b"ghi"]
    assert [chunk async for chunk in reply] == []


async def test_what_comes_after_the_sink_had_enough_is_kept_for_the_reader() -> None:
    reply, sink = new_reply(), Sink(enough=1)
    task = await pushing(reply, sink)
    reply.feed(b"abc")
    reply.feed(b"def")
    await task
    reply.feed(b"ghi")
    assert sink.taken == [b"abc"]
    assert b"".join([chunk async for chunk in reply]) == b"defghi"


@pytest.mark.parametrize("chunks", [[b"abc"], [b"abc", b"defghi"]], ids=["in the middle", "with the last chunk"])
async def test_a_fault_of_the_sink_reaches_whoever_waits(chunks: list[bytes]) -> None:
    reply = new_reply()
    task = await pushing(reply, Sink(fail_at=chunks[-1]))
    for chunk in chunks:
        reply.feed(chunk)
    with pytest.raises(LookupError):
        await asyncio.wait_for(task, 5)


async def test_a_connection_that_breaks_ends_the_pushing() -> None:
    reply = new_reply()
    task = await pushing(reply, Sink())
    reply.fail(ConnectionError("gone"))
    await task
    with pytest.raises(ConnectionError):
        await anext(reply)
