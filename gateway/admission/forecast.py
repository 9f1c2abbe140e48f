"""How long requests will wait, from what each engine showed of how long one holds its place."""

from collections.abc import Iterable

from gateway.admission.shares import Group
from gateway.policy.facts import ENDLESS
from gateway.policy.score import Candidate, predicted_wait

_AT_ONCE = 1e-6
"""Seconds that a request is taken to need at least."""


class Forecast:
    """Waits at one moment, for requests that are gone through in the order in which they are served.

    A group's engines are taken as one that is as fast as all of them together. Those before a request that wait for
    other engines too, take part of these: as much as these give of all that they wait for.
    """

    def __init__(self) -> None:
        self._before: dict[Group, int] = {}
        self._supplies: dict[Group, _Supply] = {}
        self._shares: dict[tuple[Group, Group], float] = {}

    def add(self, group: Group, places: Iterable[Candidate]) -> None:
        """The next one waits in `group`, for `places`."""
        self._supply(group, places)
        self._before[group] = self._before.get(group, 0) + 1

    def wait(self, group: Group, places: Iterable[Candidate]) -> float:
        """Seconds until one that comes now has a place in `group`; endless if no engine of it is ready."""
        supply = self._supply(group, places)
        if not supply.ready:
            return ENDLESS
        ahead = sum(count * self._share(other, group) for other, count in self._before.items())
        if supply.unbounded or ahead < supply.free:
            return 0.0
        return (ahead + 1 - supply.room) / supply.speed

    def _supply(self, group: Group, places: Iterable[Candidate]) -> "_Supply":
        if group not in self._supplies:
            self._supplies[group] = _Supply(places)
        return self._supplies[group]

    def _share(self, other: Group, group: Group) -> float:
        """How much of what those in `other` take, they take from the engines of `group`."""
        if other is group:
            return 1.0
        if (other, group) not in self._shares:
            supply = self._supplies[other]
            common = sum(supply.speeds.get(name, 0.0) for name in other.names & group.names)
            self._shares[other, group] = common / supply.speed if supply.speed else 0.0
        return self._shares[other, group]


class _Supply:
    """What engines give together.

    Attributes:
        free: places that are free.
        room: the same, less the requests that engines have above what they run at once.
        speeds: places that become free in a second, by engine; `speed` is their sum.
    """

    def __init__(self, places: Iterable[Candidate]) -> None:
        engines = {place.name: place for place in places if place.ready}
        self.ready = bool(engines)
        self.unbounded = False
        self.free = self.room = 0
        self.speeds: dict[str, float] = {}
        for name, place in engines.items():
            if place.capacity is None:
                self.unbounded = True
                continue
            room = place.capacity - place.in_flight
            self.free += max(room, 0)
            self.room += room
            self.speeds[name] = 1 / max(predicted_wait(place, room), _AT_ONCE)  # the wait of one turn
        self.speed = sum(self.speeds.values())
