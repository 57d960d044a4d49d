"""The page as a whole: snippets, reconnecting, accessibility, its policy, tokens."""

import json
import re
import select
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from browser import Watch, opened
from millrace.eventlog.topics import Log
from millrace.server.tokens import FILE, create
from millrace.views.rights import Rights, Scope
from millrace.views.store import open_store
from showing import show
from watched import Project, Served, hourly, served

PARTS = ("pipelines", "views/hourly_plays", "console", "topics", "dead")


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
    made.log.report("charts", "plays", made.log.ends("plays"))
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
