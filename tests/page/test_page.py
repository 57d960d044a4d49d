"""What the page shows in a real browser, over a project that seems to run."""
# ruff: noqa: RUF001 - the page writes a true minus, and a dash for what is not known

import json
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from browser import Watch, opened
from millrace.eventlog.topics import Log
from millrace.server.tokens import FILE, create
from millrace.spark.recent import recent
from millrace.views.rights import Rights, Scope
from millrace.views.store import open_store
from watched import BAD, HINT, LONG, REASON, Project, Served, hourly, served, visit

PARTS = ("pipelines", "views/hourly_plays", "console", "topics", "dead")


FLASHES = """() => {
  const names = [...document.querySelectorAll("table.live th button")].map((button) => button.dataset.column);
  window.flashed = new Set();
  const seen = (changes) => changes.map(({ target }) => target).filter((cell) => cell.classList.contains("flash"))
    .forEach((cell) => window.flashed.add(`${names[cell.cellIndex]} ${cell.innerText}`));
  new MutationObserver(seen).observe(document.querySelector("table.live tbody"), { attributes: true, subtree: true });
}"""
"""Records the cells that flash, however shortly."""


@pytest.fixture(name="made", scope="module")
def _made(watched_project: Project) -> Project:
    return watched_project


@pytest.fixture(name="server", scope="module")
def _server(watched_server: Served) -> Served:
    return watched_server


@pytest.fixture(name="page")
def _page(window: Page) -> Page:
    return window


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


def test_a_sentence_says_how_the_pipeline_is(page: Page, made: Project) -> None:
    sentence = page.locator(".health")
    made.batch(100)
    expect(sentence).to_have_text("charts: up to date, 0.8 s behind; 2 dead letters; 3 records too late")
    expect(sentence).to_have_class("health good")
    try:
        made.log.report("charts", "plays", [0, 0])
        made.batch(2)
        expect(sentence).to_contain_text("charts: catching up, 61 records to read, 0.8 s behind")
        expect(page.locator(".box.source .verb").first).to_have_text("source: 61 wait")
    finally:
        made.log.report("charts", "plays", made.log.ends("plays"))
    made.wait("the disk is full", "make room")
    expect(sentence).to_have_text("charts: waiting, the disk is full; make room")
    expect(sentence).to_have_class("health bad")
    made.batch(100)
    with made.stopped():
        expect(sentence).to_contain_text(re.compile(r"charts: stopped [\d.]+ s ago; start it with millrace run"))
    expect(sentence).to_contain_text("up to date")


def test_the_flow_has_all_steps_and_the_rates_of_the_last_seconds(page: Page, made: Project) -> None:
    made.batch(120)
    now = time.time()
    page.clock.set_fixed_time(now)
    flow = table(page, "Flow")
    expect(flow.locator(".box.source .detail")).to_have_text("log plays")
    expect(flow.locator(".box.output .detail")).to_have_text(["hourly_plays", "total", "visits"])
    for text in ("event time", "fixed(1h), lateness 1d", "session(gap=30m)", "retracting", "ms = sum(ms)"):
        expect(flow.get_by_text(text, exact=True).first).to_be_visible()
    last = [each for each in recent(made.checkpoint) if each["at"] > now - 15]
    records, answers = sum(each["sources"]["plays"] for each in last) / 15, 21 * len(last) / 15
    expect(flow.locator(".rate")).to_have_text([f"{brief(records)} records/s", *[f"{brief(answers)} answers/s"] * 3])


def brief(value: float) -> str:
    """A figure as the page writes it."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def test_each_plot_has_a_table_with_its_figures(page: Page, made: Project) -> None:
    made.batch(123)
    newest = {
        "Records a second": ["246"],
        "Time of a micro-batch by phase": ["0.5 s", "50 ms", "0.2 s", "0.1 s"],
        "From a record to its view": ["0.8 s", "1.6 s"],
        "Watermark behind the clock": ["10 s"],
    }
    expect(page.locator("figure canvas")).to_have_count(len(newest))
    for title, figures in newest.items():
        page.get_by_text(f"{title} as a table").click()
        shown = table(page, f"{title}, newest first")
        soon(lambda shown=shown: [row[1:] for row in cells(shown)[:1]], [figures])  # type: ignore[misc]
        assert len(cells(shown)) == 20
    page.locator("figure .u-over").first.hover()
    for legend in page.locator("figure .u-legend").all():  # the cursor is shared
        expect(legend).to_contain_text(re.compile(r"time\s*\d\d:\d\d:\d\d"))


def test_event_time_and_state_are_those_of_the_last_micro_batch(page: Page, made: Project) -> None:
    mark = time.strftime("%H:%M:%S", time.gmtime((made.batch(100).parts["view total"].watermark or 0) / 1e6))
    sources = table(page, "Sources")
    soon(lambda: [[row[0], row[1], *row[3:]] for row in cells(sources)],
         [["plays", "● active", mark, "10 s"], ["ticks", "○ idle", "–", "–"]])  # fmt: skip
    shown = cells(table(page, "Outputs"))
    assert shown[0] == ["view hourly_plays", "16", "46.0kB", "3", "0"]
    wanted = {
        "checkpoint": "charts",
        "records since the start": f"{made.rows:,}",
        "answers since the start": "99",
        "dead letters": "2",
        "started": "2 h ago",
    }
    about = table(page, "Checkpoint")
    soon(lambda: {name: value for name, value in cells(about) if name in wanted}, wanted)


def test_a_view_is_sorted_searched_and_changes_by_itself(page: Page, server: Served, made: Project) -> None:
    show(page, server, "views/hourly_plays")
    rows = page.locator("table.live tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.first.locator("td")).to_have_text(
        ["Weir", "2026-01-01 13:00", "2026-01-01 14:00", "1", "0", "◔ early", "0", "false"]
    )
    expect(rows.filter(has_text="NULL").locator("td").first).to_have_class("null")
    expect(rows.filter(has_text="The Long Way").locator("td").first).to_have_attribute("title", LONG)
    page.get_by_role("button", name="plays").click()
    page.get_by_role("button", name="plays ↑").click()
    expect(page.get_by_role("button", name="plays ↓")).to_be_focused()
    expect(rows.first).to_contain_text("Delta")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("plays ↓")
    page.evaluate(FLASHES)
    made.commit(hourly_plays=[hourly("Delta", 12, -1), hourly("Delta", 13, index=1)])
    changed = rows.first.locator("td").nth(3)
    expect(changed).to_have_text("13")
    soon(lambda: page.evaluate("[...window.flashed]"), ["plays 13", "index 1"])  # the track did not change
    expect(changed).to_have_class("number")
    made.commit(hourly_plays=[hourly("Delta", 13, -1), hourly("Delta", 12, index=2)])
    expect(changed).to_have_text("12")
    assert len(page.evaluate("[...window.flashed]")) == 4  # the page was not loaded again
    page.get_by_role("searchbox", name="Search").fill("eir")
    expect(rows).to_have_count(3)
    expect(page.get_by_role("status")).to_contain_text("3 rows, version")
    page.get_by_role("searchbox", name="Search").fill("no such track")
    expect(page.get_by_role("status")).to_contain_text("0 rows, version")


def test_views_without_key_or_window_and_large_numbers(page: Page, server: Served, made: Project) -> None:
    show(page, server, "views/total")
    row = page.locator("table.live tbody tr")
    expect(row.locator("td.number").first).to_have_text("1,152,921,504,606,846,977")
    row.click()
    expect(page.get_by_role("heading", name="How total came about")).to_be_visible()
    changes = table(page, "Changes, newest first")
    expect(changes.locator("td").last).to_have_text("1,152,921,504,606,846,977")


def test_sessions_that_merge_are_in_the_history_of_their_key(page: Page, server: Served, made: Project) -> None:
    show(page, server, "views/visits")
    rows = page.locator("table.live tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.locator("td").nth(2)).to_have_text("2026-01-01 13:30")
    rows.click()
    changes = table(page, "Changes, newest first")
    soon(lambda: [row[2:3] + row[4:] for row in cells(changes)], [["+1 answer", "6"]])
    page.get_by_label("all windows of this key").check()
    soon(
        lambda: sorted((row[1], row[2][0], row[-1]) for row in cells(changes)),
        [("1", "+", "2"), ("1", "+", "3"), ("3", "+", "6"), ("3", "−", "2"), ("3", "−", "3")],
    )
    made.commit(visits=[visit("bob", 0, 30, 1)])
    expect(rows).to_have_count(2)


def test_a_row_shows_every_answer_and_what_was_taken_back(page: Page, server: Served, made: Project) -> None:
    show(page, server, "views/hourly_plays")
    row = page.locator("table.live tbody tr").filter(has_text="Weir").last
    row.focus()
    page.keyboard.press("Enter")
    expect(
        page.get_by_role("heading", name="How Weir, 2026-01-01 12:00 to 2026-01-01 13:00 came about")
    ).to_be_visible()
    changes = table(page, "Changes, newest first")
    wanted = [
        ["3", "+1 answer", "◆ late", "6", "3"],
        ["3", "−1 taken back", "● on-time", "5", "2"],
        ["2", "+1 answer", "● on-time", "5", "2"],
        ["2", "−1 taken back", "◔ early", "3", "1"],
        ["1", "+1 answer", "◔ early", "3", "1"],
    ]
    soon(lambda: [each[1:] for each in cells(changes)], wanted)
    drawn = page.locator(".timeline")
    assert drawn.locator(".pane text").all_text_contents() == ["+3", "+5", "−3", "+6", "−5"]
    assert drawn.locator(".pane.back text").all_text_contents() == ["−3", "−5"]
    assert drawn.locator(".commit").count() == 3
    made.commit(hourly_plays=[hourly("Weir", 6, -1, "late", 3), hourly("Weir", 8, 1, "late", 3)])
    expect(drawn.locator(".commit")).to_have_count(4)  # it follows the view
    expect(changes.locator("tbody tr").first).to_contain_text("8")


def test_the_history_of_a_null_key_is_its_own(page: Page, server: Served) -> None:
    show(page, server, "views/hourly_plays")
    page.locator("table.live tbody tr").filter(has_text="NULL").click()
    expect(page.get_by_role("heading", name="How NULL, 2026-01-01 12:00")).to_be_visible()
    soon(lambda: [row[2:] for row in cells(table(page, "Changes, newest first"))], [["+1 answer", "◔ early", "1", "0"]])


def test_the_console_shows_the_snapshot_and_each_change(page: Page, server: Served, made: Project) -> None:
    show(page, server, "console")
    box = page.get_by_role("textbox", name="Live query")
    expect(box).to_have_value('SELECT * FROM "hourly_plays" LIMIT 20')
    box.fill("SELECT track, plays FROM hourly_plays WHERE plays > 100 ORDER BY plays DESC LIMIT 2")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text(re.compile(r"No rows at version \d+"))).to_be_visible()
    made.commit(hourly_plays=[hourly("Sluice", 200), hourly("Race", 150)])
    made.commit(hourly_plays=[hourly("Sluice", 200, -1), hourly("Sluice", 201, index=1)])
    made.commit(hourly_plays=[hourly("Race", 150, -1)])
    log = table(page, "Newest first")
    wanted = [
        ["remove", "Race, 150"],
        ["change", "Sluice, 201"],
        ["add", "Race, 150"],
        ["add", "Sluice, 200"],
        ["snapshot", "0 rows"],
    ]
    soon(lambda: [row[2:] for row in cells(log)], wanted)
    now = open_store(made.folder / "views.db").version()
    assert cells(log)[0][1] == str(now)
    assert cells(table(page, f"1 row at version {now}")) == [["Sluice", "201"]]
    box.fill("SELECT count(*) FROM hourly_plays")
    page.get_by_role("button", name="Watch").click()
    expect(page.locator(".wrong")).to_contain_text("COUNT(*) is not supported")
    made.commit(hourly_plays=[hourly("Sluice", 201, -1)])


def test_topics_have_a_tail_with_a_filter(page: Page, server: Served, made: Project) -> None:
    show(page, server, "topics")
    topics = table(page, "Offsets are first to next, by partition")
    soon(lambda: [row[0] for row in cells(topics)], ["plays", "ticks"])
    assert cells(topics)[0][1:3] == [str(sum(made.log.ends("plays"))), "2"]
    assert cells(topics)[0][4] == "charts 0"
    records = table(page, "Newest first")
    expect(records.locator("tbody tr")).to_have_count(50)
    page.get_by_role("searchbox", name="Filter").fill('"u47"')
    soon(lambda: [row[3] for row in cells(records)], ["u47"])
    made.log.append("ticks", ['{"n": 1}'])
    page.get_by_role("link", name="ticks").click()
    expect(page.get_by_role("heading", name="Newest records of ticks")).to_be_visible()
    expect(records.locator("code")).to_have_text('{"n": 1}')


def test_dead_letters_are_fixed_and_sent_again(page: Page, server: Served, made: Project, watch: Watch) -> None:
    watch.expected = ("status of 400",)
    show(page, server, "dead")
    card = page.locator("article")
    expect(card.get_by_role("heading")).to_have_text(REASON)
    expect(card).to_contain_text("charts: 2 letters, 0 fixed, 0 sent again")
    expect(card).to_contain_text(f"Hint: {HINT}")
    card.get_by_text("Sample").click()
    sample = table(page, "The first 5 at most")
    soon(lambda: [[row[1], row[-1]] for row in cells(sample)], [["dead", BAD]] * 2)
    before = sum(made.log.ends("plays"))
    card.get_by_role("button", name="Send again").click()
    expect(card.locator(".wrong")).to_contain_text("dead letter 1 does not fit")
    card.get_by_label("Field").fill("at")
    card.get_by_label("Its value in SQL").fill("TIMESTAMP '2026-01-01 12:00:00'")
    page.keyboard.press("Enter")
    expect(card).to_contain_text("Fixed 2 letters.")
    card.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("Sent 2 records again.")).to_be_visible()
    assert sum(made.log.ends("plays")) == before + 2
    expect(card).to_contain_text("2 sent again")
    soon(lambda: [row[1] for row in cells(sample)], ["resent", "resent"])


def test_what_to_use_elsewhere_works(page: Page, server: Served, made: Project) -> None:
    def way(name: str) -> str:
        page.get_by_role("button", name=name, exact=True).click()
        return page.get_by_role("region", name="Code").inner_text()

    def ran(command: str) -> Any:
        return json.loads(subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=30).stdout)

    show(page, server, "views/hourly_plays")
    assert len(ran(way("curl"))["rows"]) == 6
    assert len(open_store(made.folder / "views.db").query(way("SQL")).rows) == 6
    *first, last = way("Python").splitlines()
    names: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as thread:  # the event loop of this one is the browser's
        thread.submit(exec, "\n".join([*first, f"found = {last}"]), names).result(30)
    assert len(names["found"]) == 6
    assert f'from "{server.address}/millrace.js"' in way("JavaScript")
    show(page, server, "topics")
    expect(page.get_by_role("link", name="ticks")).to_be_visible()
    assert ran(way("curl"))["received"] == 1
    show(page, server, "dead")
    expect(page.locator("article")).to_be_visible()
    assert ran(way("curl"))["pipeline"] == "charts"
    show(page, server, "pipelines")
    assert ran(way("curl"))[0]["pipeline"] == "charts"
    show(page, server, "console")
    command = shlex.split(way("curl"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as events:
        assert events.stdout is not None
        assert events.stdout.readline() == "event: snapshot\n"
        events.kill()
    page.get_by_role("textbox", name="Live query").fill("SELECT track FROM hourly_plays WHERE track = 'Sluice'")
    program = [sys.executable, "-u", "-c", f"print('begun')\n{way('Python')}"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            assert following.stdout.readline() == "begun\n"
            for diff in (1, -1) * 20:  # it may not have begun to follow before the first of them
                made.commit(hourly_plays=[hourly("Sluice", 1, diff)])
                if select.select([following.stdout], [], [], 0.5)[0]:
                    break
            assert re.fullmatch(r"\d+ \[.*\]\n", following.stdout.readline())
        finally:
            following.kill()
            made.commit(hourly_plays=[hourly("Sluice", 1, -1)])


def test_the_page_goes_on_after_the_server_was_killed(page: Page, server: Served, made: Project, watch: Watch) -> None:
    watch.expected = ("net::ERR_", "WebSocket connection")
    show(page, server, "views/hourly_plays")
    eddy = page.locator("table.live tbody tr").filter(has_text="Eddy").locator("td").nth(3)
    expect(eddy).to_have_text("7")
    page.evaluate("window.same = true")
    server.kill()
    expect(page.get_by_role("alert")).to_have_text("The server cannot be reached; trying again.")
    made.commit(hourly_plays=[hourly("Eddy", 7, -1), hourly("Eddy", 9, index=1)])
    server.start()
    expect(eddy).to_have_text("9")
    expect(page.locator(".health")).to_contain_text("charts: up to date")
    made.commit(hourly_plays=[hourly("Eddy", 9, -1), hourly("Eddy", 7, index=2)])
    expect(eddy).to_have_text("7")
    assert page.evaluate("window.same")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_part(
    scheme: str, browser: Browser, server: Served, made: Project, watch: Watch
) -> None:
    axe = Axe()
    made.batch(100)
    with opened(browser, server.address, watch, color_scheme=scheme) as page:
        for part in PARTS:
            show(page, server, part)
            if part.startswith("views"):
                page.locator("table.live tbody tr").first.click()
                expect(page.locator(".timeline")).to_be_visible()
            elif part == "console":
                page.get_by_role("button", name="Watch").click()
                expect(page.get_by_role("heading", name="Rows now")).to_be_visible()
            elif part == "dead":
                page.get_by_text("Sample").click()
            elif part == "pipelines":
                page.get_by_text("Records a second as a table").click()
            page.get_by_role("button", name="curl").click()
            found = axe.run(page)
            assert found.violations_count == 0, f"{part}: {found.generate_report()}"


def test_no_part_is_wider_than_a_phone(browser: Browser, server: Served, made: Project, watch: Watch) -> None:
    made.batch(100)
    with opened(browser, server.address, watch) as page:
        page.set_viewport_size({"width": 390, "height": 800})
        for part in PARTS:
            show(page, server, part)
            expect(page.locator("main table, main article, main form").first).to_be_visible()
            page.get_by_role("button", name="curl").click()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, part


def test_the_tab_key_reaches_everything(page: Page, server: Served) -> None:
    show(page, server, "views/hourly_plays")
    expect(page.locator("table.live tbody tr")).to_have_count(6)
    wanted = page.evaluate(
        "() => [...document.querySelectorAll('a[href], button, input, textarea, [tabindex=\"0\"]')]"
        ".filter((each) => each.checkVisibility() && !each.closest('[hidden]')).length"
    )
    page.evaluate("document.body.focus()")
    seen = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate(
                "() => { const at = document.activeElement; return at === document.body ? '' : at.outerHTML; }"
            )
        )
    assert len(seen - {""}) == wanted
    page.get_by_role("link", name="Dead letters").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Dead letters", level=2)).to_be_visible()


def test_the_policy_is_sent_and_holds(page: Page, server: Served, watch: Watch) -> None:
    answer = page.request.get(server.address)
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert page.request.get(f"{server.address}/page/../static.py").status == 404
    assert page.request.get(f"{server.address}/page/vendor/vendor.json").status == 404
    watch.expected = ("Content Security Policy",)
    page.evaluate(
        "() => document.head.append(Object.assign(document.createElement('script'), { textContent: 'window.bad = 1' }))"
    )
    assert page.evaluate("window.bad") is None
    assert watch.wrong


def test_a_server_with_tokens_asks_for_one(browser: Browser, server: Served, made: Project, watch: Watch) -> None:
    watch.expected = ("status of 401", "WebSocket")
    _, secret = create(made.folder / FILE, Rights(Scope.READ), 1_000, 1 << 20, datetime.now(UTC))
    try:
        with opened(browser, f"{server.address}/#/views/hourly_plays", watch) as page:
            box = page.get_by_label("Token of scope read or admin")
            box.fill("nothing")
            page.keyboard.press("Enter")
            expect(page.get_by_text("The token is not valid")).to_be_visible()
            box.fill(secret)
            page.get_by_role("button", name="Use it").click()
            expect(page.locator("table.live tbody tr")).to_have_count(6)
            expect(page.locator(".health")).to_contain_text("charts")
            page.get_by_role("button", name="curl").click()
            expect(page.get_by_role("region", name="Code")).to_contain_text("Authorization: Bearer $TOKEN")
        some = Rights(Scope.READ, frozenset({"total"}))
        _, secret = create(made.folder / FILE, some, 1_000, 1 << 20, datetime.now(UTC))
        watch.expected = (*watch.expected, "status of 403")
        with opened(browser, f"{server.address}/#/views", watch) as page:
            page.get_by_label("Token of scope read or admin").fill(secret)
            page.keyboard.press("Enter")
            expect(page.get_by_role("navigation", name="Views").get_by_role("link")).to_have_text(["total"])
            expect(page.locator("table.live tbody tr")).to_have_count(1)
            page.get_by_role("link", name="Pipelines").click()
            expect(page.get_by_role("alert")).to_contain_text("the token does not allow this")
            page.get_by_role("link", name="Views").click()
            expect(page.get_by_role("alert")).to_have_count(0)
    finally:
        (made.folder / FILE).unlink()


def test_an_empty_project_says_what_to_do(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, watch: Watch
) -> None:
    folder = tmp_path_factory.mktemp("empty")
    Log(folder / "log.db").close()
    with served(folder) as empty, opened(browser, empty.address, watch) as page:
        expect(page.locator(".health")).to_have_text("No pipeline has run yet. Start one: millrace run charts.py")
        expect(page.get_by_role("heading", name="Nothing runs yet")).to_be_visible()
        for part, text in (
            ("views", "There are no views yet."),
            ("topics", "There are no topics yet."),
            ("dead", "There are none."),
        ):
            show(page, empty, part)
            expect(page.get_by_text(text)).to_be_visible()
        show(page, empty, "console")
        expect(page.get_by_role("textbox", name="Live query")).to_be_visible()
