"""What the keys had of engines that they wait for together, and whose turn it is."""

CLASSES = {"high": 0, "normal": 1, "low": 2}
"""Classes by the order in which they are served."""
PASSES = 16
"""Places that higher classes get before one goes to a class that waits for it too, so that none waits for ever."""
_KEYS = 1024
"""Keys of a class that a group remembers."""


class Group:
    """Engines for which requests wait together, and what each key had of them while somebody waited.

    Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), in each class: what a key had is a virtual time, and
    the start of the request served last is the present. A key that comes anew starts at the present, so that it has
    neither a claim on the time before, nor has to make up for it.

    It is forgotten when nobody waits for these engines and none that waited is with them.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self._classes = [_Class() for _ in CLASSES]

    def enter(self, priority: int, key: str, lag: float = 0.0) -> None:
        """A request of `key` begins to wait; `lag` is what it brings from the group where it waited before."""
        one = self._classes[priority]
        one.had[key] = max(one.had.get(key, one.present + lag), one.present + min(lag, 0.0))

    def lag(self, priority: int, key: str) -> float:
        """By how much `key` had more than one that comes now."""
        one = self._classes[priority]
        return one.had.get(key, one.present) - one.present

    def rank(self, priority: int) -> int:
        """When a class is served: those that were passed over for too long go before all others."""
        return -1 if self._classes[priority].passed >= PASSES else priority

    def charge(self, priority: int, key: str, cost: float) -> None:
        """A request of `key` has got one of its places."""
        one = self._classes[priority]
        start = one.had.get(key, one.present)
        one.present = max(one.present, start)
        one.had[key] = start + cost
        one.passed = 0
        if len(one.had) > _KEYS:
            one.had = dict(sorted(one.had.items(), key=lambda item: item[1])[-_KEYS // 2 :])

    def refund(self, priority: int, key: str, cost: float) -> None:
        """It has given it back unused."""
        had = self._classes[priority].had
        if key in had:
            had[key] -= cost

    def pass_over(self, priority: int) -> None:
        """A place for which a class waits has gone to a higher one."""
        self._classes[priority].passed += 1


class _Class:
    def __init__(self) -> None:
        self.had: dict[str, float] = {}
        self.present = 0.0
        self.passed = 0
