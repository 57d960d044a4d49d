"""The documentation site: its navigation is complete, its links work, and its pages load nothing from other hosts."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace import __all__ as public
from millrace import agg, on, window

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("site")  # it is built once


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("reference"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    subprocess.run([sys.executable, str(ROOT / "tools" / "reference.py"), "docs/reference"], cwd=folder, check=True)
    done = built(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def in_navigation(entry: Any) -> list[str]:
    match entry:
        case str():
            return [entry]
        case list():
            return [page for each in entry for page in in_navigation(each)]
        case dict():
            return in_navigation(list(entry.values()))
    raise TypeError(entry)


def test_every_page_is_in_the_navigation(site: Path) -> None:
    listed = in_navigation(yaml.safe_load((site / "mkdocs.yml").read_text())["nav"])
    there = [path.relative_to(site / "docs").as_posix() for path in (site / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(there)


def test_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[gone](#no-such-heading)\n")
    configured = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{configured}\nnav:\n  - index.md\n")
    done = built(tmp_path)
    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout + done.stderr


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list((site / "site").rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//[^\s>]*", text)
        loaded += [link for link in re.findall(r"<link[^>]*>", text) if "stylesheet" in link and "//" in link]
        assert loaded == [], page
    for sheet in (site / "site").rglob("*.css"):
        assert re.findall(r"(?:@import\s*|url\()[\"']?(?:https?:)?//", sheet.read_text()) == [], sheet


def test_the_reference_shows_every_public_name(site: Path) -> None:
    rendered = "".join(page.read_text() for page in (site / "site" / "reference").glob("*.html"))
    headings = set(re.findall(r'id="(millrace\.[\w.]+)"', rendered))
    names = {f"millrace.{name}" for name in public if name not in ("agg", "on", "window")}
    names |= {f"{module.__name__}.{name}" for module in (agg, on, window) for name in module.__all__}
    # An object that is imported from elsewhere may be known by the name it has there, too.
    assert names - headings == set()


def test_the_reference_shows_every_command_with_its_options(site: Path) -> None:
    text = (site / "docs" / "reference" / "cli.md").read_text()
    commands = re.findall(r"^## (millrace [a-z ]+)$", text, re.MULTILINE)
    assert {"millrace run", "millrace topics create", "millrace views drop"} <= set(commands)
    assert "| `--store URL` |" in text
    assert "[default: exactly-once]" in text
    assert "[bold]" not in text
