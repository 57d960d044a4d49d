"""What each part of the page shows in a real browser, over a project that seems to run."""
# ruff: noqa: RUF001 - the page writes a true minus, and a dash for what is not known

import re
import time

from playwright.sync_api import Page, expect

from browser import Watch
from millrace.spark.recent import recent
from millrace.views.store import open_store
from showing import cells, show, soon, table
from watched import BAD, HINT, LONG, REASON, Project, Served, hourly, visit

FLASHES = """() => {
  const names = [...document.querySelectorAll("table.live th button")].map((button) => button.dataset.column);
  window.flashed = new Set();
  const seen = (changes) => changes.map(({ target }) => target).filter((cell) => cell.classList.contains("flash"))
    .forEach((cell) => window.flashed.add(`${names[cell.cellIndex]} ${cell.innerText}`));
  new MutationObserver(seen).observe(document.querySelector("table.live tbody"), { attributes: true, subtree: true });
}"""
"""Records the cells that flash, however shortly."""


def test_a_sentence_says_how_the_pipeline_is(page: Page, made: Project) -> None:
    sentence = page.locator(".health")
    made.batch(100)
    expect(sentence).to_have_text("charts: up to date, 0.8 s behind; 2 dead letters; 3 records too late")
    expect(sentence).to_have_class("health good")
    try:
        made.log.report("charts", "plays", [0, 0])
        made.batch(2)
        waiting = sum(made.log.ends("plays"))
        expect(sentence).to_contain_text(f"charts: catching up, {waiting} records to read, 0.8 s behind")
        expect(page.locator(".box.source .verb").first).to_have_text(f"source: {waiting} wait")
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
