"""`/v1/responses`, by the `openai` library."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from tests.conformance.ask import ABOUT, PARAMETERS, PNG, TOOL, Answer, Ask, Assistant, Call, End, Result, Turn, User
from tests.conformance.dialects.openai import OpenAIDialect, tokens

FUNCTION = {"type": "function", "name": TOOL, "description": ABOUT, "parameters": PARAMETERS, "strict": False}


class OpenAIResponses(OpenAIDialect):
    title = "OpenAI responses"
    endpoint = "/v1/responses"
    lacks = frozenset({"stop sequence", "two answers"})
    fields: ClassVar[Mapping[str, str]] = {
        "forced tool call": "tool_choice",
        "parallel tool calls": "tools",
        "structured output": "text.format",
        "image": "input",
        "reasoning": "reasoning",
        "log probabilities": "top_logprobs",
    }

    async def _create(self, ask: Ask) -> Any:
        fields: dict[str, Any] = {"model": ask.model, "max_output_tokens": ask.limit, "temperature": 0, "store": False}
        if ask.stream:
            fields["stream"] = True
        if ask.tools:
            fields["tools"] = [FUNCTION]
        if ask.forced:
            fields["tool_choice"] = "required"
        if ask.schema:
            fields["text"] = {"format": {"type": "json_schema", "name": "a", "schema": ask.schema}}
        if ask.logprobs:
            fields |= {"top_logprobs": ask.logprobs, "include": ["message.output_text.logprobs"]}
        if ask.think:
            fields["reasoning"] = {"effort": "low"}
        items = [item for number, turn in enumerate(ask.turns) for item in _items(turn, number)]
        return await self._clients.openai.responses.create(input=items, **fields)

    def _read(self, response: Any) -> Answer:
        items = response.output
        calls = [
            Call(item.call_id, json.loads(item.arguments), item.name) for item in items if item.type == "function_call"
        ]
        parts = [part for item in items if item.type == "message" for part in item.content]
        return Answer(
            texts=[response.output_text],
            end=_end(response, calls),
            prompt_tokens=response.usage and response.usage.input_tokens,
            output_tokens=response.usage and response.usage.output_tokens,
            calls=calls,
            thoughts="".join(part.text for item in items if item.type == "reasoning" for part in item.content or []),
            tokens=[token for part in parts for token in tokens(part.logprobs)],
        )

    def _gathered(self, events: list[Any]) -> Answer:
        """The response at the end, of which the events before it must have told the same."""
        last = events[-1]
        assert last.type in ("response.completed", "response.incomplete"), f"the last event is {last.type}"
        answer = self._read(last.response)
        if last.type != f"response.{last.response.status}":
            answer.remark = f"The last event is `{last.type}`, though the `status` in it is `{last.response.status}`."
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == answer.text
        thoughts = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        assert thoughts == answer.thoughts
        done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
        assert [json.loads(arguments) for arguments in done] == [call.arguments for call in answer.calls]
        answer.pieces = len(deltas)
        return answer


def _items(turn: Turn, number: int) -> list[Any]:
    """`number` makes the ids that the dialect wants items of an assistant to have."""
    match turn:
        case User(text, image=False):
            return [{"role": "user", "content": text}]
        case User(text):
            image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"}
            return [{"role": "user", "content": [{"type": "input_text", "text": text}, image]}]
        case Assistant(text, thoughts, calls):
            items: list[Any] = []
            if thoughts:
                told = [{"type": "reasoning_text", "text": thoughts}]
                items.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": told})
            if text:
                said = [{"type": "output_text", "text": text, "annotations": []}]
                message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": said}
                items.append(message | {"status": "completed"})
            return [*items, *map(_function_call, calls)]
        case Result(call, text):
            return [{"type": "function_call_output", "call_id": call, "output": text}]


def _function_call(call: Call) -> Any:
    arguments = json.dumps(call.arguments)
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _end(response: Any, calls: list[Call]) -> End:
    if response.status == "incomplete":
        assert response.incomplete_details.reason == "max_output_tokens"
        return End.LIMIT
    assert response.status == "completed"
    return End.CALLS if calls else End.STOP
