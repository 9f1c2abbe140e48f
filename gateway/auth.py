"""Who asks: API keys from the config, looked up by digest."""

import hashlib
from collections.abc import Iterable

from gateway.config.schema import Key
from gateway.errors import Unauthorized

_HOW = "send one of this server's keys as `Authorization: Bearer KEY`"


class Keys:
    """The keys that may use the gateway; none at all means that everybody may.

    A key is looked up by its SHA-256 digest, so neither the comparison's time nor the table gives it away.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {_digest(key.key.encode()): key for key in keys}

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> Key | None:
        """The key in `headers`, or `None` when no key is asked for.

        The key is read from `Authorization: Bearer` or `x-api-key`.

        Raises:
            Unauthorized: no key, more than one, or one that is not known.
        """
        if not self._keys:
            return None
        given: list[bytes] = []
        for name, value in headers:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                given.append(token.strip() if scheme.lower() == b"bearer" else b"")
            elif name == b"x-api-key":
                given.append(value)
        if not given:
            raise Unauthorized(f"No API key was given: {_HOW}.", code="missing_api_key")
        key = self._keys.get(_digest(given[0]))
        if key is None or any(other != given[0] for other in given[1:]):
            raise Unauthorized(f"The API key is not valid: {_HOW}.")
        return key


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
