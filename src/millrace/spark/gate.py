"""The gate of a checkpoint: a micro-batch passes it, and a backup closes it.

A micro-batch holds a shared lock on the gate from the start of its computation until its answers are written to the
store, the sinks and the log. A backup holds the exclusive lock, so it sees each micro-batch either whole or not at all.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

GATE = "gate"
"""The name of the lock file in a checkpoint."""


@contextmanager
def passing(checkpoint: Path) -> Iterator[None]:
    """Run a micro-batch; waits while the gate is closed."""
    with (checkpoint / GATE).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def closed(checkpoints: list[Path]) -> Iterator[None]:
    """Close the gates of checkpoints; waits for the micro-batches that run, and keeps others from starting."""
    with ExitStack() as held:
        for folder in checkpoints:
            file = held.enter_context((folder / GATE).open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
