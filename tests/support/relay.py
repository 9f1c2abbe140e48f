"""A real engine, with everything that is sent to it and that it sends remembered on the way."""

import asyncio

from tests.support.engine import Connection, Request, ScriptedEngine
from tests.support.http1 import ReplyMessage

READ_SIZE = 65536


class Relay(ScriptedEngine):
    """Passes every request on to the engine at `port`, and its answer back as it comes.

    When a client leaves, the connection to the engine is closed in the same moment.
    """

    def __init__(self, port: int) -> None:
        super().__init__(self._pass_on)
        self._port = port

    async def serve(self, request: Request) -> None:
        if request.method == "POST":
            await super().serve(request)
        else:
            await self._pass_on(request, request.connection)

    async def _pass_on(self, request: Request, connection: Connection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        relaying = asyncio.create_task(self._relay(request, reader, writer))
        leaving = asyncio.create_task(connection.wait_closed())
        try:
            await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.close()
            for task in (relaying, leaving):
                task.cancel()
            await asyncio.gather(relaying, leaving, return_exceptions=True)

    async def _relay(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request.head + request.body)
        reply = ReplyMessage(request.method)
        while not reply.complete:
            data = await reader.read(READ_SIZE)
            if not data:
                await request.connection.fin()
                return
            reply.feed(data)
            await request.connection.send(data)
