"""load/compare_scores.py and what docs/policies.md says of it."""

import re
import runpy
from pathlib import Path

import pytest

from gateway.policy.score import SCORES

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "load" / "compare_scores.py"))
SECTION = (ROOT / "docs" / "policies.md").read_text("utf-8").partition("\n## Scores\n")[2].partition("\n## ")[0]
FLEETS = SCRIPT["FLEETS"]


def test_the_table_of_the_docs_has_each_score_in_each_fleet() -> None:
    rows = re.findall(r"^\| ([^|`]+) \| `(\w+)` \|", SECTION, re.MULTILINE)
    assert rows == [(fleet.title, score) for fleet in FLEETS.values() for score in SCORES]
    assert f"| {' | '.join(SCRIPT['HEAD'])} |" in SECTION


@pytest.mark.parametrize("name", FLEETS)
def test_the_docs_show_a_plot_of_each_fleet_with_all_scores(name: str) -> None:
    file = f"img/scores-{name}.svg"
    assert f"![{FLEETS[name].title}]({file})" in SECTION
    drawn = (ROOT / "docs" / file).read_text("utf-8")
    assert re.findall(r'text-anchor="end"[^>]*>(\w+)<', drawn) == list(SCORES)


def test_only_scores_that_there_are_are_advised() -> None:
    advice = SECTION.partition("Which one to choose:")[2].partition("These figures")[0]
    assert set(re.findall(r"`(\w+)`", advice)) == SCORES.keys()


def test_what_the_docs_advise_is_what_the_script_finds() -> None:
    best = {name: SCRIPT["compare"](fleet) for name, fleet in FLEETS.items()}

    def ranked(name: str) -> list[str]:
        return sorted(best[name], key=lambda score: best[name][score].total)

    assert ranked("equal")[0] == "least_loaded"
    assert ranked("fast-and-slow")[0] == ranked("cold-model")[0] == "predicted_ttft"
    assert ranked("prefix-heavy")[0] == "hash"
    assert {ranked(name)[0] for name in FLEETS}.isdisjoint({"weighted", "round_robin"})
