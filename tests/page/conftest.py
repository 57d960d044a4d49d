from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browser import Watch, chromium, opened
from watched import Project, Served, project, served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module. It must end with them: other tests need the event loop of the thread."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """One project for the tests of a module."""
    with project(tmp_path_factory.mktemp("project")) as ready:
        yield ready


@pytest.fixture(scope="module")
def server(made: Project) -> Iterator[Served]:
    """One server for the tests of a module."""
    with served(made.folder) as started:
        yield started


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Fails a test in which a page has logged an error, or asked another host for something."""
    seen = Watch()
    yield seen
    seen.check()


@pytest.fixture
def page(browser: Browser, server: Served, watch: Watch) -> Iterator[Page]:
    """The page in a window of its own."""
    with opened(browser, server.address, watch) as shown:
        yield shown


@pytest.fixture(scope="session")
def vendored() -> Path:
    """The folder of the libraries of the page."""
    return Path(__file__).parents[2] / "src" / "millrace" / "server" / "page" / "vendor"
