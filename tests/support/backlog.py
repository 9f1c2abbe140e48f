"""A listener that lets nobody in."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_backlog(port: int = 0) -> Iterator[str]:
    """The URL of a listener that lets no further connection in, as an engine does that hangs."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()
