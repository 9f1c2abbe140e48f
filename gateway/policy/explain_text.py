"""An explanation as text for a terminal."""

from collections.abc import Iterator

import msgspec

from gateway.policy.explain import Explanation, RuleShown, Step, TargetShown, TierShown
from gateway.policy.facts import Facts
from gateway.policy.scene import Value

_ASSUMED = (
    "Nobody was asked: every engine is taken to be ready, idle and warm, and to have each model by the name that the "
    "files have for it. `--url` asks a gateway that runs."
)


def as_text(explanation: Explanation) -> str:
    """All of it, with a line for each rule, tier and target."""
    sections = [
        ("Request", _request(explanation)),
        ("Rules", map(_rule, explanation.rules)),
        ("Verdict", _verdict(explanation)),
        *((_tier(tier), _targets(tier)) for tier in explanation.tiers),
        ("Plan", (f"{at}. {_place(step)}" for at, step in enumerate(explanation.plan, 1))),
    ]
    parts = [_headline(explanation)]
    for title, lines in sections:
        if indented := [f"  {line}" for line in lines]:
            parts.append("\n".join([title, *indented]))
    return "\n\n".join(parts if explanation.live else [*parts, _ASSUMED])


def _headline(explanation: Explanation) -> str:
    rule = explanation.verdict.rule
    by = f" by the rule `{rule}`" if rule is not None else ""
    match explanation.outcome:
        case "served" if explanation.at is not None:
            at = explanation.at
            if explanation.score == "weighted":
                place = f"tier `{at.tier}`, most likely to engine `{at.engine}`, model `{at.model}` (engines draw lots)"
            else:
                place = _place(at)
            what = f"goes to {place}{by}"
        case "waits":
            about = f", about {_seconds(explanation.wait)}" if explanation.wait is not None else ""
            what = f"waits for a place{about}{by}"
        case "rejected":
            what = f"is rejected{by}: {explanation.message}"
        case _:
            what = f"is refused: {explanation.message}"
    return f"`{explanation.facts.model}` {what}"


def _place(step: Step) -> str:
    return f"tier `{step.tier}`, engine `{step.engine}`, model `{step.model}`"


def _request(explanation: Explanation) -> Iterator[str]:
    """What is not as for the smallest request, and what rules like to look at."""
    always = ("prompt_tokens", "key_class", "hour")
    for field in msgspec.structs.fields(Facts):
        value = getattr(explanation.facts, field.name)
        if field.name != "model" and (value != field.default or field.name in always):
            yield f"{field.name} = {_value(value)}"
    for name, value in explanation.headers.items():
        yield f'header("{name}") = {_value(value)}'


def _rule(rule: RuleShown) -> str:
    mark = ("yes" if rule.held else "no ") if rule.reached else "-  "
    line = f"{mark} {rule.name}: {rule.when or 'always'}"
    if rule.values:
        line += f"   [{', '.join(f'{name} = {_value(value)}' for name, value in rule.values.items())}]"
    if not rule.reached:
        return f"{line}   not looked at"
    return f"{line}   -> {', '.join(rule.does)}" if rule.held else line


def _value(value: Value | None) -> str:
    match value:
        case None:
            return "endless"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
    return f"{value:g}" if isinstance(value, float) else str(value)


def _verdict(explanation: Explanation) -> Iterator[str]:
    verdict = explanation.verdict
    if verdict.reject is not None:
        return
    by = f" (by the rule `{verdict.rule}`)" if verdict.rule is not None else " (all, as no rule routes it)"
    yield f"tiers {', '.join(verdict.tiers)}{by if explanation.rules else ''}"
    yield f"class {verdict.priority}"
    if verdict.spill is not None and len(verdict.tiers) > 1:
        yield f"a tier more is used when the wait before it is longer than {verdict.spill:g} s (spill)"
    if verdict.deadline is not None:
        yield f"deadline {verdict.deadline:g} s"
    for word, fields in (("set", verdict.set), ("cap", verdict.cap)):
        for name, value in fields.items():
            yield f"{word} {name} {value:g}"
    yield f"score {explanation.score}"


def _tier(tier: TierShown) -> str:
    state = "open" if tier.open else "not open yet" if tier.used else "not used"
    health = "" if tier.healthy else ", no engine is ready"
    return f"Tier {tier.name}: {state}{health}, {tier.queue} waiting, wait {_seconds(tier.wait)}"


def _targets(tier: TierShown) -> Iterator[str]:
    if not tier.targets:
        yield "no engine has told that it has a model for it"
    for target in tier.targets:
        rank = "-" if target.order is None else str(target.order)
        yield f"{rank} {target.engine}, model {target.model}: {_state(target)}"


def _state(target: TargetShown) -> str:
    if target.left_out is not None:
        return f"left out, {target.left_out}"
    taken = f"{target.in_flight} places taken, no limit known"
    if target.capacity is not None:
        taken = f"{target.in_flight} of {target.capacity} places taken"
    context = "context not known" if target.context is None else f"fits its context of {target.context}"
    load = f"load {_seconds(target.load)}" + ("" if target.warm else " (cold)")
    terms = f"wait {_seconds(target.wait)} + {load} + prefill {_seconds(target.prefill)} = {_seconds(target.ttft)}"
    weight = f", weight {target.weight:g}" if target.weight != 1 else ""
    return f"{terms}; {taken}, {context}{weight}"


def _seconds(seconds: float | None) -> str:
    return "endless" if seconds is None else f"{seconds:.3g} s"
