"""Every feature, in every dialect, on every engine: what a client sees is what docs/conformance.md says."""

from operator import attrgetter

import pytest

from tests.conformance import table
from tests.conformance.conftest import Page
from tests.conformance.dialects import DIALECTS, Clients, Dialect
from tests.conformance.engines import ENGINES, Engine
from tests.conformance.features import FEATURES, Talk, find
from tests.conformance.reasons import explained

REASONING = "reasoning"


def engines(start: str) -> pytest.MarkDecorator:
    """All engines in turn, started as this attribute of their columns says."""
    params = [
        pytest.param((name, attrgetter(start)(column)), marks=column.marks, id=name) for name, column in ENGINES.items()
    ]
    return pytest.mark.parametrize("engine", params, indirect=True, scope="module")


def cells(*features: str) -> pytest.MarkDecorator:
    """These features in all dialects that have them."""
    params = [
        pytest.param(dialect, feature, id=f"{dialect.title}: {feature}")
        for dialect in DIALECTS
        for feature in features
        if feature not in dialect.lacks
    ]
    return pytest.mark.parametrize(("dialect", "feature"), params)


@pytest.mark.anyio
class TestCells:
    @engines("start")
    @cells(*(feature for feature in FEATURES if feature != REASONING))
    async def test_cell(
        self, page: Page, engine: Engine, libraries: Clients, dialect: type[Dialect], feature: str
    ) -> None:
        await tried(page, feature, Talk(dialect(libraries), engine))

    @engines("start_thinking")
    @cells(REASONING)
    async def test_cell_of_an_engine_that_is_started_for_it(
        self, page: Page, engine: Engine, libraries: Clients, dialect: type[Dialect], feature: str
    ) -> None:
        await tried(page, feature, Talk(dialect(libraries), engine))


async def tried(page: Page, feature: str, talk: Talk) -> None:
    """
    Raises:
        AssertionError: it is broken, or not what the page says.
    """
    key = table.Key(talk.dialect.title, talk.engine.name, feature)
    try:
        found = explained(await find(feature, talk), key)
    except AssertionError as fault:
        page.broken(key, fault)
        raise
    page.compare(key, found)


def test_the_page_is_as_these_tests_write_it(page: Page) -> None:
    assert page.writing or table.FILE.read_text() == table.write(page.cells, page.versions)


def test_nothing_is_broken_or_untried(page: Page) -> None:
    assert {cell.value for cell in page.cells.values()} <= {"yes", "refused", "engine", "dropped", "n/a"}
