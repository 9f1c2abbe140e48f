"""The OpenAI dialect: bodies and answers pass as they are."""

from gateway.api.door import Asked
from gateway.api.errors import error_body, error_event
from gateway.errors import GatewayError
from gateway.request import Endpoint, parse_request


class OpenAIDoor:
    """An endpoint of OpenAI's own."""

    def __init__(self, endpoint: Endpoint, path: str | None = None) -> None:
        self.path = path or endpoint.value
        self._endpoint = endpoint

    def read(self, body: bytes) -> Asked:
        return Asked(parse_request(self._endpoint, body))

    def error_body(self, error: GatewayError) -> bytes:
        return error_body(error)

    def error_event(self, error: GatewayError) -> bytes:
        return error_event(error)


DOORS = [OpenAIDoor(endpoint) for endpoint in Endpoint]
