#!/usr/bin/env python3
"""What a decision costs: CPU microseconds for a condition, for the rules of a policy, and for all that happens between
a request that has been read and its place at an engine, with few engines and with many.

usage: decision.py [--engines 3 200] [--waiting 100]

Engines are taken to be ready, and none is asked anything. Each figure is the best of several runs. With `--waiting`,
all places are taken, and so many others wait already: the request joins them, and leaves.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

from gateway.config.load import parse_config
from gateway.engines import KINDS
from gateway.engines.base import Health, State
from gateway.fleet import Fleet
from gateway.policy.conditions import Condition
from gateway.policy.facts import Facts, TierFacts
from gateway.policy.load import parse_policy
from gateway.policy.rules import Rules
from gateway.policy.score import SCORES
from gateway.request import Endpoint, InferenceRequest, parse_request
from gateway.router import Client, Router

CONDITIONS = (
    "stream",
    "prompt_tokens > 4000",
    'header("x-team") == "batch"',
    "t0.predicted_wait_s > 5",
    'prompt_tokens > 4000 && key in ["alice", "bob"] && !stream',
    r'model.matches(r"-(7|14)b\b")',
)
RULES = """
models:
  chat:
    score: %s
    spill: 0
    tiers: {%s}
    rules:
%s"""
BODY = b'{"model": "chat", "messages": [{"role": "user", "content": "%s"}]}' % (b"word " * 200)
HEADERS = {b"user-agent": b"bench/1.0", b"x-team": b"none"}


class Moment:
    """A request for which none of the conditions holds."""

    facts = Facts(model="chat", prompt_tokens=300, key="carol")

    def header(self, _name: str) -> str:
        return "none"

    def tier(self, _name: str) -> TierFacts:
        return TIER


TIER = TierFacts()
MOMENT = Moment()


def rules(count: int) -> str:
    """That many rules, none of which decides."""
    conditions = [CONDITIONS[at % len(CONDITIONS)] for at in range(count)]
    return "".join(f"      - {{when: '{condition}', class: low}}\n" for condition in conditions)


def routed(engines: int, score: str, count: int, waiting: int = 0) -> tuple[Router, Mapping[str, Rules]]:
    """A router whose engines are ready: in three tiers, with that many rules, and with room for so many that wait."""
    names = [f"e{at}" for at in range(engines)]
    config = "".join(f"  {name}: {{kind: vllm, url: 'http://{name}', models: [m], concurrency: 4}}\n" for name in names)
    checked = parse_config(f"queue: {{limit: {waiting + 1}}}\nengines:\n{config}", "sluice.yaml", kinds=KINDS)
    tiers = ", ".join(f"t{at}: [{', '.join(names[at::3])}]" for at in range(3))
    policies = parse_policy(RULES % (score, tiers, rules(count)), "policy.yaml", checked)
    router = Router(checked, Fleet(checked), policies)
    for backend in router.fleet.backends.values():
        backend.set_health(Health(State.READY))
    return router, policies


def filled(router: Router, request: InferenceRequest, waiting: int) -> Router:
    """All places are taken, and so many requests of a few keys wait."""
    full = sum(backend.capacity or 0 for backend in router.fleet.backends.values())
    for at in range(full + waiting):
        client = Client(f"key{at % 7}", "normal", "openai", HEADERS)
        router.admission.submit(router.lease(router.plan(request, client), request, client).ask)
    assert len(router.admission.waiting) == waiting
    return router


def decide(router: Router, request: InferenceRequest, client: Client) -> None:
    plan = router.plan(request, client)
    ask = router.lease(plan, request, client).ask
    router.admission.submit(ask)
    router.admission.leave(ask)


def microseconds(work: Callable[[], Any], runs: int = 7, seconds: float = 0.05) -> float:
    """CPU time of one `work`, the best of several runs."""
    count = 1
    while True:
        start = time.process_time()
        for _ in range(count):
            work()
        spent = time.process_time() - start
        if spent > seconds:
            break
        count *= 2
    best = spent
    for _ in range(runs):
        start = time.process_time()
        for _ in range(count):
            work()
        best = min(best, time.process_time() - start)
    return best / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, nargs="+", default=[3, 200])
    parser.add_argument("--waiting", type=int, nargs="+", default=[100])
    options = parser.parse_args()
    print("us     one condition")
    for text in CONDITIONS:
        condition = Condition(text, ["t0"])
        print(f"{microseconds(lambda c=condition: c.holds(MOMENT)):6.1f} {text}")  # type: ignore[misc]
    ten = routed(3, "least_loaded", 10)[1]["chat"]
    print(f"\nus     rules\n{microseconds(lambda: ten.decide(MOMENT)):6.1f} ten conditions")
    request = parse_request(Endpoint.CHAT, BODY)
    client = Client("carol", "normal", "openai", HEADERS)
    print("\nus     plan, place and return, with ten rules")
    for engines in options.engines:
        for score in SCORES:
            router, _ = routed(engines, score, 10)
            cost = microseconds(lambda r=router: decide(r, request, client))  # type: ignore[misc]
            print(f"{cost:6.1f} {engines} engines, {score}")
    print("\nus     plan, wait and leave, with ten rules")
    for engines in options.engines:
        for waiting in options.waiting:
            router = filled(routed(engines, "predicted_ttft", 10, waiting)[0], request, waiting)
            cost = microseconds(lambda r=router: decide(r, request, client))  # type: ignore[misc]
            print(f"{cost:6.1f} {engines} engines, {waiting} others wait")


if __name__ == "__main__":
    main()
