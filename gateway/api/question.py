"""What `sluice explain` asks: a request, as a client would send it or by its facts alone."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from gateway.api.doors import all_doors
from gateway.config.policy import Class
from gateway.errors import GatewayError, InvalidRequest
from gateway.policy.explain import Explanation, Given
from gateway.request import Endpoint, InferenceRequest
from gateway.router import Client, Router


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request that is to be explained.

    Attributes:
        path: where a client would send it, by which its dialect is known.
        request: its body, if it is there.
        facts: those that it is to have, whatever the body says.
        headers: the client's, by name.
    """

    path: Annotated[str, msgspec.Meta(max_length=200)] = Endpoint.CHAT.value
    request: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    facts: Given = Given()
    headers: dict[str, str] = {}


def answer(
    question: Question, router: Router, *, classes: Mapping[str, Class] | None = None, live: bool = True
) -> Explanation:
    """What `router` would do with the request.

    Args:
        classes: those of the keys, by their names, where the question tells a key and no class.

    Raises:
        InvalidRequest: it is no request of its path, or names no model.
        ModelNotFound, NoEngine: no engine is known to have the model.
    """
    doors = {door.path: door for door in all_doors(router)}
    door = doors.get(question.path)
    if door is None:
        raise InvalidRequest(
            f"No request goes to `{question.path}`; the paths are {', '.join(sorted(doors))}.", param="path"
        )
    facts = question.facts
    if question.request is not msgspec.UNSET:
        try:
            request = door.read(bytes(question.request)).request
        except GatewayError as error:
            if error.status >= 400:
                raise
            raise InvalidRequest(error.message, param="request") from None
    elif facts.model is not None:
        request = InferenceRequest(_endpoint(question.path), b"", facts.model, False, 1)
    else:
        raise InvalidRequest("Neither `request` nor `facts.model` is there.", param="request", code="missing_field")
    headers = {name.lower().encode(): value.encode() for name, value in question.headers.items()}
    key = facts.key or ""
    priority = facts.key_class or (classes or {}).get(key, "normal")
    client = Client(key, priority, facts.dialect or door.dialect, headers)
    return router.explain(request, client, facts, live=live)


def _endpoint(path: str) -> Endpoint:
    """OpenAI's for what another dialect has at `path`."""
    return next((endpoint for endpoint in Endpoint if endpoint.value == path), _OTHERS.get(path, Endpoint.CHAT))


_OTHERS = {
    "/rerank": Endpoint.RERANK,
    "/api/embed": Endpoint.EMBEDDINGS,
    "/api/embeddings": Endpoint.EMBEDDINGS,
}
