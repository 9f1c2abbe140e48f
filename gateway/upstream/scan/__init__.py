"""What answers say of themselves, one file a dialect: streams while they are relayed, and answers in one piece."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.request import Endpoint
from gateway.upstream.events import EventScanner
from gateway.upstream.facts import EngineReport
from gateway.upstream.scan.chat import ChatScanner, read_completion
from gateway.upstream.scan.messages import MessagesScanner, read_message
from gateway.upstream.scan.responses import ResponsesScanner, read_response


class Form(NamedTuple):
    """How an endpoint's answers are read. `read_answer` raises ValueError for what is none."""

    scanner: type[EventScanner]
    read_answer: Callable[[bytes], EngineReport]


_CHAT = Form(ChatScanner, read_completion)
_FORMS = {
    Endpoint.MESSAGES: Form(MessagesScanner, read_message),
    Endpoint.RESPONSES: Form(ResponsesScanner, read_response),
}


def form_of(endpoint: Endpoint) -> Form:
    return _FORMS.get(endpoint, _CHAT)
