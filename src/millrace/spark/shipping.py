"""The user's modules on their way to executors, which do not have the folder of the pipeline on their Python path.

The file of the pipeline itself travels with the job. The modules that it imports from its folder are sent as a zip;
of a package, all modules are.
"""

import atexit
import hashlib
import sys
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession


def ship(spark: SparkSession, files: Iterable[str]) -> None:
    """Send the modules beside these files to executors; what was sent is not sent again."""
    found = modules_beside(files)
    if not found:
        return
    digest = hashlib.sha256()
    for name, path in sorted(found.items()):
        digest.update(f"{name}\0".encode() + path.read_bytes())
    name = f"modules-{digest.hexdigest()[:16]}.zip"
    if name in (spark.sparkContext._python_includes or ()):
        return
    kept = _folder() / name
    with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, path in sorted(found.items()):
            packed.write(path, name)
    spark.sparkContext.addPyFile(str(kept))


@cache
def _folder() -> Path:
    """The folder of the zips: executors fetch them from there, also those that join later."""
    folder = TemporaryDirectory(prefix="millrace-modules-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def modules_beside(files: Iterable[str]) -> dict[str, Path]:
    """The files of the modules that were imported from the folders of these files, by their names in the zip."""
    found: dict[str, Path] = {}
    for folder in {Path(file).resolve().parent for file in files}:
        found |= _under(folder, {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())})
    return found


def _under(folder: Path, imported: Mapping[str, str | None]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, origin in imported.items():
        if origin is None or "." in name or name == "__main__":
            continue
        path = Path(origin).resolve()
        if path == folder / f"{name}.py":
            found[path.name] = path
        elif path == folder / name / "__init__.py":
            found |= {each.relative_to(folder).as_posix(): each for each in sorted((folder / name).rglob("*.py"))}
    return found
