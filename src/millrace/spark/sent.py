"""The last commits to sinks in a user's code, which store none that Millrace could read.

They are in a file beside the checkpoint, so that a run notices that the checkpoint was lost or replaced, before it
sends everything again.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed
from millrace.model.connectors import Commit
from millrace.model.errors import AGAIN, ConflictError
from millrace.spark.trouble import clear

SENT = ".sent"
"""The suffix of the file; the rest of its name is that of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The last commit to each sink in a user's code, for one checkpoint."""

    file: Path | None
    """None if nothing is recorded, because no commits are made."""

    @classmethod
    def beside(cls, checkpoint: Path | None) -> "Sent":
        """The commits that were made from a checkpoint."""
        return cls(None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}{SENT}"))

    def exists(self) -> bool:
        """Whether a commit is recorded."""
        return self.file is not None and self.file.exists()

    def remove(self) -> None:
        """Forget all commits."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def last(self, sink: str) -> Commit | None:
        """The last commit to a sink; None if none is recorded."""
        found = self._read().get(sink)
        return None if found is None else Commit(*found)

    def note(self, sink: str, commit: Commit) -> None:
        """Record a commit; it is on the disk when this returns."""
        if self.file is None:
            return
        commits = {**self._read(), sink: [commit.pipeline, commit.checkpoint, commit.batch, commit.digest]}
        text = json.dumps(sealed(commits))
        with clear(f"cannot write {self.file}", self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, lambda part: part.write_text(text, encoding="utf-8"))

    def _read(self) -> dict[str, Any]:
        if self.file is None:
            return {}
        try:
            found = unsealed(self.file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise ConflictError(f"{self.file} is damaged", AGAIN) from None
        if not all(isinstance(each, list) and len(each) == 4 for each in found.values()):
            raise ConflictError(f"{self.file} is damaged", AGAIN)
        return found
