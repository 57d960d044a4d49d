"""The watermarks by which edges judge what is too late, from the driver to the process that plans micro-batches.

A shard judges its input by the watermark that the micro-batch before has left. The driver stores it, and the planner
puts it into the offset of the next micro-batch, so that a repeated one is judged alike. The file is valid only after
the micro-batch that it names, whose logged offsets it identifies. If it is not valid, because of a crash, or because
the query has only dropped late records so far, the planner first runs a micro-batch without input. So the file needs no
fsync.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.plan.plan import Stage
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.history import digest_of


def keeps_late(stage: Stage) -> bool:
    """Whether the edge of a stage must know which records are too late. After a dedup, its shard knows."""
    return stage.query is not None and stage.query.keeps_late and stage.dedup is None


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The file of a checkpoint with the watermarks of its stages, by id, after the last micro-batch."""

    checkpoint: Checkpoint

    def write(self, batch: int, marks: Mapping[str, int]) -> None:
        """Store the watermarks after a micro-batch; those of stages that took no part in it stay as they were."""
        content = self._content()
        last = content.get("batch")
        before = content["stages"] if last in (batch, batch - 1) and self._is_of(content) else {}
        digest = digest_of(self.checkpoint.offsets(batch))
        text = json.dumps({"batch": batch, "digest": digest, "stages": {**before, **marks}})
        path = self.checkpoint.watermarks
        part = path.with_name(f"{path.name}.part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)

    def read(self, stages: Collection[str]) -> dict[str, int] | None:
        """The watermarks of some stages after the last micro-batch; None if one is not known."""
        content = self._content()
        if not self._is_of(content):
            return None
        batch, known = content["batch"], content["stages"]
        is_last = self.checkpoint.commits(batch).exists() and not self.checkpoint.offsets(batch + 1).exists()
        return {stage: known[stage] for stage in stages} if is_last and known.keys() >= {*stages} else None

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads(self.checkpoint.watermarks.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _is_of(self, content: Mapping[str, Any]) -> bool:
        """Whether a content is of a micro-batch that this checkpoint has logged."""
        try:
            return bool(digest_of(self.checkpoint.offsets(content["batch"])) == content["digest"])
        except (OSError, KeyError):
            return False
