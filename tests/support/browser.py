"""A Chromium for tests of web pages, and what goes wrong in one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
_PATIENCE = 10_000
"""How many milliseconds a page may take to become as a test wants it."""
MISSING = "tests of the page need Chromium; on Debian: apt-get install chromium"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. Where there is none, tests are skipped; with CI set, they fail."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        expect.set_options(timeout=_PATIENCE)
        browser = playwright.chromium.launch(executable_path=found, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Watch:
    """What pages must not do: log errors, violate their policy, or ask other hosts for anything."""

    wrong: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of messages that a test expects, such as those about a server that it has stopped."""

    def add(self, page: Page, host: str) -> None:
        """Watch a page of a host."""
        page.on("console", lambda said: self._note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("request", lambda asked: None if _is_of(asked.url, host) else self._note(f"request to {asked.url}"))
        page.on("websocket", lambda opened: None if _is_of(opened.url, host) else self._note(opened.url))

    def _note(self, text: str) -> None:
        self.wrong.append(text)

    def check(self) -> None:
        """Fail if anything was wrong."""
        assert [text for text in self.wrong if not any(part in text for part in self.expected)] == []


def _is_of(url: str, host: str) -> bool:
    return url.startswith(("data:", "blob:")) or urlsplit(url).netloc == host


@contextmanager
def opened(browser: Browser, address: str, watch: Watch, **options: Any) -> Iterator[Page]:
    """A page in a window of its own, which shares nothing with others."""
    context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    try:
        page = context.new_page()
        page.set_default_timeout(_PATIENCE)
        watch.add(page, urlsplit(address).netloc)
        page.goto(address)
        yield page
    finally:
        context.close()
