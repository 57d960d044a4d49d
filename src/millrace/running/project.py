"""The folder, the log and the store of a project, which a backup saves and a restore replaces."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.letters.box import SUFFIX as LETTERS
from millrace.model.errors import MachineError
from millrace.spark.sent import SENT
from millrace.views.store import file_of

_LOCK = ".backup.lock"


@dataclass(frozen=True, slots=True)
class Project:
    """The locations of everything that the pipelines of a project have in common."""

    folder: Path
    """The folder of the checkpoints."""
    log: Path
    store: str

    @property
    def views(self) -> Path | None:
        """The file of the store; None for a PostgreSQL store."""
        return file_of(self.store)

    def checkpoints(self) -> list[Path]:
        """The checkpoints in the folder, also those of earlier generations."""
        return sorted(path.parent for path in self.folder.glob("*/millrace.json"))

    def beside_checkpoints(self) -> list[Path]:
        """The files beside the checkpoints: boundaries of batch layers, and commits to sinks in users' code."""
        return sorted([*self.folder.glob("*.boundary"), *self.folder.glob(f"*{SENT}")])

    def letters(self) -> list[Path]:
        """The files with the dead letters of pipelines."""
        return sorted(self.folder.glob(f"*{LETTERS}"))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock out other backups and restores of the project."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise MachineError(f"another backup or restore of {self.folder} runs", "wait for its end") from None
            yield
