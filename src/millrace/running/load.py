"""The pipeline in a Python file."""

import importlib.util
import os
import sys
import traceback
from pathlib import Path

from millrace.model.errors import MillraceError, NotFoundError, PipelineError, not_found
from millrace.model.pipeline import Pipeline


def load(file: Path, name: str | None = None) -> Pipeline:
    """Import a Python file and return its pipeline; if it has several, the one with this name."""
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
    if name is None and len(found) > 1:
        raise PipelineError(f"{file} holds several pipelines", f"choose one with --pipeline: {', '.join(found)}")
    if name is not None and name not in found:
        raise not_found("pipeline", name, tuple(found), f"choose one that {file} holds")
    return found[name] if name is not None else next(iter(found.values()))
