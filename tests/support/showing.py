"""What a test reads off a page."""

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page

from watched import Served


def show(page: Page, server: Served, part: str) -> None:
    """Go to a part of the page."""
    page.goto(f"{server.address}/#/{part}")


def cells(table: Locator) -> list[list[str]]:
    """The texts of a table, without its head."""
    found: list[list[str]] = table.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    return found


def table(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def soon(found: Callable[[], Any], wanted: Any) -> None:
    """Wait until something is as it must be."""
    deadline = time.monotonic() + 10
    while (now := found()) != wanted:
        assert time.monotonic() < deadline, f"{now} is not {wanted}"
        time.sleep(0.05)
