"""What is wrong with the parts of a pipeline: each finding with the ways on, what each way loses, and its command."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from millrace.running.agreement import Lost


@dataclass(frozen=True, slots=True)
class SkipBlock:
    """Replace a damaged block of the log by a gap."""

    topic: str
    partition: int
    first: int
    records: int


@dataclass(frozen=True, slots=True)
class SalvageLog:
    """Save what can be read of a log that SQLite cannot read, in its place, and move the damaged file aside."""

    file: Path


@dataclass(frozen=True, slots=True)
class SkipGap:
    """Let the checkpoint go on after records that retention removed unread."""

    checkpoint: Path
    lost: Lost


@dataclass(frozen=True, slots=True)
class SkipFile:
    """Let the checkpoint go on without a file that cannot be read."""

    checkpoint: Path
    file: str


@dataclass(frozen=True, slots=True)
class MoveDatabase:
    """Move a damaged SQLite database aside: the store, that of a table sink, or that of dead letters."""

    file: Path


@dataclass(frozen=True, slots=True)
class MoveCheckpoint:
    """Move a checkpoint aside that cannot be continued."""

    folder: Path


@dataclass(frozen=True, slots=True)
class DropGeneration:
    """Drop the generation that a stopped replay has not filled, and move its checkpoint aside."""

    number: int
    checkpoint: Path


Action: TypeAlias = SalvageLog | SkipBlock | SkipGap | SkipFile | MoveDatabase | MoveCheckpoint | DropGeneration
"""What `millrace repair --yes` does about a finding."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way on: in words, with what is lost by it and the command to type, if there is one."""

    what: str
    loses: str
    command: str | None = None

    def __str__(self) -> str:
        return f"{self.what} ({self.loses})" + ("" if self.command is None else f": {self.command}")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    problem: str
    ways: tuple[Way, ...]
    action: Action | None = None
    replays: bool = False
    """Whether a replay is the way on, or a part of it."""

    def lines(self) -> list[str]:
        """The problem in a line, then a line for each way on."""
        return [self.problem, *(f"  {way}" for way in self.ways)]
