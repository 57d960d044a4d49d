"""The pipelines in Python files."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path

from millrace.model.errors import MillraceError, NotFoundError, PipelineError, not_found
from millrace.model.pipeline import Pipeline


def load(file: Path, name: str | None = None) -> Pipeline:
    """Import a Python file and return its pipeline; if it has several, the one with this name."""
    return _chosen(file, _pipelines(file), name)


def load_all(files: Sequence[Path], names: Sequence[str] = ()) -> list[tuple[Path, Pipeline]]:
    """The pipelines of several files, one of each; or, of one file, all that are named.

    Refuses pipelines that cannot run in one process: two with the same name, and files whose modules have the same name
    but are not the same.
    """
    if names and len(files) > 1:
        raise PipelineError("--pipeline chooses from one file", "name one file, or leave --pipeline out")
    found: list[tuple[Path, Pipeline]] = []
    for file in files:
        held = _pipelines(file)
        found += [(file, _chosen(file, held, name)) for name in names or (None,)]
    for (file, pipeline), (other, same) in combinations(found, 2):
        if pipeline.name == same.name:
            raise PipelineError(f"{file} and {other} both hold a pipeline {same.name!r}", "rename one of them")
    for one, two in permutations({file.resolve().parent: file for file in files}.values(), 2):
        _check_modules(one, two)
    return found


def _check_modules(file: Path, other: Path) -> None:
    """Refuse modules with one name in two folders: Python, here and in Spark's workers, would import only one."""
    folder, beside = file.resolve().parent, other.resolve().parent
    imported = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    for name in [name for name, origin in imported if origin is not None and Path(origin) == folder / f"{name}.py"]:
        if (beside / f"{name}.py").is_file() or (beside / name / "__init__.py").is_file():
            raise PipelineError(
                f"the folders of {file} and {other} both have a module {name}",
                "rename one of them, or run the pipelines in commands of their own",
            )


def _chosen(file: Path, found: dict[str, Pipeline], name: str | None) -> Pipeline:
    if name is None and len(found) > 1:
        raise PipelineError(f"{file} holds several pipelines", f"choose one with --pipeline: {', '.join(found)}")
    if name is not None and name not in found:
        raise not_found("pipeline", name, tuple(found), f"choose one that {file} holds")
    return found[name] if name is not None else next(iter(found.values()))


def _pipelines(file: Path) -> dict[str, Pipeline]:
    """Import a Python file and return its pipelines by name; there is at least one."""
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}", "name a Python file that holds a Pipeline")
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if spec is None or spec.loader is None:
        raise PipelineError(f"{file} is not a Python file", "name one that ends with .py")
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    # Spark's workers import the same modules from the folder of the file.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except MillraceError:
        raise
    except SyntaxError as error:
        raise PipelineError(f"{Path(error.filename or file).name}:{error.lineno}: {error.msg}") from None
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.origin]
        raise PipelineError(f"{file.name}:{(lines or [1])[-1]}: {type(error).__name__}: {error}") from error
    found = {value.name: value for value in vars(module).values() if isinstance(value, Pipeline)}
    if not found:
        raise PipelineError(f"{file} holds no pipeline", "make one: charts = Pipeline('charts', views={...})")
    return found
