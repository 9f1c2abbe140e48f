"""The course of one request: where it goes and what became of it, for its answer's headers and its line in the log."""

import logging
import time

from gateway.errors import GatewayError
from gateway.fleet import Route, header_value
from gateway.policy.canary import Outcome
from gateway.policy.decision import Decision
from gateway.request import InferenceRequest
from gateway.router import Client, Plan, Router
from gateway.telemetry.logs import RequestRecord
from gateway.telemetry.timeline import Timeline
from gateway.upstream.relay import StreamRelay

_log = logging.getLogger("sluice.policy")

CANCELLED = "cancelled"
"""The outcome of a request whose client left."""
SHUTTING_DOWN = "shutting_down"
"""The code of the error for a request that the end of the gateway ended."""
REQUEST, COPY = "request", "copy"
"""Events of the log: what a client asked, and what a shadow got of it, which is no decision of its own."""
_FAULT = 500
"""The status from which on an error is no mistake of the client's."""
_LONGEST_LOGGED = 200
"""Characters of a model's name, which a client may make up."""


class Course:
    """What is known of a request so far.

    Attributes:
        attempts: how often it was sent to an engine; each attempt but the last one lost its place.
        stream: the answer under way, if it is a stream.
    """

    def __init__(self, request_id: str, path: str) -> None:
        self.request_id = request_id
        self.path = path
        self.timeline = Timeline()
        self.asker = Client()
        self.request: InferenceRequest | None = None
        self.plan: Plan | None = None
        self.route: Route | None = None
        self.attempts = 0
        self.stream: StreamRelay | None = None

    @property
    def tier(self) -> str | None:
        """The tier of a policy that it went to."""
        if self.plan is None or self.plan.policy is None or self.route is None:
            return None
        return next((name for name, places in self.plan.tiers if self.route in places), None)

    def goes(self, plan: Plan, route: Route) -> None:
        """It has a place, and is sent there."""
        self.plan, self.route = plan, route
        self.attempts += 1

    def lost_its_place(self) -> None:
        """All that happened there is as if it had not."""
        self.route, self.stream = None, None
        self.timeline.again()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Those that tell the client where its request went."""
        if self.route is None:
            return []
        headers = [*self.route.headers, (b"x-sluice-attempt", b"%d" % self.attempts)]
        tier = self.tier
        if tier is not None and self.plan is not None:
            headers.append((b"x-sluice-tier", header_value(tier)))
            if self.plan.verdict.rule is not None:
                headers.append((b"x-sluice-rule", header_value(self.plan.verdict.rule)))
        return headers

    def learn(self, router: Router, outcome: str, error: GatewayError | None) -> None:
        """Has the router know what it shows of the engine's speed, of the prompt's length, and of a canary."""
        route, request, timeline, report = self.route, self.request, self.timeline, self.timeline.report
        if route is None or request is None or timeline.dispatched is None:
            return
        if report.load is not None:
            route.backend.learn_load_time(route.model, report.load)
        ttft = timeline.since(timeline.first_output, timeline.prefilling or timeline.dispatched)
        if outcome == "ok" and timeline.first_output is not None:
            ended = timeline.last_output or timeline.first_output
            route.rates.learn(report, held=ended - timeline.dispatched, ttft=ttft if request.stream else None)
            if report.prompt_tokens is not None and not request.features.images:
                router.ratio(request.model).learn(request.features.size, report.prompt_tokens)
        tier = self.tier
        if tier is not None and outcome != CANCELLED:
            outcome_there = Outcome(
                error is not None and error.status >= _FAULT and error.code != SHUTTING_DOWN,
                ttft if request.stream else None,
            )
            if (why := router.trials.learn(request.model, tier, outcome_there)) is not None:
                _log.warning("model %s: the canary `%s` gets no more traffic: %s", request.model, tier, why)

    def _decision(self) -> Decision | None:
        plan = self.plan
        return Decision.of(plan.facts, plan.verdict.rule) if plan is not None and plan.policy is not None else None

    def record(self, event: str, status: int, outcome: str, error: GatewayError | None) -> RequestRecord:
        """Its line in the log."""
        timeline, request, route, plan = self.timeline, self.request, self.route, self.plan
        timeline.done = timeline.done or time.perf_counter()
        start, report = timeline.received, timeline.report
        scanner = self.stream.scanner if self.stream is not None else None
        return RequestRecord(
            time=timeline.started_at,
            event=event,
            level="info" if error is None or error.status < 500 else "warning",
            request_id=self.request_id,
            path=self.path,
            status=status,
            outcome=outcome,
            message=error.message if error is not None and error.own_words else None,
            key=self.asker.key or None,
            model=request.model[:_LONGEST_LOGGED] if request is not None else None,
            engine=route.backend.name if route is not None else None,
            engine_model=route.model if route is not None else None,
            identity=(route.identity or None) if route is not None else None,
            attempt=self.attempts or None,
            stream=request is not None and request.stream,
            tier=self.tier,
            decision=self._decision() if event == REQUEST else None,
            priority=plan.priority if plan is not None and plan.priority != "normal" else None,
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
