"""Why a wish has no effect, where no error says it; by feature, and by the dialect or the engine that it is due to."""

from tests.conformance.features import Cell
from tests.conformance.table import Key

REASONS = {
    ("parallel tool calls", "TGI"): "TGI makes one call in an answer at most.",
    ("reasoning", "TGI"): "TGI keeps no thoughts apart from the text.",
    ("reasoning", "Ollama generate"): (
        "`think` reaches the engine; the small model thinks only if earlier turns show it how, and here are none."
    ),
}


def explained(cell: Cell, key: Key) -> Cell:
    """
    Raises:
        AssertionError: it needs a reason, and has none.
    """
    if cell.value == "yes" or cell.note:
        return cell
    reason = REASONS.get((key.feature, key.engine)) or REASONS.get((key.feature, key.dialect))
    assert reason, f"{cell.value}, and REASONS do not say why"
    return Cell(cell.value, reason)
