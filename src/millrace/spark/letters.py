"""Writes the dead letters of a run to the letter box of its pipeline."""

import time
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from millrace.eventlog.topics import Log
from millrace.letters.box import LetterBox
from millrace.letters.letter import LetterSource, Rejected
from millrace.plan.plan import Plan
from millrace.spark.history import topics_begun


class LetterWriter:
    """Writes the dead letters of one checkpoint, or of a batch."""

    def __init__(
        self, box: LetterBox, plan: Plan, log: str | Path, checkpoint: str, folder: Path | None = None
    ) -> None:
        """`folder` is that of the checkpoint; a batch has none."""
        self._box, self._plan, self._log, self._checkpoint, self._folder = box, plan, log, checkpoint, folder
        self._is_served = False

    def write(self, letters: pa.Table, batch: int = 0, staged: bool = False) -> int:
        """Store the letters of a micro-batch; returns how many of them no earlier one has listed.

        They are shown at once, unless the checkpoint is `staged`: a replay fills it, and serves it later.
        """
        many = self._put(letters, batch)
        if not staged and not self._is_served:
            self.serve()
            self._is_served = self._box.file.exists()
        return many

    def serve(self) -> None:
        """Show the letters of this checkpoint."""
        self._box.serve(self._checkpoint, self._sources, self._is_unread)

    def _put(self, letters: pa.Table, batch: int) -> int:
        rejected = [Rejected(**row) for row in letters.drop_columns(["raw"]).to_pylist()]
        return self._box.put(rejected, self._sources, self._checkpoint, batch, time.time_ns() // 1000)

    @cached_property
    def _sources(self) -> dict[str, LetterSource]:
        found = {}
        for planned in self._plan.sources:
            source = planned.source
            # A view of answers does not read the record: if the stage before it has no value, nor does the view.
            outputs = tuple(stage.label for stage in self._plan.stages if planned.id in stage.inputs)
            uid = Log(self._log).uid_of(source.name) if source.kind == "log" else ""
            about = (source.name, source.kind, source.value_schema)
            found[source.name] = LetterSource(*about, outputs, uid, source.is_strict)
        return found

    @cached_property
    def _starts(self) -> dict[str, list[int]]:
        """The first offsets that the checkpoint reads of each topic, by the id of the topic."""
        starts: dict[str, list[int]] = {}
        if self._folder is None:
            topics = [source for source in self._sources.values() if source.kind == "log"]
            return {source.uid: Log(self._log).starts(source.name) for source in topics}
        for begun in topics_begun(self._folder):  # fused and native edges have begun on their own
            starts[begun.uid] = list(map(min, starts.get(begun.uid, begun.offsets), begun.offsets))
        return starts

    def _is_unread(self, rejected: Rejected, uid: str) -> bool:
        """Whether the pipeline reads the source of a record, but the checkpoint cannot read this record of it."""
        source = self._sources.get(rejected.source)
        if source is None or rejected.offset is None:
            return False
        if source.kind == "files":
            return not Path(rejected.origin).exists()
        if source.kind != "log" or rejected.partition is None:
            return False
        starts = self._starts.get(uid)
        return starts is None or rejected.offset < starts[rejected.partition]
