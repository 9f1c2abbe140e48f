"""Copies of requests for a policy's shadow tier: sent and read like others, and dropped, but for a line in the log."""

from gateway.api.course import CANCELLED, COPY, Course
from gateway.api.door import Asked
from gateway.api.sending import fitted, limit_passed
from gateway.errors import GatewayError
from gateway.guard import Guard
from gateway.router import Plan, Router
from gateway.telemetry.logs import RequestLog
from gateway.upstream.attempt import Attempt
from gateway.upstream.relay import StreamRelay, relay_whole

_MAX_BYTES = 64 * 1024 * 1024
"""Of an answer, or of one event: nobody keeps them."""
_LONG = 3600.0


async def send_copy(router: Router, log: RequestLog, original: Course, plan: Plan, asked: Asked) -> None:
    """Has an engine of `plan` answer the request of `original`, once one has a place for it.

    Where a request that somebody waits for needs its place, it is given up.
    """
    course, guard = Course(original.request_id, original.path), Guard()
    course.asker, course.request, course.plan = original.asker, asked.request, plan
    course.timeline.routed = course.timeline.received
    error: GatewayError | None = None
    try:
        with guard:
            await _send(router, course, guard, asked)
        if guard.cause is not None and guard.cause != Guard.PREEMPTED and course.route is not None:
            error = limit_passed(course.route, guard.cause)
    except GatewayError as exc:
        error = exc
    outcome = CANCELLED if guard.cause == Guard.PREEMPTED else error.code if error is not None else "ok"
    course.learn(router, outcome, error)
    log.write(course.record(COPY, error.status if error is not None else 200, outcome, error))


async def _send(router: Router, course: Course, guard: Guard, asked: Asked) -> None:
    assert course.plan is not None  # noqa: S101 - set by the only caller
    async with router.lease(course.plan, asked.request, course.asker) as lease:
        lease.ask.preempt = lambda: guard.cancel(Guard.PREEMPTED)
        while not await lease.granted(_LONG):
            pass
        route = lease.place
        course.goes(lease.plan, route)
        request = fitted(asked, route, course.plan).request
        nobody = _Nobody()
        async with Attempt(route.backend, route.model, route.timeouts, request, guard, course.timeline) as answer:
            if not request.stream:
                await relay_whole(
                    answer, nobody, guard, course.timeline, [], max_bytes=_MAX_BYTES, stall=route.timeouts.idle
                )
                return
            course.stream = StreamRelay(
                answer,
                nobody,
                guard,
                course.timeline,
                [],
                choices=request.choices,
                max_event_bytes=_MAX_BYTES,
                stall=route.timeouts.idle,
            )
            await course.stream.run()


class _Nobody:
    """Takes an answer as a client does, and forgets it."""

    def __init__(self) -> None:
        self.started = False

    async def start(self, _status: int, _headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True

    def write_now(self, _data: bytes) -> bool:
        return True

    async def write(self, _data: bytes) -> None:
        pass

    async def finish(self, _data: bytes = b"") -> None:
        pass

    async def reply(self, _status: int, _headers: list[tuple[bytes, bytes]], _body: bytes) -> None:
        pass
