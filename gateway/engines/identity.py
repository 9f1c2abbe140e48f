"""Which model exactly an engine serves, and whether it is the one that the config pins."""

from collections.abc import Iterable, Mapping

from gateway.config.schema import Pin
from gateway.engines.base import EngineModel

_PROPERTIES = ("digest", "version", "quantization", "context")


def describe(model: EngineModel) -> str:
    """What is known of a model's identity, as `digest=...; quantization=...`; empty if nothing is."""
    known = ((name, getattr(model, name)) for name in _PROPERTIES)
    return "; ".join(f"{name}={value}" for name, value in known if value is not None)


def broken_pin(pins: Mapping[str, Pin], models: Iterable[EngineModel]) -> str | None:
    """Why the engine must not be used, in words; `None` if every pinned model is there and as pinned.

    A digest may be pinned by its first characters, with or without `sha256:`.
    """
    served = {model.name: model for model in models}
    for name, pin in pins.items():
        model = served.get(name)
        if model is None:
            return f"it does not have the model {name}, which is pinned"
        for what in _PROPERTIES:
            pinned, found = getattr(pin, what), getattr(model, what)
            if pinned is None or _matches(what, pinned, found):
                continue
            told = "does not tell it" if found is None else f"has {found}"
            return f"the {what} of {name} is pinned to {pinned}, and the engine {told}"
    return None


def _matches(what: str, pinned: object, found: object) -> bool:
    if what == "digest" and isinstance(pinned, str) and isinstance(found, str):
        return found.removeprefix("sha256:").startswith(pinned.removeprefix("sha256:"))
    return pinned == found
