"""The examples beside a policy: each is held against its rules; one that comes out otherwise is told with its line."""

import os
from collections.abc import Iterator, Mapping

from gateway.config import document
from gateway.config.document import Node, read_document
from gateway.config.policy import Example, Situation, TierSituation
from gateway.config.problems import ConfigError, Path, Problems, listed
from gateway.policy.facts import ENDLESS, Facts, TierFacts
from gateway.policy.rules import Rules, Verdict
from gateway.policy.scene import Scene, destination
from gateway.policy.trials import Trials


def try_examples(
    text: str, source: str, policies: Mapping[str, Rules], *, environ: Mapping[str, str] = os.environ
) -> int:
    """Tries the examples of a policy file that has been checked, and returns how many there are.

    Args:
        text: of the file, for the lines of its examples.

    Raises:
        ConfigError: with every example that does not come out as expected.
    """
    root = read_document(text, environ)
    problems = Problems()
    count = 0
    for name, rules in policies.items():
        for at, example in enumerate(rules.policy.examples):
            count += 1
            path = ("models", name, "examples", at)
            if (mistake := mistake_of(example, name, rules)) is not None:
                problems.add(_line(root, (*path, "expect")), path, mistake)
    if problems.found:
        raise ConfigError(source, problems.found)
    return count


def mistake_of(example: Example, model: str, rules: Rules) -> str | None:
    """What came instead of what was expected, if so."""
    scene = Scene(
        _facts(model, example.request),
        example.request.headers,
        {name: _tier_facts(tier) for name, tier in example.tiers.items()},
    )
    verdict = rules.decide(scene)
    if verdict.reject is not None:
        if example.expect.rejected and example.expect.rule in (None, verdict.rule):
            return None
        wanted = "to be rejected" if example.expect.rejected else "not to be rejected"
        by = f" by the rule `{example.expect.rule}`" if example.expect.rule is not None else ""
        return f"expected {wanted}{by}, but the rule `{verdict.rule}` rejects it: {verdict.reject}"
    usual = verdict._replace(tiers=Trials({model: rules}).usual(model, verdict.tiers))
    differences = list(_differences(example, verdict, destination(usual, scene)))
    if not differences:
        return None
    wanted = " and ".join(expected for expected, _ in differences)
    came = " and ".join(got for _, got in differences)
    return f"expected {wanted}, got {came}{_by(verdict)}"


def _differences(example: Example, verdict: Verdict, tier: str | None) -> Iterator[tuple[str, str]]:
    """What was expected, and what came instead."""
    expect, request = example.expect, example.request
    if expect.rejected:
        yield "to be rejected", _named("tier", tier)
    priority = verdict.priority or request.key_class
    limit = _limit(verdict, request)
    for name, expected, got in (
        ("tier", expect.tier, tier),
        ("rule", expect.rule, verdict.rule),
        ("class", expect.priority, priority),
        ("max_tokens", expect.max_tokens, limit),
    ):
        if expected is not None and expected != got:
            yield _named(name, expected), _named(name, got)


def _named(name: str, value: str | int | None) -> str:
    return f"no {name}" if value is None else f"{name} `{value}`"


def _by(verdict: Verdict) -> str:
    """Which rules made the verdict."""
    if verdict.rule is not None:
        others = verdict.matched[:-1]
        also = f"; {listed(others)} held too" if others else ""
        return f" (by the rule `{verdict.rule}`{also})"
    return f" (no rule routes it; {listed(verdict.matched)} held)" if verdict.matched else " (no rule held)"


def _limit(verdict: Verdict, request: Situation) -> int | None:
    asked = int(verdict.set.get("max_tokens", request.max_tokens)) or None
    cap = verdict.cap.get("max_tokens")
    if cap is None:
        return asked
    return int(cap) if asked is None or asked > cap else asked


def _facts(model: str, request: Situation) -> Facts:
    return Facts(
        model=model,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        images=request.images,
        tools=request.tools,
        structured=request.structured,
        stream=request.stream,
        dialect=request.dialect,
        endpoint=request.endpoint,
        key=request.key,
        key_class=request.key_class,
        app=request.app,
        hour=request.hour,
    )


def _tier_facts(tier: TierSituation) -> TierFacts:
    """The facts as they are told; a tier that is not healthy has nothing to wait for, as it is when a gateway runs."""
    return TierFacts(
        healthy=tier.healthy,
        queue=tier.queue,
        running=tier.running,
        predicted_wait_s=tier.predicted_wait_s if tier.healthy else ENDLESS,
        predicted_ttft_s=max(tier.predicted_ttft_s, tier.predicted_wait_s) if tier.healthy else ENDLESS,
        warm=tier.warm and tier.healthy,
        prefix_hit=tier.prefix_hit,
    )


def _line(node: Node | None, path: Path) -> int:
    """The line on which the value at `path` was written."""
    for part in path:
        match node:
            case document.Mapping():
                node = next(
                    value for key, value in node.entries if isinstance(key, document.Scalar) and key.text == part
                )
            case document.Listing() if isinstance(part, int):
                node = node.items[part]
    return node.line if node is not None else 0
