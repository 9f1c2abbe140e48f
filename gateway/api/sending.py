"""What is sent to an engine for a request, and what a limit that passes there is called."""

from gateway.api.door import Asked
from gateway.errors import EngineTimeout
from gateway.fleet import Route
from gateway.router import Plan

_WHAT_TOOK_LONG = {
    "first_byte": "sent nothing for",
    "ttft": "sent no output for",
    "idle": "fell silent in the middle of its answer for",
    "total": "had not finished its answer after",
}


def fitted(asked: Asked, route: Route, plan: Plan) -> Asked:
    """The request as the engine there takes it, with what the rules do to its fields.

    Raises:
        InvalidRequest: it cannot be carried to an engine that does not have its endpoint.
    """
    if asked.as_chat is not None and asked.request.endpoint not in route.backend.engine.serves:
        asked = asked.as_chat()
    if plan.verdict.set or plan.verdict.cap:
        asked = asked._replace(request=asked.request.with_fields(plan.verdict.set, plan.verdict.cap))
    return asked


def limit_passed(route: Route, limit: str) -> EngineTimeout:
    """The error for an engine that passed a limit of `route.timeouts`; the engine is looked at at once."""
    route.backend.suspect()
    seconds = getattr(route.timeouts, limit, 0.0)
    return EngineTimeout(f"Engine `{route.backend.name}` {_WHAT_TOOK_LONG[limit]} {seconds:g} s.")
