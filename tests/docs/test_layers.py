"""The layers of docs/architecture.md: each imports only those below it, and the pure ones nothing with effects."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import millrace

SOURCE = Path(__file__).parents[2] / "src" / "millrace"
ORDER = [
    "model", "formats", "eventlog", "sources", "panes", "edge", "plan", "letters", "spark", "background",
    "broker", "cluster", "views", "live", "server", "client", "testing", "running", "demo", "cli",
]  # fmt: skip
PUBLIC = ("__init__", "__main__", "agg", "on", "window")
PURE = ("model", "panes", "plan", "live")
SHORTCUTS = {"model/pipeline.py": {"plan"}}
"""Methods that people call on a value of the model, and that import what they need when they are called."""
EFFECTS = {
    "pyspark", "py4j", "duckdb", "sqlite3", "psycopg", "socket", "http", "urllib", "subprocess", "threading", "time",
    "asyncio", "os", "shutil", "tempfile", "random", "secrets", "uuid", "fastapi", "uvicorn", "typer", "rich",
}  # fmt: skip
REACHES_UP = {
    "model/pipeline.py": {"millrace.running", "pyspark.sql"},
    "model/expression.py": {"millrace.spark.columns", "pyspark.sql"},
}
"""Imports that happen when a function is called: `Pipeline.run` needs the layer that runs the pipeline, and a user who
passes a `Column` has imported Spark."""
MODULES = sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    allowed = REACHES_UP.get(str(path.relative_to(SOURCE)), set())
    return {name for name in found if not any(name.startswith(f"{each}.") for each in allowed)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_the_layers(path: Path) -> None:
    layer = layer_of(path)
    if layer in PUBLIC:
        return
    below = [*ORDER[: ORDER.index(layer) + 1], *SHORTCUTS.get(path.relative_to(SOURCE).as_posix(), ())]
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("millrace.")}
    assert ours - set(below) - {"__version__"} == set()


@pytest.mark.parametrize("path", [path for path in MODULES if layer_of(path) in PURE], ids=lambda path: path.stem)
def test_pure_layers_import_nothing_with_effects(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} & EFFECTS == set()


def test_building_a_pipeline_imports_no_layer_that_runs_it() -> None:
    program = "import sys, millrace.model.pipeline; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "millrace.model.pipeline" in loaded
    assert not {name for name in loaded if name.startswith(("pyspark", "millrace.running.start"))}


def test_every_layer_is_known() -> None:
    assert {layer_of(path) for path in MODULES} - set(PUBLIC) <= set(ORDER)


@pytest.mark.parametrize("module", ["millrace", "millrace.spark.datasource"])
def test_what_every_process_imports_imports_little(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "duckdb", "sqlglot", "millrace.model.stream"} & set(loaded)


def test_every_public_name_is_imported_when_it_is_used() -> None:
    for name in millrace.__all__:
        assert getattr(millrace, name) is not None
    homes = {name for home, names in millrace._HOMES.items() for name in names or [home]}
    assert homes == set(millrace.__all__) == set(dir(millrace))
    with pytest.raises(AttributeError, match="module 'millrace' has no attribute 'nope'"):
        millrace.nope  # noqa: B018
