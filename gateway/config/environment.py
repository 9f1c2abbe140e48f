"""`${NAME}` and `${NAME:-default}` in a text; `$${` stands for the characters `${` themselves."""

import re
from collections.abc import Mapping

import msgspec

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\})?")


class Expanded(msgspec.Struct, frozen=True):
    """A text with its references replaced. `whole`: it was one reference and nothing else."""

    text: str
    variables: tuple[str, ...] = ()
    whole: bool = False
    mistakes: tuple[str, ...] = ()


def expand(text: str, environ: Mapping[str, str]) -> Expanded:
    """Replace the references in `text`. A default also stands for a variable that is empty, as in a shell."""
    variables: list[str] = []
    mistakes: list[str] = []

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if match[0] == "$${":
            return "${"
        if name is None:
            mistakes.append("`${` starts a reference, `${NAME}` or `${NAME:-default}`; for a plain `${` write `$${`")
            return ""
        variables.append(name)
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            mistakes.append(
                f"the environment variable `{name}` is not set; set it, or write `${{{name}:-default}}` for a default"
            )
        return environ.get(name, "")

    only = _REFERENCE.fullmatch(text)
    expanded = _REFERENCE.sub(value, text)
    return Expanded(expanded, tuple(variables), bool(only and only["name"]), tuple(mistakes))
