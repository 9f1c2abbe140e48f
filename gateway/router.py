"""Where a request goes: the rules of its model's policy, the places that are left of its tiers, and a lease on one."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio

from gateway.admission import CLASSES, TICK, Admission, Ask, Score
from gateway.backend import Backend
from gateway.config.schema import Config
from gateway.errors import GatewayError, InvalidRequest, NoEngine
from gateway.fleet import Fleet, ModelCard, Route, card
from gateway.lease import Planned, PlannedLease
from gateway.policy.explain import UNROUTED, Explanation, Given, Sight, explain
from gateway.policy.facts import ENDLESS, Facts, TierFacts
from gateway.policy.rates import TokenRatio
from gateway.policy.rules import Rules, Verdict
from gateway.policy.score import SCORES, predicted_wait, preparation
from gateway.policy.trials import Trials
from gateway.request import Endpoint, InferenceRequest

_log = logging.getLogger("sluice.router")

_WITHOUT_PLACE = frozenset({Endpoint.TOKENIZE, Endpoint.COUNT_TOKENS})
"""What engines answer at once, whatever else they do."""
_UNPLACED = frozenset(endpoint.name.lower() for endpoint in _WITHOUT_PLACE)
_MOST_COPIES = 64
"""Requests at the engines of a shadow tier beyond which they get no copies."""
_UNSURE = 1.5
"""By how much an estimate of tokens may be beyond a context that the prompt fits, before any was counted."""
_ANSWER = 256
"""Tokens that an answer without a limit counts for in its key's share."""


class Client(NamedTuple):
    """Who asks. `priority` is the class of its key."""

    key: str = ""
    priority: str = "normal"
    dialect: str = "openai"
    headers: Mapping[bytes, bytes] = {}

    def header(self, name: str) -> str:
        """The value of a header, by its name in lower case; empty where it was not sent."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    @property
    def app(self) -> str:
        """What the client calls itself, else the first word of its `User-Agent`, without a version."""
        return self.header("x-sluice-app") or self.header("user-agent").split(" ")[0].split("/")[0]


class Plan(NamedTuple):
    """Where a request may go, and on what terms.

    Attributes:
        tiers: the places left of each tier, with the tier's name; the preferred tier first.
        excluded: places that were left out, and why.
    """

    facts: Facts
    verdict: Verdict
    tiers: list[tuple[str, list[Route]]]
    excluded: list[tuple[Route, str]]
    policy: Rules | None
    priority: str


class Router:
    """Knows the policies, and owns the queue.

    Args:
        clock: the time in seconds, for the queue.
        hour: the hour of the local time, for conditions.
        seed: for scores that draw lots.
    """

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        policies: Mapping[str, Rules] | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        hour: Callable[[], int] = lambda: time.localtime().tm_hour,
        seed: int | None = None,
    ) -> None:
        self.queue = config.queue
        self.fleet = fleet
        self.policies = dict(policies or {})
        self.trials = Trials(self.policies, seed)
        self.admission: Admission[Route] = Admission(config.queue.limit, clock, seed)
        self._hour = hour
        self._ratios: dict[str, TokenRatio] = {}
        self._kept: dict[Rules, list[tuple[str, list[Route]]]] = {}
        self._kept_since = fleet.changes

    def update(self, config: Config, policies: Mapping[str, Rules]) -> None:
        """Puts another config in force, after the fleet has done so; requests that wait are planned again."""
        self.queue = config.queue
        self.policies = dict(policies)
        self.trials.update(self.policies)
        self.admission.limit = config.queue.limit
        for ask in list(self.admission.waiting):
            if isinstance(ask, Planned):
                self._update(ask)
        self.admission.tick()

    def _update(self, ask: Planned[Plan]) -> None:
        try:
            ask.plan = plan = ask.again(ask.plan)
        except GatewayError as error:
            self.admission.refuse(ask, error)
            return
        ask.tiers, ask.score = [routes for _, routes in plan.tiers], _score(plan)
        ask.priority, ask.spill = CLASSES[plan.priority], plan.verdict.spill

    def _plan_again(self, request: InferenceRequest, client: Client, before: Plan) -> Plan:
        try:
            return self.plan(request, client)
        except NoEngine:  # it waits already, and may as well do so until one is ready
            tiers = [(name, places) for name, places in self._places(request.model) if places]
            if not tiers:
                raise
            return before._replace(tiers=tiers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Has those that wait look again where they may go, from time to time and whenever an engine is ready."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._tick)
            yield
            self._tasks.cancel_scope.cancel()

    def in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Has something done that nobody waits for. It ends with the gateway, and what it raises is logged."""

        async def safely() -> None:
            try:
                await work()
            except Exception:  # noqa: BLE001 - whatever a bug raises there, the gateway goes on
                _log.exception("something that nobody waited for failed")

        self._tasks.start_soon(safely)

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(TICK)
            if self.admission.waiting:
                self.admission.tick()

    def models(self) -> list[ModelCard]:
        """Every name that clients may ask for, in order."""
        cards = {found.name: found for found in self.fleet.models()}
        for name in self.policies:
            cards[name] = card(name, [route for _, tier in self._places(name) for route in tier])
        return [cards[name] for name in sorted(cards)]

    def model(self, name: str) -> ModelCard:
        """
        Raises:
            ModelNotFound: nothing has this name.
        """
        if name in self.policies:
            return card(name, [route for _, tier in self._places(name) for route in tier])
        return self.fleet.model(name)

    def plan(self, request: InferenceRequest, client: Client) -> Plan:
        """
        Raises:
            InvalidRequest: a rule rejects it.
            ModelNotFound, NoEngine: nothing has the name, or nothing that has it can take a request.
        """
        facts = self._facts(request, client)
        policy = self.policies.get(request.model)
        places = self._places(request.model)
        if policy is None:
            verdict = Verdict(("all",), spill=ENDLESS)
        else:
            verdict = policy.decide(_Moment(self, facts, client, dict(places)))
            if verdict.reject is not None:
                raise InvalidRequest(verdict.reject, status=403, code="rejected_by_policy")
            verdict = verdict._replace(tiers=self.trials.tiers(request.model, verdict.tiers))
        return self._plan(request.model, facts, verdict, dict(places), policy, client)

    def copy(self, plan: Plan, client: Client) -> Plan | None:
        """Where a copy of a request goes, if it has drawn that, and a place for one is there."""
        model = plan.facts.model
        tier = self.trials.shadow(model)
        if tier is None or plan.policy is None or plan.facts.endpoint in _UNPLACED:
            return None
        places = dict(self._places(model))
        if sum(place.in_flight for place in places[tier]) >= _MOST_COPIES:
            return None
        verdict = plan.verdict._replace(tiers=(tier,), priority="low", deadline=None, spill=ENDLESS)
        try:
            return self._plan(model, plan.facts, verdict, places, plan.policy, client)
        except NoEngine:
            return None

    def lease(self, plan: Plan, request: InferenceRequest, client: Client, waited: float = 0.0) -> PlannedLease[Plan]:
        """A place for the request, to be waited for.

        Args:
            waited: seconds since the request came, which count against its deadline.
        """
        facts, verdict = plan.facts, plan.verdict
        ask = Planned(
            plan,
            partial(self._plan_again, request, client),
            [routes for _, routes in plan.tiers],
            _score(plan),
            key=client.key,
            priority=plan.priority,
            spill=verdict.spill,
            prompt_tokens=facts.prompt_tokens,
            cost=facts.prompt_tokens + (facts.max_tokens or _ANSWER),
        )
        timeout = self.queue.timeout
        if verdict.deadline is not None:
            timeout = min(timeout, max(0.0, verdict.deadline - waited))
        return PlannedLease(self.admission, ask, timeout, placeless=request.endpoint in _WITHOUT_PLACE)

    def explain(self, request: InferenceRequest, client: Client, given: Given, *, live: bool = True) -> Explanation:
        """What would become of a request now. It takes no place and changes nothing.

        Args:
            given: facts in place of those that the request has.
            live: whether the engines' state is a real one.

        Raises:
            ModelNotFound, NoEngine: nothing has the name, or an engine that may have it has never answered.
        """
        facts = given.over(self._facts(request, client))
        policy = self.policies.get(facts.model)
        places = dict(self._places(facts.model))
        moment = _Moment(self, facts, client, places)
        verdict = (policy or UNROUTED).decide(moment)
        priority = verdict.priority or client.priority
        tiers: list[tuple[str, list[Route]]] = []
        refused = None
        if verdict.reject is None:
            if policy is not None:
                verdict = verdict._replace(tiers=self.trials.usual(facts.model, verdict.tiers))
            try:
                tiers = self._plan(facts.model, facts, verdict, places, policy, client).tiers
            except NoEngine as error:
                refused = error.message
        return explain(
            Sight(
                policy or UNROUTED,
                moment,
                verdict,
                {name.decode("latin-1"): value.decode("latin-1") for name, value in client.headers.items()},
                places,
                tiers,
                lambda place: self._why_not(place, facts),
                lambda some: self._wait_for(some, client.key, priority),
                priority,
                facts.endpoint in _UNPLACED,
                refused,
                live,
            )
        )

    def _wait_for(self, places: Sequence[Route], key: str, priority: str) -> float:
        """Seconds until one of some places has room for a request that comes now."""
        ask: Ask[Route] = Ask([places], SCORES["least_loaded"], key=key, priority=priority)  # type: ignore[arg-type]
        return self.admission.expected_wait(ask)

    def ratio(self, model: str) -> TokenRatio:
        """What is learned of the tokens in prompts for the model that clients call `model`."""
        return self._ratios.setdefault(model, TokenRatio())

    def tier_facts(self, places: Sequence[Route], prompt_tokens: int) -> TierFacts:
        """The live facts of a tier with these places."""
        ready = [place for place in places if place.ready]
        ahead = self.admission.queued_for(places) if self.admission.waiting else 0
        part = ahead / len(ready) if ready else 0.0
        waits = [predicted_wait(place, part) for place in ready]
        ttfts = [wait + preparation(place, prompt_tokens) for wait, place in zip(waits, ready, strict=True)]
        return TierFacts(
            healthy=bool(ready),
            queue=ahead,
            running=sum(place.in_flight for place in places),
            predicted_wait_s=min(waits, default=ENDLESS),
            predicted_ttft_s=min(ttfts, default=ENDLESS),
            warm=any(place.warm for place in ready),
        )

    def _facts(self, request: InferenceRequest, client: Client) -> Facts:
        features = request.features
        return Facts(
            model=request.model,
            prompt_tokens=self._estimate(request),
            max_tokens=features.max_tokens,
            images=features.images,
            tools=features.tools,
            structured=features.structured,
            stream=request.stream,
            dialect=client.dialect,
            endpoint=request.endpoint.name.lower(),
            key=client.key,
            key_class=client.priority,
            app=client.app,
            hour=self._hour(),
        )

    def _estimate(self, request: InferenceRequest) -> int:
        ratio = self._ratios.get(request.model)
        return (
            round(request.features.size * TokenRatio.START) if ratio is None else ratio.estimate(request.features.size)
        )

    def _places(self, model: str) -> list[tuple[str, list[Route]]]:
        """All places of each tier, whatever their state."""
        policy = self.policies.get(model)
        if policy is None:
            return [("all", self.fleet.routes(model))]
        if self._kept_since != self.fleet.changes:
            self._kept_since = self.fleet.changes
            self._kept.clear()
        if policy not in self._kept:
            self._kept[policy] = [
                (name, [found for target in targets if (found := self.fleet.target(model, target)) is not None])
                for name, targets in policy.policy.tiers.items()
            ]
        return self._kept[policy]

    def _plan(
        self,
        model: str,
        facts: Facts,
        verdict: Verdict,
        places: Mapping[str, list[Route]],
        policy: Rules | None,
        client: Client,
    ) -> Plan:
        excluded: list[tuple[Route, str]] = []
        tiers: list[tuple[str, list[Route]]] = []
        for name in verdict.tiers:
            kept = []
            for place in places[name]:
                why = self._why_not(place, facts)
                if why is None:
                    kept.append(place)
                else:
                    excluded.append((place, why))
            if kept:
                tiers.append((name, kept))
        if not tiers:  # the estimate of its length may be wrong: the engine knows, and says so well
            fits = [(place, why) for place, why in excluded if place.ready]
            if not fits:
                raise self.fleet.none_ready(model, _backends(places, verdict.tiers) if policy is not None else None)
            tiers = [("any", [place for place, _ in fits])]
        return Plan(facts, verdict, tiers, excluded, policy, verdict.priority or client.priority)

    def _why_not(self, place: Route, facts: Facts) -> str | None:
        if not place.ready:
            return f"the engine is {place.backend.health.state.value}"
        if place.context is None or facts.prompt_tokens <= place.context:
            return None
        learned = self._ratios[facts.model].learned if facts.model in self._ratios else False
        if learned or facts.prompt_tokens > _UNSURE * place.context:
            return f"about {facts.prompt_tokens} tokens do not fit its context of {place.context}"
        return None


class _Moment:
    """A request and the state of the tiers, as conditions look at them: what none looks at is not computed."""

    def __init__(self, router: Router, facts: Facts, client: Client, places: Mapping[str, list[Route]]) -> None:
        self.facts = facts
        self._router = router
        self._client = client
        self._places = places
        self._tiers: dict[str, TierFacts] = {}

    def header(self, name: str) -> str:
        return self._client.header(name)

    def tier(self, name: str) -> TierFacts:
        if name not in self._tiers:
            self._tiers[name] = self._router.tier_facts(self._places[name], self.facts.prompt_tokens)
        return self._tiers[name]


def _score(plan: Plan) -> Score[Route]:
    return SCORES[plan.policy.policy.score if plan.policy is not None else "least_loaded"]  # type: ignore[return-value]


def _backends(places: Mapping[str, list[Route]], tiers: Sequence[str]) -> list[Backend]:
    found = {place.backend.name: place.backend for name in tiers for place in places[name]}
    return list(found.values())
