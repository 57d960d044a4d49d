"""Fixtures for tests of web pages. Playwright is imported only where a test needs it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from browser import Watch
    from watched import Project, Served


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """One browser for the tests of a module. It ends with them: other tests need the event loop of the thread."""
    from browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Project]":
    """One project for all tests of the page; each leaves it as it was."""
    from watched import project

    with project(tmp_path_factory.mktemp("project")) as ready:
        yield ready


@pytest.fixture(scope="session")
def server(made: "Project") -> "Iterator[Served]":
    """One server for all tests of the page."""
    from watched import served

    with served(made.folder) as started:
        yield started


@pytest.fixture
def watch() -> "Iterator[Watch]":
    """Fails a test in which a page has logged an error, or asked another host for something."""
    from browser import Watch

    seen = Watch()
    yield seen
    seen.check()


@pytest.fixture
def page(browser: "Browser", server: "Served", watch: "Watch") -> "Iterator[Page]":
    """The page in a window of its own."""
    from browser import opened

    with opened(browser, server.address, watch) as shown:
        yield shown
