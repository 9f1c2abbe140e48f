"""Turns a request in Anthropic's Messages dialect into one for a chat in OpenAI's."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from gateway.translate import chat
from gateway.translate.anthropic import (
    Block,
    Image,
    Message,
    MessagesRequest,
    OutputFormat,
    Text,
    Thinking,
    ThinkingConfig,
    Tool,
    ToolChoice,
    ToolResult,
    ToolUse,
    UrlSource,
    uncarried,
)

_BILLING_MARK = "x-anthropic-billing-header:"
"""Begins a system block in which Claude Code tells Anthropic's service about itself. It is another one in each request
and comes first, so that no engine's prefix cache would ever be of use."""

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def to_chat(request: MessagesRequest) -> chat.ChatRequest:
    """
    Raises:
        InvalidRequest: a part of `request` has no place in a chat; the error names it.
    """
    choice = request.tool_choice
    output = request.output_config
    return chat.ChatRequest(
        model=request.model,
        messages=[*_system(request.system), *_messages(request.messages)],
        stream=request.stream,
        stream_options=chat.StreamOptions(include_usage=True) if request.stream else None,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences or None,
        tools=[_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or [])] or None,
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=None if output is None or output.format is None else _response_format(output.format),
        reasoning_effort=_effort(request.thinking, output.effort if output is not None else None),
        user=None if request.metadata is None else request.metadata.user_id,
    )


class _Place(NamedTuple):
    """A block, and its path in the request."""

    where: str
    block: Block


def _system(system: str | list[Text] | None) -> Iterator[chat.Message]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or []]
    texts = [text for text in texts if text and not text.startswith(_BILLING_MARK)]
    if texts:
        yield chat.Message(role="system", content="\n\n".join(texts))


def _messages(messages: list[Message]) -> Iterator[chat.Message]:
    """Neighbours of one role are one turn, as they are for Anthropic: many chat templates refuse two in a row."""
    numbered = enumerate(messages)
    for role, turn in groupby(numbered, key=lambda item: item[1].role):
        places = [
            _Place(f"messages[{number}].content[{at}]", block)
            for number, message in turn
            for at, block in enumerate(message.blocks)
        ]
        if role == "assistant":
            yield _assistant(places)
        elif role == "user":
            yield from _user(places)
        else:
            yield chat.Message(role="system", content=_content(places))


def _assistant(places: list[_Place]) -> chat.Message:
    """Texts are joined as they are, since that is how the engine wrote them before they became blocks."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[chat.ToolCall] = []
    for where, block in places:
        match block:
            case Text():
                texts.append(block.text)
            case Thinking():
                thoughts.append(block.thinking)
            case ToolUse():
                function = chat.FunctionCall(name=block.name, arguments=chat.arguments_text(block.input))
                calls.append(chat.ToolCall(id=block.id, type="function", function=function))
            case Image() | ToolResult():
                raise uncarried(where, "does not belong in a message of the assistant", "unsupported_content")
    text = "".join(texts)
    return chat.Message(
        role="assistant",
        content=text if text or not calls else None,
        tool_calls=calls or None,
        reasoning_content="".join(thoughts) or None,
    )


def _user(places: list[_Place]) -> Iterator[chat.Message]:
    """Results of tools first, as they must follow the calls; then what else the user said, if anything.

    A tool's message holds nothing but text, so that the images in it go to the user's message.
    """
    rest: list[_Place] = []
    results = [(where, block) for where, block in places if isinstance(block, ToolResult)]
    for where, result in results:
        inner = [Text(text=result.content)] if isinstance(result.content, str) else result.content or []
        text = "\n".join(block.text for block in inner if isinstance(block, Text))
        rest += [_Place(where, block) for block in inner if isinstance(block, Image)]
        text = f"Error: {text}" if result.is_error else text
        yield chat.Message(role="tool", tool_call_id=result.tool_use_id, content=text)
    rest += [place for place in places if not isinstance(place.block, ToolResult)]
    if rest or not results:
        yield chat.Message(role="user", content=_content(rest))


def _content(places: Iterable[_Place]) -> str | list[chat.ContentPart]:
    """A single text as such: some chat templates know no parts."""
    parts = [_part(where, block) for where, block in places]
    if len(parts) == 1 and parts[0].type == "text":
        return parts[0].text or ""
    return parts or ""


def _part(where: str, block: Block) -> chat.ContentPart:
    match block:
        case Text():
            return chat.ContentPart(type="text", text=block.text)
        case Image(source=source):
            url = source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"
            return chat.ContentPart(type="image_url", image_url=chat.ImageUrl(url=url))
    raise uncarried(where, "does not belong in a message of this role", "unsupported_content")


def _tool(tool: Tool, where: str) -> chat.Tool:
    if tool.type not in (None, "custom"):
        why = f"is `{tool.type}`, a tool that runs at Anthropic's and at no engine here"
        raise uncarried(f"{where}.type", why, "unsupported_value")
    if tool.input_schema is None:
        raise uncarried(f"{where}.input_schema", "is missing", "missing_field")
    return chat.Tool(
        function=chat.Function(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
        )
    )


def _tool_choice(choice: ToolChoice) -> str | dict[str, chat.Json]:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise uncarried("tool_choice.name", "is missing", "missing_field")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(form: OutputFormat) -> chat.ResponseFormat:
    schema = chat.JsonSchema(schema=form.schema, strict=True)
    return chat.ResponseFormat(type="json_schema", json_schema=schema)


def _effort(thinking: ThinkingConfig | None, effort: str | None) -> str | None:
    """How much the model is to think, where the client asked it to.

    No effort `none` for a client that wants no thinking: several engines refuse it for some models, and a refused
    request is worse than thoughts that are not shown.
    """
    if thinking is None or thinking.type == "disabled":
        return None
    if effort is not None:
        return _EFFORTS[effort]
    budget = thinking.budget_tokens
    if budget is None:
        return None
    return "low" if budget < 4096 else "medium" if budget < 16384 else "high"
