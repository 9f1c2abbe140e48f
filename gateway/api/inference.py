"""The way of an inference request, from the client to an engine and back."""

import asyncio
import logging
import time
from collections.abc import Callable

import anyio

from gateway.api.door import Door, Writer
from gateway.api.errors import error_headers
from gateway.api.exchange import ClientGone, Exchange, Receive, Scope, Send
from gateway.api.front import Front
from gateway.api.writing import TranslatingClient
from gateway.errors import EngineTimeout, GatewayError, InvalidRequest
from gateway.fleet import Route, header_value
from gateway.guard import Guard
from gateway.lease import PlannedLease
from gateway.request import InferenceRequest
from gateway.router import Client as Asker
from gateway.router import Plan, Router
from gateway.telemetry.logs import RequestLog, RequestRecord
from gateway.telemetry.timeline import Timeline
from gateway.upstream.attempt import Answer, Attempt
from gateway.upstream.relay import FAREWELL, Client, StreamRelay, relay_whole

_log = logging.getLogger("sluice.api")

_STATUS_CLIENT_LEFT = 499
_LONGEST_LOGGED = 200
"""Characters of a model's name, which a client may make up."""
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
    """One request under way, with what its log record needs."""

    def __init__(self, handler: InferenceHandler, exchange: Exchange) -> None:
        self.handler = handler
        self.server = handler.front.server
        self.exchange = exchange
        self.guard = Guard()
        self.timeline = Timeline()
        self.asker = Asker()
        self.plan: Plan | None = None
        self.lease: PlannedLease[Plan] | None = None
        self.error_event: Callable[[GatewayError], bytes] = handler.door.error_event
        self.request: InferenceRequest | None = None
        self.route: Route | None = None
        self.stream: StreamRelay | None = None

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
                error = GatewayError("The gateway is shutting down.", status=503, code="shutting_down")
            except Exception:  # noqa: BLE001 - whatever a bug raises, the client gets an answer and the log its trace
                _log.exception("request %s failed inside the gateway", self.exchange.request_id)
                error = GatewayError("The gateway failed on this request; its log knows why.")
            if self.guard.cause == Guard.GONE:
                error = None
                self.exchange.status = self.exchange.status or _STATUS_CLIENT_LEFT
            elif error is not None:
                await self._fail(error)
        finally:
            self._learn()
            self._record(error)

    async def _serve(self) -> None:
        exchange, server, guard = self.exchange, self.server, self.guard
        if exchange.method != "POST":
            raise InvalidRequest(
                f"{exchange.path} takes POST, not {exchange.method}.", status=405, code="method_not_allowed"
            )
        key = self.handler.front.keys.check(exchange.raw_headers)
        self.asker = Asker(
            key.name if key is not None else "",
            key.priority if key is not None else "normal",
            self.handler.door.dialect,
            exchange.headers,
        )
        body = await exchange.read_body(guard, server.max_body_bytes, server.body_timeout)
        asked = self.handler.door.read(body)
        self.request = asked.request
        async with exchange.watch(guard):
            router = self.handler.router
            self.plan = plan = router.plan(asked.request, self.asker)
            self.timeline.routed = now = time.perf_counter()
            guard.until("queue", _NO_LIMIT)
            if plan.verdict.deadline is not None:
                guard.deadline(self.timeline.received + plan.verdict.deadline)
            if asked.request.stream and (asked.writer is None or asked.writer.content_type.startswith(b"text/event-s")):
                guard.remind(router.queue.comment_interval, self._remind)
            async with router.lease(plan, asked.request, self.asker, now - self.timeline.received) as self.lease:
                await self._wait(self.lease)
                self.plan = plan = self.lease.plan
                self.route = route = self.lease.place
                if asked.as_chat is not None and asked.request.endpoint not in route.backend.engine.serves:
                    asked = asked.as_chat()
                    self.error_event = asked.failed or self.error_event
                request = asked.request
                if plan.verdict.set or plan.verdict.cap:
                    request = request.with_fields(plan.verdict.set, plan.verdict.cap)
                async with Attempt(route.backend, route.model, request, guard, self.timeline) as answer:
                    await self._relay(answer, request, asked.writer)

    async def _wait(self, lease: PlannedLease[Plan]) -> None:
        """Waits for a place at an engine."""
        if lease.waited:
            while not await lease.granted(_LONG):
                pass
            self.timeline.admitted = time.perf_counter()

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
        progress = self.stream.scanner.progress if self.stream is not None else None
        if progress is None:
            return "waiting for the first token"
        return f"reading the prompt, {progress[0]} of {progress[1]} tokens"

    async def _relay(self, answer: Answer, request: InferenceRequest, writer: Writer | None) -> None:
        server = self.server
        headers = self._engine_headers()
        client: Client = self.exchange if writer is None else TranslatingClient(self.exchange, writer)
        if not request.stream:
            await relay_whole(
                answer,
                client,
                self.guard,
                self.timeline,
                headers,
                max_bytes=server.max_reply_bytes,
                stall=server.stall_timeout,
            )
            return
        self.stream = StreamRelay(
            answer,
            client,
            self.guard,
            self.timeline,
            headers,
            choices=request.choices,
            max_event_bytes=server.max_reply_bytes,
            stall=server.stall_timeout,
        )
        await self.stream.run()

    def _engine_headers(self) -> list[tuple[bytes, bytes]]:
        if self.route is None:
            return []
        tier = self._tier()
        decision = []
        if tier is not None and self.plan is not None:
            decision = [(b"x-sluice-tier", tier.encode())]
            if self.plan.verdict.rule is not None:
                decision.append((b"x-sluice-rule", header_value(self.plan.verdict.rule)))
        return [*self.route.headers, (b"x-sluice-attempt", b"1"), *decision]

    async def _after_limit(self) -> GatewayError | None:
        """The error for the limit that ended the request, if one did; a whole answer is ended as it should have."""
        cause = self.guard.cause
        if cause is None or cause == Guard.GONE or self.exchange.finished:
            return None
        if self.stream is not None and self.stream.scanner.whole and cause in (FAREWELL, "total"):
            with anyio.move_on_after(_LAST_WORD) as scope:
                await self.stream.end()
            if scope.cancelled_caught:
                self.exchange.abort()
            return None
        if cause == "deadline" and self.stream is not None and self.plan is not None and self.plan.verdict.cut:
            with anyio.move_on_after(_LAST_WORD):
                if await self.stream.cut_short():
                    return None
        return self._limit_passed(cause)

    def _limit_passed(self, cause: str) -> GatewayError:
        if cause == "body":
            return InvalidRequest(
                f"The request body stopped coming for {self.server.body_timeout:g} s.",
                status=408,
                code="request_timeout",
            )
        if cause == "stall":
            return InvalidRequest("The client did not read its answer.", status=408, code="client_stalled")
        if cause == "deadline" and self.plan is not None:
            deadline = self.plan.verdict.deadline or 0.0
            return EngineTimeout(
                f"The request was not done within its deadline, {deadline:g} s.", code="deadline_passed"
            )
        if self.route is None:
            return EngineTimeout("The request took too long.")
        backend = self.route.backend
        backend.suspect()
        limit = getattr(backend.config.timeouts, cause, 0.0)
        return EngineTimeout(f"Engine `{backend.name}` {_WHAT_TOOK_LONG[cause]} {limit:g} s.")

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
                headers = [*error_headers(error), *self._engine_headers(), *allow]
                await exchange.reply(error.status, headers, self.handler.door.error_body(error))
        if scope.cancelled_caught:
            exchange.abort()

    def _learn(self) -> None:
        """What a request that was answered shows of the engine's speed, and of the prompt's length."""
        route, request, timeline = self.route, self.request, self.timeline
        report = timeline.report
        if route is None or request is None or timeline.dispatched is None:
            return
        if report.load is not None:
            route.backend.learn_load_time(route.model, report.load)
        if self.exchange.status == 200 and self.exchange.finished and timeline.first_output is not None:
            ended = timeline.last_output or timeline.first_output
            ttft = timeline.first_output - (timeline.prefilling or timeline.dispatched) if request.stream else None
            route.rates.learn(report, held=ended - timeline.dispatched, ttft=ttft)
            if report.prompt_tokens is not None and not request.features.images:
                self.handler.router.ratio(request.model).learn(request.features.size, report.prompt_tokens)

    def _tier(self) -> str | None:
        """The tier of a policy that the request went to."""
        if self.plan is None or self.plan.policy is None or self.route is None:
            return None
        return next((name for name, places in self.plan.tiers if self.route in places), None)

    def _record(self, error: GatewayError | None) -> None:
        exchange, timeline, request = self.exchange, self.timeline, self.request
        timeline.done = timeline.done or time.perf_counter()
        start = timeline.received
        report = timeline.report
        scanner = self.stream.scanner if self.stream is not None else None
        self.handler.log.write(
            RequestRecord(
                time=timeline.started_at,
                event="request",
                level="info" if error is None or error.status < 500 else "warning",
                request_id=exchange.request_id,
                path=exchange.path,
                status=exchange.status,
                outcome="cancelled" if self.guard.cause == Guard.GONE else error.code if error is not None else "ok",
                message=error.message if error is not None and error.own_words else None,
                key=self.asker.key or None,
                model=request.model[:_LONGEST_LOGGED] if request is not None else None,
                engine=self.route.backend.name if self.route is not None else None,
                engine_model=self.route.model if self.route is not None else None,
                identity=(self.route.identity or None) if self.route is not None else None,
                attempt=1 if timeline.dispatched is not None else None,
                stream=request is not None and request.stream,
                tier=self._tier(),
                priority=self.plan.priority if self.plan is not None and self.plan.priority != "normal" else None,
                queued=timeline.queued,
                routed=timeline.since(timeline.routed, start),
                dispatched=timeline.since(timeline.dispatched, start),
                first_frame=timeline.since(timeline.first_frame, start),
                ttft=timeline.ttft,
                first_delivered=timeline.since(timeline.first_delivered, start),
                last_output=timeline.since(timeline.last_output, start),
                duration=timeline.done - start,
                finish_reason=scanner.finish_reason if scanner is not None else None,
                events=scanner.events if scanner is not None else None,
                dropped_events=scanner.dropped or None if scanner is not None else None,
                prompt_tokens=report.prompt_tokens,
                completion_tokens=report.completion_tokens,
                cached_tokens=report.cached_tokens,
                engine_queue=timeline.engine_queue,
                engine_load=report.load,
                engine_prefill=report.prefill,
                engine_decode=report.decode,
            )
        )


_WHAT_TOOK_LONG = {
    "first_byte": "sent nothing for",
    "ttft": "sent no output for",
    "idle": "fell silent in the middle of its answer for",
    "total": "had not finished its answer after",
}
