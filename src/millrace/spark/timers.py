"""When the next micro-batch without input is due: the driver writes it, the process that plans micro-batches reads it.

The instant is valid only for the state at one processing time, which is stored with it. Without a valid one, which a
crash or an earlier release may leave behind, the planner advances the clock at short intervals. So the file needs no
fsync.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from millrace.model.duration import END_OF_TIME


@dataclass(frozen=True, slots=True)
class Timers:
    """The file of a checkpoint with the next due instant."""

    path: Path

    def write(self, now: int, due: int | None) -> None:
        """Record that at processing time `now` the next timer is due at `due`, or that there is none."""
        part = self.path.with_name(f"{self.path.name}.part")
        part.write_text(json.dumps([now, due]), encoding="utf-8")
        os.replace(part, self.path)

    def due(self, now: int) -> int | None:
        """The instant at which the next timer is due after `now`; END_OF_TIME if there is none, None if unknown."""
        try:
            at, due = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            return None
        if at != now or not isinstance(due, int | None):
            return None
        return END_OF_TIME if due is None else due
