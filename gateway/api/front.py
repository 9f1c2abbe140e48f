"""What the side that clients talk to goes by at this moment."""

from gateway.auth import Keys
from gateway.config.schema import Server


class Front:
    """The limits of the listening side, and the keys that may ask. A request keeps those that it began under."""

    def __init__(self, server: Server) -> None:
        self.update(server)

    def update(self, server: Server) -> None:
        self.server = server
        self.keys = Keys(server.keys)
