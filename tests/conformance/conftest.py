"""A gateway in front of each engine in turn, clients of every dialect, and the page that says what they get."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version

import anyio
import pytest

from tests.conformance import table
from tests.conformance.dialects import Clients, clients
from tests.conformance.engines import Engine
from tests.conformance.features import Cell
from tests.support.client import get
from tests.support.gateway import RunningGateway, gateway


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-conformance", action="store_true", help="write docs/conformance.md anew")


@dataclass
class Page:
    """The page as it is. With `writing`, what is found takes its place."""

    writing: bool
    cells: dict[table.Key, Cell]
    versions: table.Versions

    def compare(self, key: table.Key, found: Cell) -> None:
        """
        Raises:
            AssertionError: the page says something else.
        """
        if self.writing:
            self.cells[key] = found
        told = self.cells.get(key, table.UNTRIED)
        assert found == told, f"docs/conformance.md says {told}, found {found}: run make conformance"

    def broken(self, key: table.Key, fault: AssertionError) -> None:
        if self.writing:
            self.cells[key] = Cell("broken", str(fault).partition("\n")[0])


@pytest.fixture(scope="session")
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    cells, versions = table.read(table.FILE.read_text() if table.FILE.exists() else "")
    page = Page(request.config.getoption("--write-conformance", default=False), cells, versions)
    yield page
    if page.writing:
        page.versions |= {shown: version(name) for shown, name in table.LIBRARIES.items()}
        table.FILE.write_text(table.write(page.cells, page.versions))


@pytest.fixture(scope="module")
async def engine(request: pytest.FixtureRequest, page: Page) -> AsyncIterator[Engine]:
    """Its parameter is its name in the table, and how it is started."""
    name, start = request.param
    async with start() as engine:
        page.versions[name] = engine.version
        yield replace(engine, name=name)


@pytest.fixture(scope="module")
async def sluice(engine: Engine) -> AsyncIterator[RunningGateway]:
    """Its model `chat` is the engine's."""
    config = {"kind": engine.kind, "url": engine.server.url, "probe": {"interval": 60}}
    models = {"chat": [{"engine": "engine", "model": engine.model}]}
    async with gateway(engines={"engine": config}, models=models) as running:
        with anyio.fail_after(30):
            while (await get(running.port, "/health/ready")).status != 200:
                await anyio.sleep(0.05)
        yield running


@pytest.fixture(scope="module")
async def libraries(sluice: RunningGateway) -> AsyncIterator[Clients]:
    async with clients(sluice.url) as libraries:
        yield libraries
