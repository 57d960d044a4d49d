"""The files that the server serves: those of the page, and those of a site of the user."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from browser import chromium
from millrace.eventlog.topics import Log
from millrace.server.app import make_app
from millrace.views.store import open_store

SERVER = Path(__file__).parents[2] / "src" / "millrace" / "server"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A server with a site, beside which lies a secret."""
    site = tmp_path / "site"
    (site / ".git").mkdir(parents=True)
    (site / "inner").mkdir()
    for name in ("index.html", "app.js", "notes.py", ".hidden.js", ".git/config.json", "inner/index.html"):
        (site / name).write_text(f"this is {name}")
    (tmp_path / "secret.json").write_text("secret")
    (site / "link.json").symlink_to(tmp_path / "secret.json")
    (site / "inside.js").symlink_to(site / "app.js")
    with TestClient(
        make_app(Log(tmp_path / "log.db"), open_store(tmp_path / "views.db"), site=site), "http://localhost"
    ) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "text"),
    [("", "index.html"), ("index.html", "index.html"), ("app.js", "app.js"), ("inner/", "inner/index.html"),
     ("inside.js", "app.js"), ("inner/../app.js", "app.js")],
)  # fmt: skip
def test_a_site_is_served_with_the_policy_of_the_page(path: str, text: str, client: TestClient) -> None:
    answer = client.get(f"/site/{path}")
    assert (answer.status_code, answer.text) == (200, f"this is {text}")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'; ")


@pytest.mark.parametrize(
    "path",
    ["nothing.js", "notes.py", ".hidden.js", ".git/config.json", "link.json", "../secret.json", "%2e%2e/secret.json",
     "..%2fsecret.json", "inner/..%2f..%2fsecret.json", "/etc/hosts", "%2fetc%2fhosts", "a%00.js", "inner",
     "x" * 5_000 + ".js", "..%5csecret.json"],
)  # fmt: skip
def test_nothing_outside_the_site_is_served(path: str, client: TestClient) -> None:
    answer = client.get(f"/site/{path}")
    assert (answer.status_code, answer.headers["Content-Type"], answer.text != "secret") == (
        404,
        "application/json",
        True,
    )


def test_a_server_without_a_site_has_none(tmp_path: Path) -> None:
    with TestClient(
        make_app(Log(tmp_path / "log.db"), open_store(tmp_path / "views.db")), "http://localhost"
    ) as client:
        assert client.get("/site/index.html").status_code == 404
        assert client.get("/page/..%2fstatic.py").status_code == 404
        assert client.get("/millrace.js").headers["Content-Type"].startswith("text/javascript")


def test_the_libraries_of_the_page_are_those_that_were_recorded() -> None:
    folder = SERVER / "page" / "vendor"
    recorded = json.loads((folder / "vendor.json").read_text())
    hashes = {name: hash for files in recorded.values() for name, hash in files.items()}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    del there["vendor.json"]
    assert there == hashes
    assert all("@" in package for package in recorded)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_client_is_packed_for_npm() -> None:
    done = subprocess.run(
        ["npm", "pack", "--dry-run", "--json", "--offline"],
        cwd=SERVER / "javascript", capture_output=True, text=True, check=True,
    )  # fmt: skip
    (packed,) = json.loads(done.stdout)
    assert {file["path"] for file in packed["files"]} == {"README.md", "millrace.d.ts", "millrace.js", "package.json"}


def test_without_a_browser_its_tests_are_skipped_and_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"), chromium():
        pass
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"), chromium():
        pass


def test_the_script_that_installs_a_browser_says_what_to_install(tmp_path: Path) -> None:
    for name in ("id", "sh"):  # a machine with nothing else on its path
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    script = SERVER.parents[2] / "tools" / "browser.sh"
    done = subprocess.run([script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stderr.endswith("On Debian: apt-get install chromium\n")
    (tmp_path / "chromium").symlink_to("/bin/true")
    done = subprocess.run([script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
