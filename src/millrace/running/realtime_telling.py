"""What a run in real-time mode tells: to its display, to `status` and to the page, about once a second."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from millrace.model.pipeline import Pipeline
from millrace.plan.compile import view_id
from millrace.plan.flow import flow_of
from millrace.running.applier import Applied
from millrace.running.status import note
from millrace.running.streaming import Listener
from millrace.running.totals import Totals
from millrace.running.waiting import Waiting
from millrace.spark.progress import BatchProgress, PartProgress
from millrace.spark.recent import Recent, write_flow

_TELL_EVERY = 1.0


class Teller:
    """Tells about once a second what was applied: to the display, to `status`, and to the page."""

    def __init__(self, pipeline: Pipeline, on_batch: Listener) -> None:
        """Nothing is told before the first commit."""
        self._pipeline, self._on_batch = pipeline, on_batch
        self._folder: Path | None = None
        self._recent: Recent | None = None
        self._totals = Totals()
        self._progress: BatchProgress | None = None
        self._pending: list[Applied] = []
        self._told = self._began = time.time()
        self._lock = threading.Lock()

    def into(self, folder: Path) -> None:
        """Write reports to this checkpoint."""
        self._folder, self._recent = folder, Recent(folder)
        write_flow(folder, flow_of(self._pipeline))

    def applied(self, done: Applied) -> None:
        """Note a commit."""
        with self._lock:
            self._pending.append(done)
        self.tell_in_time()

    def tell_in_time(self) -> None:
        """Tell, if the last time is a second ago."""
        if time.time() - self._told >= _TELL_EVERY:
            self.tell()

    def tell(self) -> None:
        """Tell what was applied since the last time."""
        with self._lock:
            pending, self._pending = self._pending, []
            now, before = time.time(), self._told
            self._told = now
        if not pending or self._folder is None or self._recent is None:
            return
        answers: dict[str, pa.Table] = {}
        for done in pending:
            answers |= done.answers
        parts = {
            view_id(name): PartProgress(
                None, None, 0, 0, 0, sum(len(done.answers[name]) for done in pending if name in done.answers)
            )
            for name in self._pipeline.views
        }
        progress = BatchProgress(
            pending[-1].batch, sum(done.records for done in pending), now - before, sum(done.dead for done in pending),
            parts,
        )  # fmt: skip
        self._progress, self._totals = progress, self._totals.after(progress)
        self._recent.add(progress, now, round(self._began, 3))
        self._note(None)
        self._on_batch(progress, {view_id(name): rows for name, rows in answers.items()})

    def waits(self, waiting: Waiting | None) -> None:
        """Report what the run waits for; None if it no longer waits."""
        with suppress(OSError):
            self._note(waiting)

    def _note(self, waiting: Waiting | None) -> None:
        if self._folder is not None:
            note(
                self._folder, self._pipeline.name, self._progress, self._totals.dead_letters, 0,
                rows=self._totals.rows, answers=self._totals.answers, waiting=waiting,
            )  # fmt: skip
