"""What every error looks like to a client of Ollama's dialect."""

from tests.support.client import Reply


def error_of(reply: Reply) -> str:
    """The message of an error of Ollama's form."""
    assert reply.complete, reply.error
    assert reply.headers.all("content-type") == ["application/json"]
    body = reply.json()
    assert list(body) == ["error"]
    assert body["error"]
    return str(body["error"])
