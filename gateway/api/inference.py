"""The way of an inference request, from the client to an engine and back."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import anyio

from gateway.api.course import CANCELLED, REQUEST, SHUTTING_DOWN, Course
from gateway.api.door import Asked, Door, Writer
from gateway.api.errors import error_headers
from gateway.api.exchange import ClientGone, Exchange, Receive, Scope, Send
from gateway.api.front import Front
from gateway.api.sending import fitted, limit_passed
from gateway.api.shadow import send_copy
from gateway.api.writing import TranslatingClient
from gateway.errors import EngineTimeout, GatewayError, InvalidRequest
from gateway.fleet import Route
from gateway.guard import Guard
from gateway.lease import PlannedLease
from gateway.request import InferenceRequest
from gateway.router import Client as Asker
from gateway.router import Plan, Router
from gateway.telemetry.logs import RequestLog
from gateway.upstream.attempt import Answer, Attempt
from gateway.upstream.relay import FAREWELL, Client, StreamRelay, relay_whole

_log = logging.getLogger("sluice.api")

_STATUS_CLIENT_LEFT = 499
_NO_LIMIT = float("inf")
_LONG = 3600.0
_LAST_WORD = 5.0
"""Seconds that a client has to take an error."""


class InferenceHandler:
    """A raw ASGI application for one endpoint.

    Args:
        door: which one, and how its clients speak.
        front: limits of the listening side, and who may ask.
        router: who answers.
        log: gets one record a request.
    """

    def __init__(self, door: Door, front: Front, router: Router, log: RequestLog) -> None:
        self.door = door
        self.front = front
        self.router = router
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _Call(self, Exchange(scope, receive, send))
        await call.run()


class _Call:
    """One request under way."""

    def __init__(self, handler: InferenceHandler, exchange: Exchange) -> None:
        self.handler = handler
        self.server = handler.front.server
        self.exchange = exchange
        self.guard = Guard()
        self.course = Course(exchange.request_id, exchange.path)
        self.lease: PlannedLease[Plan] | None = None
        self.error_event: Callable[[GatewayError], bytes] = handler.door.error_event

    async def run(self) -> None:
        error: GatewayError | None = None
        try:
            try:
                with self.guard:
                    await self._serve()
                error = await self._after_limit()
            except ClientGone:
                self.guard.cause = Guard.GONE
            except GatewayError as exc:
                error = exc
            except asyncio.CancelledError:
                # The server ends what still runs when its time to drain is over. The client gets a last word, and the
                # task ends here: nobody waits for it.
                error = GatewayError("The gateway is shutting down.", status=503, code=SHUTTING_DOWN)
            except Exception:  # noqa: BLE001 - whatever a bug raises, the client gets an answer and the log its trace
                _log.exception("request %s failed inside the gateway", self.exchange.request_id)
                error = GatewayError("The gateway failed on this request; its log knows why.")
            if self.guard.cause == Guard.GONE:
                error = None
                self.exchange.status = self.exchange.status or _STATUS_CLIENT_LEFT
            elif error is not None:
                await self._fail(error)
        finally:
            outcome = CANCELLED if self.guard.cause == Guard.GONE else error.code if error is not None else "ok"
            self.course.learn(self.handler.router, outcome, error)
            self.handler.log.write(self.course.record(REQUEST, self.exchange.status, outcome, error))

    # The way of a request

    async def _serve(self) -> None:
        asked = await self._read()
        course, guard, router = self.course, self.guard, self.handler.router
        async with self.exchange.watch(guard):
            course.plan = plan = router.plan(asked.request, course.asker)
            course.timeline.routed = now = time.perf_counter()
            guard.until("queue", _NO_LIMIT)
            if plan.verdict.deadline is not None:
                guard.deadline(course.timeline.received + plan.verdict.deadline)
            if asked.request.stream and (asked.writer is None or asked.writer.content_type.startswith(b"text/event-s")):
                guard.remind(router.queue.comment_interval, self._remind)
            if (copy := router.copy(plan, course.asker)) is not None:
                router.in_background(partial(send_copy, self.handler.router, self.handler.log, course, copy, asked))
            async with router.lease(plan, asked.request, course.asker, now - course.timeline.received) as self.lease:
                while not await self._try(asked, self.lease):
                    course.lost_its_place()

    async def _read(self) -> Asked:
        exchange, server = self.exchange, self.server
        if exchange.method != "POST":
            raise InvalidRequest(
                f"{exchange.path} takes POST, not {exchange.method}.", status=405, code="method_not_allowed"
            )
        key = self.handler.front.keys.check(exchange.raw_headers)
        self.course.asker = Asker(
            key.name if key is not None else "",
            key.priority if key is not None else "normal",
            self.handler.door.dialect,
            exchange.headers,
        )
        body = await exchange.read_body(self.guard, server.max_body_bytes, server.body_timeout)
        asked = self.handler.door.read(body)
        self.course.request = asked.request
        return asked

    async def _try(self, asked: Asked, lease: PlannedLease[Plan]) -> bool:
        """Waits for a place, and has the request answered there; `False` if it lost its place before that began."""
        while not await lease.granted(_LONG):
            pass
        course = self.course
        if lease.waited:
            course.timeline.admitted = time.perf_counter()
        course.goes(lease.plan, lease.place)
        asked = fitted(asked, lease.place, lease.plan)
        self.error_event = asked.failed or self.handler.door.error_event
        lease.ask.preempt = partial(self.guard.cancel, Guard.PREEMPTED)
        self.exchange.on_start = lease.keep
        try:
            await self._attempt(asked, lease.place)
        except asyncio.CancelledError:
            if not self.guard.goes_on():
                raise
            return False
        return True

    async def _attempt(self, asked: Asked, route: Route) -> None:
        request, timeline = asked.request, self.course.timeline
        async with Attempt(route.backend, route.model, route.timeouts, request, self.guard, timeline) as answer:
            await self._relay(answer, request, asked.writer)

    async def _relay(self, answer: Answer, request: InferenceRequest, writer: Writer | None) -> None:
        server, course = self.server, self.course
        headers = course.headers()
        client: Client = self.exchange if writer is None else TranslatingClient(self.exchange, writer)
        if not request.stream:
            await relay_whole(
                answer,
                client,
                self.guard,
                course.timeline,
                headers,
                max_bytes=server.max_reply_bytes,
                stall=server.stall_timeout,
            )
            return
        course.stream = StreamRelay(
            answer,
            client,
            self.guard,
            course.timeline,
            headers,
            choices=request.choices,
            max_event_bytes=server.max_reply_bytes,
            stall=server.stall_timeout,
        )
        await course.stream.run()

    # What a client that waits is told

    def _remind(self) -> bool:
        """Has a client that waits for a stream of events know that it does, as long as it has nothing of that yet."""
        waits = not self.exchange.started and not self.exchange.finishing
        if waits:
            self.handler.router.in_background(self._tell)
        return waits

    async def _tell(self) -> None:
        if not self.exchange.started and not self.exchange.finishing:
            await self.exchange.comment(self._news())

    def _news(self) -> str:
        lease = self.lease
        if lease is not None and lease.ask.granted is None:
            admission = self.handler.router.admission
            wait = admission.expected_wait(lease.ask)
            about = f", about {wait:.0f} s" if wait < _NO_LIMIT else ""
            return f"waiting for an engine, place {admission.position(lease.ask)}{about}"
        stream = self.course.stream
        progress = stream.scanner.progress if stream is not None else None
        if progress is None:
            return "waiting for the first token"
        return f"reading the prompt, {progress[0]} of {progress[1]} tokens"

    # What ends it early

    async def _after_limit(self) -> GatewayError | None:
        """The error for the limit that ended the request, if one did; a whole answer is ended as it should have."""
        cause, stream, plan = self.guard.cause, self.course.stream, self.course.plan
        if cause is None or cause == Guard.GONE or self.exchange.finished:
            return None
        if stream is not None and stream.scanner.whole and cause in (FAREWELL, "total"):
            with anyio.move_on_after(_LAST_WORD) as scope:
                await stream.end()
            if scope.cancelled_caught:
                self.exchange.abort()
            return None
        if cause == "deadline" and stream is not None and plan is not None and plan.verdict.cut:
            with anyio.move_on_after(_LAST_WORD):
                if await stream.cut_short():
                    return None
        return self._limit_passed(cause)

    def _limit_passed(self, cause: str) -> GatewayError:
        course = self.course
        if cause == "body":
            return InvalidRequest(
                f"The request body stopped coming for {self.server.body_timeout:g} s.",
                status=408,
                code="request_timeout",
            )
        if cause == "stall":
            return InvalidRequest("The client did not read its answer.", status=408, code="client_stalled")
        if cause == "deadline" and course.plan is not None:
            deadline = course.plan.verdict.deadline or 0.0
            return EngineTimeout(
                f"The request was not done within its deadline, {deadline:g} s.", code="deadline_passed"
            )
        if course.route is None:
            return EngineTimeout("The request took too long.")
        return limit_passed(course.route, cause)

    async def _fail(self, error: GatewayError) -> None:
        """Tells the client, or cuts the connection of one that reads nothing."""
        exchange = self.exchange
        if exchange.finished:
            return
        with anyio.move_on_after(0 if error.code == "client_stalled" else _LAST_WORD) as scope:
            if exchange.head_sent:
                end = exchange.break_off if self.handler.door.breaks_off else exchange.finish
                await end(self.error_event(error))
            else:
                allow = [(b"allow", b"POST")] if error.status == 405 else []
                headers = [*error_headers(error), *self.course.headers(), *allow]
                await exchange.reply(error.status, headers, self.handler.door.error_body(error))
        if scope.cancelled_caught:
            exchange.abort()
