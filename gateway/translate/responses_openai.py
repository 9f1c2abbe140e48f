"""Turns a request in OpenAI's Responses dialect into one for a chat."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from gateway.errors import InvalidRequest
from gateway.translate import chat
from gateway.translate.responses import (
    Format,
    InputItem,
    Part,
    ResponsesRequest,
    TextConfig,
    Tool,
    ToolChoice,
    uncarried,
)

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_CHOICES = ("auto", "none", "required")
_KEEPS_NOTHING = "refers to what was said before, and Sluice keeps no responses: send the whole conversation as `input`"


def to_chat(request: ResponsesRequest) -> chat.ChatRequest:
    """
    Raises:
        InvalidRequest: a part of `request` has no place in a chat; the error names it.
    """
    _check(request)
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or [])]
    return chat.ChatRequest(
        model=request.model,
        messages=list(_messages(request)),
        stream=request.stream,
        stream_options=chat.StreamOptions(include_usage=True) if request.stream else None,
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        response_format=_response_format(request.text or TextConfig()),
        tools=tools or None,
        tool_choice=_tool_choice(request.tool_choice, tools),
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
        user=request.user,
    )


def _check(request: ResponsesRequest) -> None:
    """Refuses what would need Sluice to keep something, or would make another answer."""
    if request.previous_response_id is not None:
        raise uncarried("previous_response_id", _KEEPS_NOTHING)
    if request.conversation is not None:
        raise uncarried("conversation", _KEEPS_NOTHING)
    if request.prompt is not None:
        raise uncarried("prompt", "is a template that OpenAI keeps, and Sluice keeps none")
    if request.background:
        raise uncarried("background", "asks for a response to be fetched later, and Sluice keeps no responses")
    if request.truncation not in (None, "disabled"):
        raise uncarried("truncation", "may only be `disabled`: nothing is cut from a conversation", "unsupported_value")
    if request.top_logprobs:
        raise uncarried("top_logprobs", "cannot be carried")
    if "message.output_text.logprobs" in (request.include or []):
        raise uncarried(
            "include", "asks for `message.output_text.logprobs`, which are not carried", "unsupported_value"
        )
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        raise uncarried("text.verbosity", "is something no engine here could be told", "unsupported_value")


class _Place(NamedTuple):
    """An item, and its path in the request."""

    where: str
    item: InputItem

    def part(self, at: int, member: str = "content") -> str:
        return f"{self.where}.{member}[{at}]"


def _messages(request: ResponsesRequest) -> Iterator[chat.Message]:
    """What an answer is made of, a thought, texts and calls, is one message of the assistant again.

    `instructions` and the messages of the system at the start are one, since many chat templates take no second.
    """
    items = [InputItem(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    if not items:
        raise InvalidRequest("`input` is empty: send at least one item.", param="input")
    opening = [request.instructions] if request.instructions else []
    turns = groupby((_Place(f"input[{at}]", item) for at, item in enumerate(items)), key=_speaker)
    for number, (speaker, places) in enumerate(turns):
        if speaker == "system" and number == 0:
            opening += map(_text, places)
            continue
        if opening:
            yield chat.Message(role="system", content="\n\n".join(opening))
            opening = []
        match speaker:
            case "assistant":
                yield _assistant(list(places))
            case "tool":
                yield from _results(list(places))
            case "system":
                yield from (chat.Message(role="system", content=_text(place)) for place in places)
            case _:
                yield from map(_user, places)
    if opening:
        yield chat.Message(role="system", content="\n\n".join(opening))


def _speaker(place: _Place) -> str:
    where, item = place
    match item.kind:
        case "message":
            role = _ROLES.get(item.role or "")
            if role is None:
                raise uncarried(f"{where}.role", f"is `{item.role}`, which is no role here", "unsupported_value")
            return role
        case "reasoning" | "function_call":
            return "assistant"
        case "function_call_output":
            return "tool"
        case "item_reference":
            raise uncarried(where, _KEEPS_NOTHING)
    raise uncarried(
        f"{where}.type", f"is `{item.type}`, an item that no engine here knows of", code="unsupported_content"
    )


def _user(place: _Place) -> chat.Message:
    """A single text as such: some chat templates know no parts."""
    content = place.item.content or ""
    if isinstance(content, str):
        return chat.Message(role="user", content=content)
    parts = [_part(place.part(at), part) for at, part in enumerate(content)]
    if len(parts) == 1 and parts[0].type == "text":
        return chat.Message(role="user", content=parts[0].text)
    return chat.Message(role="user", content=parts or "")


def _text(place: _Place) -> str:
    """The text of a message whose role has nothing but text, its parts joined as they are."""
    content = place.item.content or ""
    if isinstance(content, str):
        return content
    parts = [_part(place.part(at), part) for at, part in enumerate(content)]
    for at, part in enumerate(parts):
        if part.type != "text":
            raise uncarried(place.part(at), "does not belong in a message of this role", "unsupported_content")
    return "".join(part.text or "" for part in parts)


def _assistant(places: list[_Place]) -> chat.Message:
    """Texts are joined as they are, since that is how the engine wrote them before they became items."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[chat.ToolCall] = []
    for place in places:
        item = place.item
        match item.kind:
            case "message":
                texts.append(_text(place))
            case "reasoning":  # the summary is of OpenAI's own models, which do not show the thought itself
                thought = item.content or item.summary or []
                thoughts += [thought] if isinstance(thought, str) else [part.text or "" for part in thought]
            case _:
                calls.append(_call(place))
    text = "".join(texts)
    return chat.Message(
        role="assistant",
        content=text if text or not calls else None,
        tool_calls=calls or None,
        reasoning_content="".join(thoughts) or None,
    )


def _call(place: _Place) -> chat.ToolCall:
    where, item = place
    if not item.call_id or not item.name:
        raise InvalidRequest(f"`{where}` needs a `call_id` and a `name`.", param=where, code="missing_field")
    function = chat.FunctionCall(name=item.name, arguments=chat.arguments_text(item.arguments))
    return chat.ToolCall(id=item.call_id, type="function", function=function)


def _results(places: list[_Place]) -> Iterator[chat.Message]:
    """A tool's message holds nothing but text, so that images in results go to a message of the user after them."""
    images: list[chat.ContentPart] = []
    for place in places:
        where, item = place
        if not item.call_id or item.output is None:
            raise InvalidRequest(f"`{where}` needs a `call_id` and an `output`.", param=where, code="missing_field")
        output = [Part(type="input_text", text=item.output)] if isinstance(item.output, str) else item.output
        parts = [_part(place.part(at, "output"), part) for at, part in enumerate(output)]
        text = "\n".join(part.text or "" for part in parts if part.type == "text")
        images += [part for part in parts if part.type != "text"]
        yield chat.Message(role="tool", tool_call_id=item.call_id, content=text)
    if images:
        yield chat.Message(role="user", content=images)


def _part(where: str, part: Part) -> chat.ContentPart:
    match part.type:
        case "input_text" | "output_text" if part.text is not None:
            return chat.ContentPart(type="text", text=part.text)
        case "refusal" if part.refusal is not None:
            return chat.ContentPart(type="text", text=part.refusal)
        case "input_image" if part.image_url is not None:
            return chat.ContentPart(type="image_url", image_url=chat.ImageUrl(url=part.image_url, detail=part.detail))
        case "input_image":
            raise uncarried(where, "is an image without its `image_url`: Sluice keeps no files", "unsupported_content")
        case "input_text" | "output_text" | "refusal":
            raise InvalidRequest(f"`{where}` has no text.", param=where, code="missing_field")
    raise uncarried(f"{where}.type", f"is `{part.type}`, which no engine here takes", "unsupported_content")


def _tool(tool: Tool, where: str) -> chat.Tool:
    if tool.type != "function":
        raise uncarried(f"{where}.type", f"is `{tool.type}`, and only tools of the type `function` are known here")
    if not tool.name:
        raise InvalidRequest(f"`{where}` needs a `name`.", param=where, code="missing_field")
    return chat.Tool(
        function=chat.Function(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )
    )


def _tool_choice(choice: str | ToolChoice | None, tools: list[chat.Tool]) -> str | dict[str, chat.Json] | None:
    """Many clients always say `auto`, which engines refuse where there are no tools."""
    if choice is None or (choice in ("auto", "none") and not tools):
        return None
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise uncarried("tool_choice", f"is `{choice}`, which is no choice here", "unsupported_value")
        return choice
    if choice.type != "function" or not choice.name:
        raise uncarried("tool_choice.type", f"is `{choice.type}`, and only a function with a name can be chosen")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(config: TextConfig) -> chat.ResponseFormat | None:
    form = config.format
    match form:
        case None | Format(type="text"):
            return None
        case Format(type="json_object"):
            return chat.ResponseFormat(type="json_object")
        case Format(type="json_schema", schema=schema) if schema is not None:
            named = chat.JsonSchema(
                name=form.name or "answer", schema=schema, strict=form.strict, description=form.description
            )
            return chat.ResponseFormat(type="json_schema", json_schema=named)
        case Format(type="json_schema"):
            raise InvalidRequest("`text.format` needs a `schema`.", param="text.format", code="missing_field")
    raise uncarried("text.format.type", f"is `{form.type}`, which is no format here", "unsupported_value")
