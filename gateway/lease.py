"""A lease on an engine's place, for a request that is planned again if the config changes while it waits."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from gateway.admission import Admission, Ask, Lease, Score
from gateway.fleet import Route

T = TypeVar("T")


class Planned(Ask[Route], Generic[T]):
    """A request as admission sees it, with the plan that it waits by; further arguments are those of `Ask`.

    Args:
        again: makes a plan of it by the config in force, from the plan before. Raises GatewayError if there is none.
    """

    __slots__ = ("again", "plan")

    def __init__(
        self,
        plan: T,
        again: Callable[[T], T],
        tiers: Sequence[Sequence[Route]],
        score: Score[Route],
        *,
        key: str,
        priority: str,
        spill: float,
        prompt_tokens: int,
        cost: float,
    ) -> None:
        super().__init__(tiers, score, key=key, priority=priority, spill=spill, prompt_tokens=prompt_tokens, cost=cost)
        self.plan = plan
        self.again = again


class PlannedLease(Lease[Route], Generic[T]):
    """A lease whose plan may be another when its place is there. An engine knows of requests that take no place."""

    ask: Planned[T]

    def __init__(
        self, admission: Admission[Route], ask: Planned[T], timeout: float, *, placeless: bool = False
    ) -> None:
        super().__init__(admission, ask, timeout, placeless=placeless)

    @property
    def plan(self) -> T:
        return self.ask.plan

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._placeless:
            self.place.backend.visit()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._placeless:
            self.place.backend.leave()
        await super().__aexit__(exc_type, exc, traceback)
