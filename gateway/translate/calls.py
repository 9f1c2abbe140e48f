"""Puts the tool calls of one stream together from their parts."""

import msgspec

from gateway.translate.chat import ToolCall, arguments_text
from gateway.translate.chunks import new_id


class Call(msgspec.Struct, eq=False, kw_only=True):
    """A call that arrives in parts. `engine_index` and `engine_id` are how the engine names it in them."""

    engine_index: int | None
    engine_id: str | None
    id: str
    """The engine's, or one of ours where that is missing or taken."""
    name: str
    pieces: list[str]

    @property
    def arguments(self) -> str:
        """JSON text, as far as it came."""
        return "".join(self.pieces)

    @property
    def whole(self) -> bool:
        """Whether the arguments are a whole object, so that nothing can follow but blanks."""
        try:
            msgspec.json.decode(self.arguments, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class Calls:
    """
    Args:
        prefix: how the ids begin that are made here.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._calls: list[Call] = []

    def take(self, part: ToolCall) -> tuple[Call, str]:
        """The call that `part` belongs to, with its arguments added, and what was added.

        It is a new one where its id or its index say so. Engines give the same index to all calls, or none, or the
        same id, or an empty one; or they repeat the name.
        """
        call = next((call for call in reversed(self._calls) if _belongs(part, call)), None)
        if call is None:
            taken = {call.id for call in self._calls}
            call_id = part.id if part.id and part.id not in taken else new_id(self._prefix)
            call = Call(engine_index=part.index, engine_id=part.id or None, id=call_id, name="", pieces=[])
            self._calls.append(call)
        call.name = call.name or part.function.name or ""
        arguments = part.function.arguments
        piece = arguments_text(arguments) if arguments else ""
        call.pieces.append(piece)
        return call, piece

    def take_all(self) -> list[Call]:
        """The calls so far, which are then no longer kept."""
        calls, self._calls = self._calls, []
        return calls


def _belongs(part: ToolCall, call: Call) -> bool:
    if part.index is not None and part.index != call.engine_index:
        return False
    if part.id:
        return part.id == call.engine_id
    name = part.function.name
    return not name or (name == call.name and not call.whole)
