"""Cuts a stream of JSON lines (https://github.com/ndjson/ndjson-spec) into its lines, however it arrives."""


class LineSplitter:
    """Takes reads of any size and gives back whole lines, in time that grows with the bytes alone.

    Args:
        max_bytes: the longest line.

    Attributes:
        too_large: whether a line is longer than that. What it holds is then let go, and nothing more comes.
    """

    def __init__(self, max_bytes: int) -> None:
        self.too_large = False
        self._max_bytes = max_bytes
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends; blank ones are left out."""
        if self.too_large:
            return []
        head, newline, rest = data.partition(b"\n")
        self._hold(head)
        if self.too_large or not newline:
            return []
        first = b"".join(self._held)
        *lines, last = rest.split(b"\n")
        self._held, self._size = [], 0
        self._hold(last)
        return [line for line in map(bytes.strip, [first, *lines]) if line]

    def flush(self) -> list[bytes]:
        """The last line, if the stream ended without a line end."""
        held, self._held, self._size = b"".join(self._held).strip(), [], 0
        return [held] if held else []

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._size += len(data)
        if self._size > self._max_bytes:
            self.too_large = True
            self._held, self._size = [], 0
