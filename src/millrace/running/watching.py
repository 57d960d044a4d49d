"""Development: runs a command again whenever a file of its pipelines changes.

The command is a process of its own. Python cannot unload modules safely, and Spark's workers keep the modules that they
have imported, so only a new process is certain to run the changed code.
"""

import ast
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from millrace.running.ending import told_to_end

_LOOK_EVERY = 0.2
_Stamps: TypeAlias = dict[Path, tuple[int, int] | None]
"""The time of the last change and the size of each file; None for a file that is missing."""


def watch(arguments: Sequence[str], files: Sequence[Path], say: Callable[[str], None]) -> None:
    """Run `millrace` with these arguments, and again after each change of a file, until a signal."""
    named = ", ".join(str(file) for file in files)
    with told_to_end() as told:
        while not told:
            seen = _settled_stamps(files)
            # A process group of its own: the terminal signals this process only, which passes one signal on.
            child = subprocess.Popen([sys.executable, "-P", "-m", "millrace", *arguments], process_group=0)
            while child.poll() is None and not told and _stamps(files) == seen:
                time.sleep(_LOOK_EVERY)
            if child.poll() is None:
                say("stopping" if told else f"{_changed(seen, _stamps(files))} has changed: starting again")
                child.send_signal(signal.SIGTERM)
            code = child.wait()
            if not told and _stamps(files) == seen:
                say(f"ended with exit code {code}; waiting for a change of {named}")
            while not told and _stamps(files) == seen:
                time.sleep(_LOOK_EVERY)


def sources_of(file: Path) -> set[Path]:
    """A pipeline file, and the modules that it imports from its folder, directly or through each other.

    The files are read, not executed, so that a file with an error is watched, too.
    """
    folder = file.resolve().parent
    found, waiting = {file}, [file]
    while waiting:
        path = waiting.pop()
        for name in _imported(path, folder):
            new = {folder / f"{name}.py", folder / name / "__init__.py"} - found
            there = [each for each in new if each.is_file() and not each.samefile(file)]
            found.update(there)
            waiting += there
    return found


def _imported(path: Path, folder: Path) -> set[str]:
    """The modules that a file imports, as paths in the folder; a name in a module may be a module, too."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):  # no Python yet
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            package = path.resolve().relative_to(folder).parts[: -node.level] if node.level else ()
            base = ".".join([*package, *([node.module] if node.module else [])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parts = [name.strip(".").split(".") for name in names]
    return {"/".join(each[:count]) for each in parts for count in range(1, len(each) + 1)}


def _stamps(files: Iterable[Path]) -> _Stamps:
    return {path: _stamp(path) for file in files for path in sources_of(file)}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _settled_stamps(files: Iterable[Path]) -> _Stamps:
    """The stamps when two looks in a row agree: an editor or a checkout may still be writing files."""
    before = _stamps(files)
    while True:
        time.sleep(_LOOK_EVERY)
        now = _stamps(files)
        if now == before:
            return now
        before = now


def _changed(before: _Stamps, now: _Stamps) -> str:
    return ", ".join(sorted(path.name for path in before.keys() | now.keys() if before.get(path) != now.get(path)))
