"""Executors that differ from the driver are named, and the user's modules are found for them."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from millrace.model.errors import ConflictError
from millrace.spark.executors import Machine, _check, _versions, probed
from millrace.spark.shipping import modules_beside

FINE = Machine("node7", _versions(), ())


def test_an_executor_with_another_version_is_named() -> None:
    _check(FINE, _versions(), ["/shared"], [True])
    (python, _), (name, ours), *others = _versions()
    assert (python, name) == ("Python", "millrace")
    other = replace(FINE, versions=(_versions()[0], (name, "0.0.9"), *others))
    with pytest.raises(ConflictError, match=rf"an executor on node7 has millrace 0.0.9, and this process {ours}"):
        _check(other, _versions(), [], [])


@pytest.mark.parametrize(("missing", "arrived"), [(("/shared",), False), ((), False)], ids=["not there", "another one"])
def test_a_folder_that_is_not_the_same_is_named(missing: tuple[str, ...], arrived: bool) -> None:
    """A folder may be on both machines and still not be the same: what the task wrote must arrive."""
    with pytest.raises(ConflictError, match="on node7 does not share the folder /shared with this machine"):
        _check(replace(FINE, missing=missing), _versions(), ["/shared"], [arrived])


def test_a_task_writes_to_folders_but_makes_none(tmp_path: Path) -> None:
    (found,) = probed(3, "mark", [str(tmp_path), str(tmp_path / "none")])
    assert found.missing == (str(tmp_path / "none"),)
    assert [path.name for path in tmp_path.iterdir()] == [".mark-3"]


def test_modules_beside_a_pipeline_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    for name in ("charts.py", "helper.py", "unused.py", "parts/__init__.py", "parts/one.py", "parts/deep/two.py"):
        (tmp_path / name).touch()
    for name, file in (("helper", "helper.py"), ("parts", "parts/__init__.py"), ("parts.one", "parts/one.py")):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
    found = modules_beside([str(tmp_path / "charts.py")])
    assert sorted(found) == ["helper.py", "parts/__init__.py", "parts/deep/two.py", "parts/one.py"]
    assert modules_beside([str(tmp_path / "parts" / "one.py")]) == {}
