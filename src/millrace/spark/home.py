"""The Spark home: the installed PySpark, started so that it is ready soon.

Java spends most of Spark's start on loading classes and on compiling methods that will not run often. So the home has a
class archive, from which Java maps the classes into memory, and Java's second compiler waits for methods that run much
more often than it would by itself. It also has Java code of ours, which is compiled when the archive is made, by a
compiler that is a part of Spark. Decision 033 has the figures.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pyspark
from pyspark.java_gateway import launch_gateway

from millrace.spark.cache import cached_folder, caches
from millrace.spark.java import java_in

_SUBMIT = "spark-submit"
"""The script with which PySpark starts Java."""
_ARCHIVE = "classes.jsa"
_BASE = "java.jsa"
"""The archive of Java's own classes, on which the other one builds; not every Java comes with one."""
_NO_ARCHIVE = "no-archive"
"""A file that says why a home has no archive: it could not be made, and is not tried again."""
_OUR_CODE = Path(__file__).with_name("LocalFiles.java")
_OUR_JAR = Path("jars", "millrace.jar")
"""Our code, compiled, in a home."""
_ALONE = "import os, sys; os.getpid() == os.getpgrp() or os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
"""A program that runs another one in a session of its own."""
_LATER = 10
"""How many times more often than by default a method runs before Java's second compiler translates it."""


def compiled_after(times: int) -> str:
    """Options of Java by which methods run so many times more often than by default before the second compiler."""
    return " ".join(
        [
            "-XX:+IgnoreUnrecognizedVMOptions",
            f"-XX:Tier4InvocationThreshold={5_000 * times}",
            f"-XX:Tier4MinInvocationThreshold={600 * times}",
            f"-XX:Tier4CompileThreshold={15_000 * times}",
            f"-XX:Tier4BackEdgeThreshold={40_000 * times}",
        ]
    )


_OPTIONS = compiled_after(_LATER)
_SCRIPT = f"""#!/bin/sh
trap '' HUP TERM
if [ -f "$SPARK_HOME/{_ARCHIVE}" ]; then
  share="-XX:SharedArchiveFile='$SPARK_HOME/{_BASE}:$SPARK_HOME/{_ARCHIVE}' -Xlog:disable -Xlog:all=error:stderr"
fi
export SPARK_SUBMIT_OPTS="{_OPTIONS} $share $SPARK_SUBMIT_OPTS"
export SPARK_LAUNCHER_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC $SPARK_LAUNCHER_OPTS"
exec %s -IS -c '{_ALONE}' %s "$@"
"""


def spark_home(java: Path) -> Path:
    """The home of the installed PySpark on a Java, in the user's cache if possible."""
    return cached_folder(_name(java), _make)


@cache
def _name(java: Path) -> str:
    """The name changes with all that the scripts and the classes in the archive depend on."""
    real = java.resolve()
    ours = _OUR_CODE.read_text(encoding="utf-8")
    depends = (version("pyspark"), pyspark.__path__[0], _python(), real, real.stat().st_mtime_ns, _SCRIPT, ours)
    return f"spark-{hashlib.sha256(repr(depends).encode()).hexdigest()[:16]}"


def _make(folder: Path) -> None:
    """Link the installed PySpark into a folder, without its zip of Python files; signals do not reach its Java.

    Workers then import the installed files, which are compiled. Service managers signal all processes of a service, and
    Ctrl-C all processes of the terminal's foreground, but only the parent process handles the signal. So Java ignores
    HUP and TERM, and it and its workers are a session of their own, which Ctrl-C does not reach. Java exits with the
    parent process, because it waits for the end of its input.
    """
    installed = Path(pyspark.__path__[0])
    inside = ("bin", "jars")
    for name in inside:
        (folder / name).mkdir()
    for entry in [*installed.iterdir(), *(entry for name in inside for entry in (installed / name).iterdir())]:
        if entry.name not in (*inside, "python", _SUBMIT):
            (folder / entry.relative_to(installed)).symlink_to(entry)
    submit = folder / "bin" / _SUBMIT
    submit.write_text(_SCRIPT % (shlex.quote(_python()), shlex.quote(str(installed / "bin" / _SUBMIT))))
    submit.chmod(0o755)


def _python() -> str:
    """The name of this Python that is the same for all names that an environment has for it."""
    return os.path.realpath(sys.executable)


def settings_of(home: str) -> dict[str, str]:
    """The settings of Spark by which it uses the Java code of a home that has it."""
    return {"spark.hadoop.fs.file.impl": "millrace.LocalFiles"} if Path(home, _OUR_JAR).exists() else {}


def lacks_archive(home: Path) -> bool:
    """Whether a class archive would help: the home will be used again and has none."""
    return home.parent == caches() and not (home / _ARCHIVE).exists() and not (home / _NO_ARCHIVE).exists()


def make_archive_later(home: Path) -> None:
    """Make the archive of a home in a process that outlives this one and takes only time that is left over."""
    subprocess.Popen(
        [sys.executable, "-m", "millrace.spark.home"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, cwd=home,
    )  # fmt: skip


_PIPELINE = """
from millrace import Pipeline, agg, files, window

events = files("in", "k STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
first = Pipeline("first", views={"counted": events.window(window.fixed("10s")).aggregate(n=agg.count())})
"""


def make_archive(home: Path, java: Path) -> None:
    """Run a small pipeline whose Java writes the classes that it has loaded to the archive of a home.

    If another process is making it, this waits for that one.
    """
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lacks_archive(home):
            return
        with TemporaryDirectory(prefix="making-", dir=home.parent) as folder:
            try:
                jar = Path(folder) / _OUR_JAR.name
                _run([sys.executable, "-m", "millrace.spark.home", str(jar)], Path(folder), {"SPARK_HOME": str(home)})
                jar.rename(home / _OUR_JAR)
                _run([str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={home / _BASE}"], Path(folder), {})
                _classes_of_a_run(home, Path(folder)).rename(home / _ARCHIVE)
            except (OSError, subprocess.SubprocessError) as error:
                (home / _NO_ARCHIVE).write_text(f"{error}\n{getattr(error, 'stderr', '')}\n")
    _remove_stale(home.parent)


def _compile(jar: Path) -> None:
    """Compile our Java code to a jar, with Janino, which is among the jars of Spark."""
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_OUR_CODE.read_text(encoding="utf-8"))
    with ZipFile(jar, "w") as written:
        for name, code in compiler.getBytecodes().items():
            written.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    gateway.shutdown()


def _classes_of_a_run(home: Path, folder: Path) -> Path:
    """An archive of the classes that a pipeline needs."""
    (folder / "in").mkdir()
    (folder / "in" / "1.json").write_text('{"k": "a", "at": "2026-01-01T00:00:00Z"}\n')
    (folder / "first.py").write_text(_PIPELINE)
    archive = folder / _ARCHIVE
    options = f"-XX:SharedArchiveFile='{home / _BASE}' -XX:ArchiveClassesAtExit='{archive}'"
    _run(
        [sys.executable, "-m", "millrace", "run", "first.py", "--until-caught-up"], folder,
        {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options},
    )  # fmt: skip
    return archive


def _run(command: list[str], folder: Path, variables: dict[str, str]) -> None:
    subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, check=True, capture_output=True, text=True, timeout=600
    )


def _remove_stale(parent: Path) -> None:
    """Remove the homes of environments that are gone: an archive is large."""
    for home in parent.glob("spark-*"):
        if not (home / "__init__.py").exists():  # its links lead nowhere
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    os.nice(19)
    if sys.argv[1:]:
        _compile(Path(sys.argv[1]))
    else:
        _java = java_in(os.environ)
        make_archive(spark_home(_java), _java)
