"""What the request log keeps of a decision, so that another policy can be held against it: facts, never a prompt."""

from typing import Self

import msgspec

from gateway.policy.facts import Facts

_LONGEST = 200
"""Characters of a client's name for itself, which it may make up."""


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a policy knew of a request, and the rule that decided. Headers and live facts are not kept.

    See `Facts`; the model, the key's name and `stream` are in the log line itself. `prompt_tokens` is the estimate that
    the policy had, beside the count that the engine told later.
    """

    rule: str | None = None
    prompt_tokens: int = 0
    max_tokens: int = 0
    images: int = 0
    tools: int = 0
    structured: bool = False
    dialect: str = "openai"
    endpoint: str = "chat"
    key_class: str = "normal"
    app: str = ""
    hour: int = 0

    @classmethod
    def of(cls, facts: Facts, rule: str | None) -> Self:
        return cls(
            rule=rule,
            prompt_tokens=facts.prompt_tokens,
            max_tokens=facts.max_tokens,
            images=facts.images,
            tools=facts.tools,
            structured=facts.structured,
            dialect=facts.dialect,
            endpoint=facts.endpoint,
            key_class=facts.key_class,
            app=facts.app[:_LONGEST],
            hour=facts.hour,
        )

    def facts(self, model: str, key: str, stream: bool) -> Facts:
        """The facts again, with what the log line itself has."""
        return Facts(
            model=model,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            images=self.images,
            tools=self.tools,
            structured=self.structured,
            stream=stream,
            dialect=self.dialect,
            endpoint=self.endpoint,
            key=key,
            key_class=self.key_class,
            app=self.app,
            hour=self.hour,
        )
