"""What another policy would have done with requests that were logged."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from gateway.policy.decision import Decision
from gateway.policy.rules import Rules
from gateway.policy.scene import Noting, Scene, destination
from gateway.policy.trials import Trials

REJECTED, NO_POLICY, NOWHERE = "(rejected)", "(no policy)", "(none)"
"""What stands in the place of a tier: a rule rejects it; the model has no policy; it got no engine."""


class Logged(msgspec.Struct, frozen=True):
    """A line of the request log, as far as it is needed here."""

    event: str = ""
    request_id: str = ""
    model: str | None = None
    key: str | None = None
    stream: bool = False
    tier: str | None = None
    decision: Decision | None = None


class Move(NamedTuple):
    """From the tier that a request went to, to the one of the new policy."""

    model: str
    old: str
    new: str


class _Side(NamedTuple):
    """Policies by model, and what they try."""

    rules: Mapping[str, Rules]
    trials: Trials


class Replay:
    """Takes log lines, one after the other, and keeps counts.

    The log has no live facts and no headers, so that every tier is taken to be healthy and idle, and no header to have
    been sent. No request draws a canary.

    Args:
        policies: the new ones, by model.
        before: those in force, by model: they tell which requests went elsewhere for the state of the engines alone.
        examples: how many requests of each move to remember.

    Attributes:
        moves: how many requests went from where to where.
        elsewhere: how many of them `before` would not have sent where they went.
        examples: some requests of each move, with the rules that decide now.
        skipped: lines without a decision, and what is no line of the log.
        unknown: what conditions looked at that is not in the log.
    """

    def __init__(self, policies: Mapping[str, Rules], before: Mapping[str, Rules], examples: int = 3) -> None:
        self.moves: Counter[Move] = Counter()
        self.elsewhere: Counter[Move] = Counter()
        self.examples: dict[Move, list[tuple[Logged, str | None]]] = {}
        self.skipped: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self._new = _Side(policies, Trials(policies))
        self._before = _Side(before, Trials(before))
        self._remembered = examples

    def add(self, line: str) -> None:
        """Takes one line."""
        try:
            logged = _decode(line)
        except msgspec.DecodeError:
            self.skipped["not a line of the log"] += bool(line.strip())
            return
        if logged.event != "request":
            return
        if logged.model is None or logged.decision is None:
            self.skipped["without a decision"] += 1
            return
        scene = Scene(logged.decision.facts(logged.model, logged.key or "", logged.stream))
        new, rule = self._decide(self._new, logged.model, scene)
        old = logged.tier or NOWHERE
        move = Move(logged.model, old, new)
        self.moves[move] += 1
        if logged.tier is not None:
            self.elsewhere[move] += self._decide(self._before, logged.model, scene)[0] not in (old, NO_POLICY)
        kept = self.examples.setdefault(move, [])
        if len(kept) < self._remembered:
            kept.append((logged, rule))

    def _decide(self, side: _Side, model: str, scene: Scene) -> tuple[str, str | None]:
        rules = side.rules.get(model)
        if rules is None:
            return NO_POLICY, None
        noting = Noting(scene)
        verdict = rules.decide(noting)
        self.unknown |= {name for name in noting.seen if "." in name or name.startswith("header(")}
        if verdict.reject is not None:
            return REJECTED, verdict.rule
        usual = verdict._replace(tiers=side.trials.usual(model, verdict.tiers))
        return destination(usual, scene) or NOWHERE, verdict.rule

    def text(self) -> Iterator[str]:
        """The counts and examples, for a terminal."""
        total = sum(self.moves.values())
        changed = {move: count for move, count in self.moves.most_common() if move.old != move.new}
        yield f"{total} request{'s' * (total != 1)}, {sum(changed.values())} of them would go elsewhere."
        for why, count in self.skipped.items():
            if count:
                yield f"Lines left out, {why}: {count}."
        for move, count in self.moves.most_common():
            yield ""
            what = f"{move.old} -> {move.new}" if move in changed else f"{move.old}, as before"
            yield f"{move.model}: {what}: {count}"
            if move in changed and self.elsewhere[move]:
                yield (
                    f"  of these, {self.elsewhere[move]} not as the policy in force has it for idle engines: by spill, "
                    "as a canary, or since an engine was away"
                )
            if move in changed:
                yield from (f"  {_example(logged, rule)}" for logged, rule in self.examples[move])
        yield ""
        yield "The log has no live facts: every engine was taken to be ready and idle, so that nothing spills."
        if self.unknown:
            yield f"Conditions look at what is not in the log: {', '.join(sorted(self.unknown))}."


def _example(logged: Logged, rule: str | None) -> str:
    """The facts of a request that are not the usual ones."""
    decision = logged.decision or Decision()
    facts = [f"prompt_tokens {decision.prompt_tokens}"]
    for field in msgspec.structs.fields(Decision):
        value = getattr(decision, field.name)
        if field.name not in ("rule", "prompt_tokens", "hour") and value != field.default:
            facts.append(f"{field.name} {value}" if value is not True else field.name)
    facts.append(f"hour {decision.hour}")
    by = f"by the rule `{rule}`" if rule is not None else "by no rule"
    return f"{logged.request_id}: {', '.join(facts)}: {by}"


_decode = msgspec.json.Decoder(Logged).decode
