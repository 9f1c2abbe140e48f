"""`docs/conformance.md`: how the page is written, and read again."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conformance.dialects import DIALECTS, Dialect
from tests.conformance.engines import ENGINES
from tests.conformance.features import FEATURES, Cell

FILE = Path(__file__).parents[2] / "docs" / "conformance.md"
NOT_APPLICABLE, UNTRIED = Cell("n/a"), Cell("untried")
LIBRARIES = {f"`{name}`": name for name in dict.fromkeys(dialect.library for dialect in DIALECTS)}
"""Their names in the package index, by what the page calls them."""
LEGEND = {
    "yes": "it works: what came back was checked, not only that something did",
    "refused": "a clear error in the dialect's form, which names the field; the note has its status, code and words",
    "engine": "Sluice passes it on, and this engine, or the small model here, makes nothing of it; the note says why",
    "dropped": "Sluice leaves it out; the note says why",
    "n/a": "the dialect has no such thing",
    "untried": "nobody has tried",
    "broken": "it does not work",
}
"""The words of cells; a page that is done has none of the last two."""
HEAD = """\
# What works

Does tool calling work with Anthropic's library on vLLM? Look for the table of the dialect that your program speaks, the
row of what you need, and the column of your engine. Every cell was tried through Sluice by the library that programs
use, and says what came back, of whole answers and of streams. The tests fail when that is no longer so; `make
conformance` tries everything again and writes this page. How each dialect is carried to each engine, field by field, is
in [dialects.md](dialects.md).
"""
TESTED = """\
## What was tested

Real engines ran SmolLM2-135M with a chat template that knows tools and thoughts. So small a model needs examples in the
conversation to call a tool or to think. Emulated engines answer as real ones of that version were recorded to: how a
request and its answer are carried is tested there, and not what a model makes of it.
"""
MEANS = """\
## What "yes" means
"""


class Key(NamedTuple):
    """Which cell: a dialect by its title, an engine by its name, and a feature."""

    dialect: str
    engine: str
    feature: str


Versions = dict[str, str]
"""Of engines and libraries."""


def read(text: str) -> tuple[dict[Key, Cell], Versions]:
    """What a page says."""
    cells: dict[Key, Cell] = {}
    versions: Versions = {}
    for section in text.split("\n## ")[1:]:
        title = section.partition(":")[0]
        (_, *head), _, *rows = [line[2:-2].split(" | ") for line in section.splitlines() if line.startswith("| ")]
        if head == ["version", "how"]:
            versions = {name: told for name, told, _ in rows}
        elif title in {dialect.title for dialect in DIALECTS}:
            notes = dict(re.findall(r"^(\d+)\. (.*)$", section, flags=re.MULTILINE))
            for feature, *values in rows:
                for engine, value in zip(head, values, strict=True):
                    word, _, number = value.removesuffix("</sup>").partition("<sup>")
                    cells[Key(title, engine, feature)] = Cell(word, notes.get(number, ""))
    return cells, versions


def write(cells: Mapping[Key, Cell], versions: Versions) -> str:
    """The page that says this."""
    tested = [(name, versions.get(name, "-"), column.about) for name, column in ENGINES.items()]
    tested += [(name, versions.get(name, "-"), "the Python library that asks") for name in LIBRARIES]
    means = [(name, feature.means) for name, feature in FEATURES.items()]
    sections = ["\n".join(_section(dialect, cells)) for dialect in DIALECTS]
    used = {_cell(*key, cells).value for key in itertools.product(DIALECTS, ENGINES, FEATURES)}
    legend = [(word, meaning) for word, meaning in LEGEND.items() if word in used]
    parts = [
        HEAD,
        "\n".join([*_table(("a cell", "says"), legend), ""]),
        *sections,
        MEANS,
        "\n".join([*_table(("", "is"), means), ""]),
        TESTED,
        "\n".join([*_table(("", "version", "how"), tested), ""]),
    ]
    return "\n".join(parts)


def _section(dialect: type[Dialect], cells: Mapping[Key, Cell]) -> Iterator[str]:
    notes: dict[str, int] = {}
    rows = [(name, *(_told(_cell(dialect, engine, name, cells), notes) for engine in ENGINES)) for name in FEATURES]
    yield f"## {dialect.title}: `{dialect.endpoint}`"
    yield ""
    yield from _table(("", *ENGINES), rows)
    yield ""
    yield from (f"{number}. {note}" for note, number in notes.items())
    if notes:
        yield ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _cell(dialect: type[Dialect], engine: str, feature: str, cells: Mapping[Key, Cell]) -> Cell:
    if feature in dialect.lacks:
        return NOT_APPLICABLE
    return cells.get(Key(dialect.title, engine, feature), UNTRIED)


def _told(cell: Cell, notes: dict[str, int]) -> str:
    if not cell.note:
        return cell.value
    return f"{cell.value}<sup>{notes.setdefault(cell.note, len(notes) + 1)}</sup>"
