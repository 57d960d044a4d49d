"""The example of a shared to-do list: two windows of a browser over one server."""

import json
import runpy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from playwright.sync_api import Browser, Page, expect

from browser import Watch, opened
from millrace import Pipeline
from millrace.eventlog.topics import Log
from millrace.model.arrow import arrow_schema
from millrace.model.connectors import Commit
from millrace.model.refined import query_of
from millrace.running.views import KeptViews
from millrace.spark.answers import schema_of
from millrace.testing import Reference
from millrace.views.store import open_store
from watched import served

FOLDER = Path(__file__).parents[2] / "examples" / "todo"


@dataclass
class Running:
    """The pipeline of the example on the reference engine."""

    folder: Path
    pipeline: Pipeline
    read: int = 0
    batches: int = 0
    engine: Any = field(init=False)
    views: KeptViews = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Reference(query_of(self.pipeline.views["todo_items"]))
        self.views = KeptViews(open_store(self.folder / "views.db"), self.pipeline)

    def step(self) -> None:
        """Wait for the next record, and commit the answers to it."""
        log, deadline = Log(self.folder / "log.db"), time.monotonic() + 10
        while (end := log.ends("todo")[0]) <= self.read:
            assert time.monotonic() < deadline, "nothing was sent"
            time.sleep(0.02)
        records = [json.loads(value) for value in log.read("todo", 0, self.read, end)["value"].to_pylist()]
        rows = [{**record, "at": datetime.fromisoformat(record["at"])} for record in records]
        query = query_of(self.pipeline.views["todo_items"])
        panes = self.engine.micro_batch(rows, now=f"{self.batches + 1}s")
        answers = pa.Table.from_pylist([query.row(pane) for pane in panes], arrow_schema(schema_of(query)))
        self.views.write({"todo_items": answers}, Commit("todo", "one", self.batches), once=True)
        self.read, self.batches = end, self.batches + 1


def test_two_windows_of_the_list_stay_equal(browser: Browser, tmp_path: Path, watch: Watch) -> None:
    Log(tmp_path / "log.db").create("todo")
    running = Running(tmp_path, runpy.run_path(str(FOLDER / "todo.py"))["todo"])

    def both(check: Callable[[Page], None]) -> None:
        running.step()
        for page in (one, other):
            check(page)

    with (
        served(tmp_path, "--site", str(FOLDER)) as server,
        opened(browser, f"{server.address}/site/", watch) as one,
        opened(browser, f"{server.address}/site/", watch) as other,
    ):
        expect(one.get_by_role("status")).to_have_text("There is no list yet: the first item that is added makes it.")
        one.get_by_label("What is to be done").fill("Oil the <b>wheel</b>")
        one.keyboard.press("Enter")
        both(lambda page: expect(page.get_by_role("listitem")).to_have_text(["Oil the <b>wheel</b>Remove"]))
        other.get_by_label("What is to be done").fill("Clear the race")
        other.get_by_role("button", name="Add").click()
        both(lambda page: expect(page.get_by_role("listitem").nth(1)).to_have_text("Clear the raceRemove"))
        one.get_by_label("Clear the race", exact=True).check()
        both(lambda page: expect(page.get_by_label("Clear the race", exact=True)).to_be_checked())
        both_to_do = "1 to do, version 3"
        for page in (one, other):
            expect(page.get_by_role("status")).to_have_text(both_to_do)
        other.get_by_role("button", name="Remove Oil the").click()
        both(lambda page: expect(page.get_by_role("listitem")).to_have_text(["Clear the raceRemove"]))
        assert one.locator("#items").inner_html() == other.locator("#items").inner_html()
