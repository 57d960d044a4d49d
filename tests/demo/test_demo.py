import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import expect
from rich.console import Console
from typer.testing import CliRunner

from browser import Watch, chromium, opened
from millrace.cli import app
from millrace.demo import paper
from millrace.demo.charts import VIEW
from millrace.demo.listeners import START, instant, plays
from millrace.demo.live import seconds_of
from millrace.demo.picture import Screen, line, table
from millrace.demo.shown import BETWEEN_LINES, Schedule
from millrace.demo.summary import Comparison, summary
from millrace.demo.tally import Cell, Chart, Correction, Tally, chart_of, late_correction
from millrace.model.pane import Timing

DEMO = [sys.executable, "-m", "millrace", "demo"]


def test_the_demo_shows_the_figures_of_the_paper() -> None:
    console = Console(width=100, record=True, force_terminal=False)
    paper.show(console)
    text = console.export_text()
    for sums in (
        "51",
        "12 | 22 | 33 | 51",
        "12 | 10 | 11 | 18",
        "12 | 7 | 11 | 12 | 9",
        "14 22 3 12",
        "5 | 22 3 | 14 (late) 12",
        "+5 +7 | +10 | -7 -10 +25 +3 | -5 -25 +39 -3 +12",
    ):
        assert re.search(rf"│ {re.escape(sums)} +│", text), sums


def test_the_command_runs_in_a_narrow_terminal() -> None:
    result = CliRunner().invoke(app, ["demo", "--paper"], env={"COLUMNS": "60"})
    assert result.exit_code == 0
    assert "-5 -25 +39" in result.output


def said(*rows: tuple[str, int, int, int, str]) -> pa.Table:
    """Answers of a micro-batch: track, hour, plays, diff, timing."""
    return pa.Table.from_pylist(
        [
            {"track": track, "window_start": datetime(2026, 1, 1, hour, tzinfo=UTC), "plays": plays, "diff": diff,
             "timing": timing}
            for track, hour, plays, diff, timing in rows
        ],
        schema=SAID,
    )  # fmt: skip


SAID = pa.schema(
    {"track": pa.string(), "window_start": pa.timestamp("us", "UTC"), "plays": pa.int64(), "diff": pa.int8(),
     "timing": pa.string()}
)  # fmt: skip
TITLES = ("Millstream", "Watershed", "Undertow", "Braided River", "Fish Ladder", "Weir", "Levee", "Eddy", "Oxbow",
          "Delta", "Riffle", "Rapids")  # fmt: skip
HOUR = 3_600_000_000
NINE = START + 9 * HOUR


def busy() -> Tally:
    """Figures as they are after a while, with the widest values that occur."""
    rows = [
        (f"{hour:02}:00", title, 1700 - 100 * number - hour, mark, pane)
        for hour, mark, pane in ((7, "late", 120), (8, "on-time", 3), (9, "early", 2))
        for number, title in enumerate(TITLES)
    ]
    late = said(("Braided River", 7, 1404, -1, "late"), ("Braided River", 7, 1406, 1, "late"))
    tally = Tally().after(50_000, NINE, late, chart_of(rows), 20.0)
    return tally.after(2_000, NINE, said(), tally.chart, 21.0)


def drawn(tally: Tally, width: int, height: int = 30, *, blocks: bool = True) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(table(tally, NINE + HOUR // 4, "live, 30 of 45 s", Screen(width, height, blocks)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_tally_counts_answers_by_mark_and_corrections() -> None:
    tally = Tally().after(100, None, said(), Chart(), 4.0)
    assert (tally.first, tally.watermark) == (None, None)
    tally = tally.after(100, NINE, said(("Weir", 8, 5, 1, "early"), ("Weir", 7, 9, 1, "on-time")), Chart(), 5.0)
    late = said(("Weir", 7, 9, -1, "late"), ("Weir", 7, 10, 1, "late"), ("Eddy", 7, 1, 1, "late"))
    tally = tally.after(300, NINE, late, Chart(), 7.0)
    assert tally.answers == {Timing.EARLY: 1, Timing.ON_TIME: 1, Timing.LATE: 2}
    assert (tally.corrections, tally.batches, tally.rows, tally.first) == (1, 3, 500, 5.0)
    assert tally.latest == Correction("Weir", "07:00", 9, 10, 7.0)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    tally = Tally().after(90_000, NINE, said(), Chart(), 10.0)
    assert tally.rate == 0
    for second in range(11, 31):
        tally = tally.after(2_000, NINE, said(), Chart(), float(second))
    assert tally.rate == 2_000
    assert tally.after(1_000, NINE, said(), Chart(), 50.0).rate == 1_000 / 20


def test_a_correction_is_shown_long_enough_to_be_read() -> None:
    first = said(("Weir", 7, 9, -1, "late"), ("Weir", 7, 10, 1, "late"))
    second = said(("Eddy", 7, 3, -1, "late"), ("Eddy", 7, 4, 1, "late"))
    tally = Tally().after(1, NINE, first, Chart(), 10.0).after(1, NINE, second, Chart(), 11.0)
    assert tally.latest is not None
    assert tally.latest.track == "Weir"
    tally = tally.after(1, NINE, second, Chart(), 14.0).after(1, NINE, said(), Chart(), 20.0)
    assert tally.latest is not None
    assert tally.latest.track == "Eddy"


def test_an_answer_that_replaces_an_early_one_is_no_late_correction() -> None:
    assert late_correction(said(("Weir", 7, 9, -1, "on-time"), ("Weir", 7, 10, 1, "on-time")), 1.0) is None


def test_the_chart_has_the_ten_tracks_with_the_most_plays() -> None:
    rows = [("08:00", title, 100 + number, "on-time", 1) for number, title in enumerate(TITLES)]
    chart = chart_of([*rows, ("09:00", "Millstream", 50, "early", 2)])
    assert chart.hours == ("08:00", "09:00")
    assert [track.name for track in chart.tracks[:2]] == ["Millstream", "Rapids"]
    assert chart.tracks[0].cells == (Cell(100, Timing.ON_TIME, 1), Cell(50, Timing.EARLY, 2))
    assert chart.tracks[1].cells == (Cell(111, Timing.ON_TIME, 1), None)
    assert (len(chart.tracks), chart.tracks[0].plays, chart.tracks[0].corrected) == (10, 150, 3)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 30)])
def test_the_table_shows_marks_watermark_rate_and_corrections(width: int, height: int) -> None:
    lines = drawn(busy(), width, height)
    text = "\n".join(lines)
    assert lines[0].endswith("live, 30 of 45 s")
    assert "clock 09:15   watermark 09:00 (15 min behind)   2,000 plays/s" in text
    assert "plays 52,000   answers 1   corrections 1 (1 late)" in text
    assert re.search(r"track +07:00 +08:00 +09:00 +corrected +plays", text)
    assert re.search(r" 4  Braided River  1393 late +1392 on-time +1391 early +125 x  █+", text)
    assert re.search(r"early: .* on-time: .* late: corrected since\n", text)
    assert lines[-1] == "Braided River at 07:00 was 1,404, is 1,406: 2 plays arrived late."
    assert "…" not in text + "".join(drawn(Tally(), width, height))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("height", [14, 24, 50])
def test_the_table_keeps_its_height_and_fits_the_screen(width: int, height: int) -> None:
    empty, full = drawn(Tally(), width, height), drawn(busy(), width, height)
    # A line that is too wide would be wrapped, and be two.
    assert len(empty) == len(full) == Screen(width, height).tracks + 8 < height
    assert max(map(len, empty + full)) <= width
    assert "1  Millstream" in full[5]


def test_a_terminal_without_unicode_gets_plain_bars() -> None:
    text = "\n".join(drawn(busy(), 80, blocks=False))
    assert text.isascii()
    assert " ########" in text


def test_the_most_plays_fill_the_bar() -> None:
    lines = drawn(busy(), 120)
    assert lines[5].count("█") == Screen(120, 30).bar
    assert lines[5].count("█") > lines[14].count("█") > 0


def test_a_line_holds_the_figures() -> None:
    assert line(busy(), NINE + HOUR // 4, 30.04) == (
        " 30.0 s  clock 09:15; watermark 09:00 (15 min behind); 2,000 plays/s; plays 52,000; answers 1; "
        "corrections 1 (1 late); 09:00 Millstream 1691 early"
    )


@pytest.mark.parametrize(
    ("seconds", "elapsed", "first", "over"),
    [
        (45, 59, 15, False),
        (45, 60, 15, True),
        (45, 144, 100, False),  # Spark was slow to start
        (5, 179, None, False),
        (200, 180, None, True),
        (math.inf, 1e9, 15, False),
    ],
)
def test_the_time_of_the_demo_counts_from_the_first_answers(
    seconds: float, elapsed: float, first: float | None, over: bool
) -> None:
    assert Schedule(seconds).is_over(elapsed, first) is over


def test_the_status_shows_the_time_that_answers_were_shown() -> None:
    schedule = Schedule(30)
    assert schedule.status("starting Spark", 4.2, None) == "starting Spark, 4 s"
    assert schedule.status(None, 25, 20) == "live, 5 of 30 s"
    assert Schedule(math.inf).status(None, 25, 20) == "live, 5 s"
    assert schedule.status("last plays", 50, 20) == "last plays, 50 s"


def test_demo_seconds() -> None:
    assert [seconds_of(text) for text in (None, "", "20", "0.5", "inf")] == [30, 30, 20, 0.5, math.inf]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon", "10s"])
def test_a_wrong_time_is_refused(text: str) -> None:
    result = CliRunner().invoke(app, ["demo"], env={"DEMO_SECONDS": text})
    assert (result.exit_code, result.output) == (
        2, f"DEMO_SECONDS must be a number of seconds above 0, or inf, not {text!r}\n"
    )  # fmt: skip


def test_the_summary_says_what_was_found() -> None:
    equal = summary(busy(), Comparison(181, 0, 0), 44.4, "millrace").plain
    assert "Ended after 44 s; the first answers came after 20 s." in equal
    assert "The view equals a batch over the same log: 181 rows" in equal
    assert "millrace demo --paper" in equal
    differs = summary(busy(), Comparison(181, 2, 1), 44.4, "millrace").plain
    assert "The view differs from a batch over the same log: 2 rows missing, 1 too many." in differs
    assert "before the first answers" in summary(Tally(), None, 3, "millrace").plain
    assert max(map(len, (equal + differs).splitlines())) <= 80


def test_some_plays_arrive_after_their_hour() -> None:
    tick = 40
    at = [datetime.fromisoformat(json.loads(text)["at"]) for text in plays(tick)["value"].to_pylist()]
    behind = [(instant(tick) - moment.timestamp() * 1e6) / HOUR for moment in at]
    assert 0 < sum(hours > 0.1 for hours in behind) < len(behind) / 20
    assert max(behind) < 3
    assert plays(tick) == plays(tick)


@pytest.mark.spark
def test_a_piped_demo_prints_a_line_every_few_seconds_and_equals_a_batch(tmp_path: Path) -> None:
    done = subprocess.run(
        DEMO, cwd=tmp_path, env={**os.environ, "DEMO_SECONDS": "20"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stderr, "\x1b" in done.stdout) == ("", False)
    times = [float(found) for found in re.findall(r"^ *([\d.]+) s  clock", done.stdout, re.MULTILINE)]
    assert times
    assert re.match(r"Watch it: http://127\.0\.0\.1:\d+\n", done.stdout)
    assert all(after - before >= BETWEEN_LINES - 0.1 for before, after in pairwise(times))
    assert re.search(r"\nAnswers: [\d,]+ early, [\d,]+ on-time, [\d,]+ late; [\d,]+ were retracted", done.stdout)
    assert "The view equals a batch over the same log: " in done.stdout
    assert "\nTry next:\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def look_at(address: str) -> None:
    """Find the figures of the demo on its page."""
    watch = Watch()
    with chromium() as browser, opened(browser, address, watch) as page:
        expect(page.locator(".health")).to_contain_text("charts: ")
        expect(page.locator(".box .detail").first).to_have_text("log plays")
        expect(page.locator(".rate").first).to_have_text(re.compile(r"[\d.]+k? records/s"))
        page.goto(f"{address}/#/views/{VIEW}")
        row = page.locator("table.live tbody tr").first
        row.click()
        track = row.locator("td").first.inner_text()
        expect(page.get_by_role("heading", name=f"How {track}, 2026-01-01")).to_be_visible()
        expect(page.locator(".timeline .pane").first).to_be_visible()
        first = page.get_by_role("region", name="Changes, newest first").locator("tbody tr").last.locator("td")
        expect(first.nth(2)).to_have_text("+1 answer")
        assert int(first.nth(4).inner_text().replace(",", "")) > 0
    watch.check()


@pytest.mark.spark
@pytest.mark.no_cover
def test_the_page_shows_the_demo_until_ctrl_c_ends_it_with_its_summary(tmp_path: Path) -> None:
    """A terminal sends the signal to all processes that it runs, so also to those that Spark and the page have started.

    Without a browser, only the rest is tested.
    """
    environment = {**os.environ, "DEMO_SECONDS": "inf"}
    (tmp_path / "here").mkdir()
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(
            DEMO, cwd=tmp_path / "here", env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        ) as running,
    ):  # fmt: skip
        assert running.stdout is not None
        try:
            address = running.stdout.readline().split()[-1]
            for text in running.stdout:
                if "; answers " in text:
                    break
            with suppress(pytest.skip.Exception):
                look_at(address)
            os.killpg(running.pid, signal.SIGINT)
            rest = running.stdout.read()
            assert running.wait(timeout=120) == 0
        finally:
            running.kill()
    assert "The view equals a batch over the same log: " in rest
    assert (tmp_path / "errors").read_text() == ""
    assert list((tmp_path / "here").iterdir()) == []


def test_help_and_version() -> None:
    assert "check" in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["--version"]).output.startswith("millrace ")
