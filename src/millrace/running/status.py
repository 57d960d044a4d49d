"""The status of pipelines, which can be read while they run and afterwards."""

import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import sealed, unsealed
from millrace.model.duration import to_datetime
from millrace.model.kafka import KIND as KAFKA
from millrace.model.pipeline import Pipeline
from millrace.plan.compile import source_id
from millrace.plan.flow import flow_of
from millrace.running.health import Health
from millrace.running.totals import Totals
from millrace.running.waiting import Waiting
from millrace.sources.skipped import read_skipped
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.logfiles import DamageError, positions_in
from millrace.spark.progress import BatchProgress, clock_notice
from millrace.spark.recent import Recent, write_flow

_FILE = "status.json"


def note(
    checkpoint: Path,
    pipeline: str,
    progress: BatchProgress | None,
    dead: int,
    clock_moved: int,
    health: Health | None = None,
    *,
    rows: int = 0,
    answers: int = 0,
    waiting: Waiting | None = None,
    at: float | None = None,
    lags: Mapping[str, int] | None = None,
) -> None:
    """Write the report of a run to its checkpoint.

    `progress` is the last micro-batch, which ended `at` that time, by default now. `dead`, `rows` and `answers` count
    since the start of the run; `clock_moved` is the last jump of the clock since then, or 0. `lags` holds the records
    of each Kafka topic that are yet to be read.
    """
    known = health or Health()
    about = {
        "pipeline": pipeline, "at": time.time() if at is None else at, "dead": dead, "clock_moved": clock_moved,
        "rows": rows, "answers": answers, "waiting": None if waiting is None else asdict(waiting),
        "progress": None if progress is None else json.loads(progress.to_json()),
        "warnings": list(known.warnings().values()),
        "unknown": known.unknown, "missing": known.missing, "lags": dict(lags or {}),
    }  # fmt: skip
    text, file = json.dumps(sealed(about)), checkpoint / _FILE
    try:
        beside = file.with_name(f".{_FILE}.part")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, file)
    except OSError:
        if waiting is None:
            raise
        # The disk may be full, but the present report has its place there.
        with file.open("r+b") as present:
            present.write(text.encode())
            present.truncate()


def _kafka_lags(pipeline: Pipeline, checkpoint: Path, batch: int) -> dict[str, int]:
    """The records of each Kafka topic that a pipeline has yet to read after a micro-batch."""
    sources = [source for source in pipeline.sources if source.kind == KAFKA]
    if not sources:
        return {}
    from millrace.sources.kafka import lags_at  # its packages are optional

    lags: dict[str, int] = {}
    try:
        offsets = positions_in(Checkpoint(checkpoint).offsets(batch))
    except DamageError:  # the run will tell; the lag is only a report
        return {}
    for offset in offsets:  # fused and native edges read on their own
        for source in sources:
            if source_id(source) in offset["at"]:
                for topic, lag in lags_at(source, offset["at"][source_id(source)]).items():
                    lags[topic] = max(lag, lags.get(topic, 0))
    return lags


class Report:
    """The report of one run, over all starts of its stream."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Nothing is written before the first micro-batch."""
        self._pipeline = pipeline
        self._recent: dict[Path, Recent] = {}
        """The recent micro-batches of each checkpoint that was written to."""
        self._totals = Totals()
        self._progress: BatchProgress | None = None
        self._began = self._at = time.time()
        self._clock_moved = 0
        self._health = Health()
        self._lags: dict[str, int] = {}
        self._writing = threading.Lock()
        """Spark reports micro-batches from a thread of its own."""

    def batch(self, checkpoint: Path, progress: BatchProgress) -> None:
        """Write the progress of a micro-batch. Raises OSError if that fails."""
        self._totals = self._totals.after(progress)
        self._progress, self._at = progress, time.time()
        self._clock_moved = progress.clock_moved or self._clock_moved
        self._health = self._health.after(progress, time.monotonic())
        self._lags = _kafka_lags(self._pipeline, checkpoint, progress.batch)
        if checkpoint not in self._recent:
            self._recent[checkpoint] = Recent(checkpoint)
            write_flow(checkpoint, flow_of(self._pipeline))
        self._recent[checkpoint].add(progress, self._at, round(self._began, 3))
        self._note(checkpoint, None)

    def waits(self, checkpoint: Path, waiting: Waiting | None) -> None:
        """Write what the run waits for; None if it no longer waits.

        If nothing can be written, the present report stays: the trouble that is to be reported may be the disk.
        """
        with suppress(OSError):
            self._note(checkpoint, waiting)

    def _note(self, checkpoint: Path, waiting: Waiting | None) -> None:
        totals = self._totals
        with self._writing:
            note(
                checkpoint, self._pipeline.name, self._progress, totals.dead_letters, self._clock_moved, self._health,
                rows=totals.rows, answers=totals.answers, waiting=waiting, at=self._at,
                lags=self._lags,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a pipeline after its last micro-batch, or while it waits."""

    pipeline: str
    """The name of the pipeline; that of the checkpoint if the report is damaged."""
    checkpoint: Path
    is_running: bool
    at: float
    """When the last micro-batch ended, in seconds since 1970."""
    dead: int
    """Dead letters since it was started."""
    progress: dict[str, Any]
    """The last micro-batch; empty before the first one."""
    clock_moved: int = 0
    """The last jump of the clock since it was started, as `BatchProgress` has it; 0 if there was none."""
    skipped: int = 0
    """Records that it goes on without: retention removed them unread, and `millrace repair` skipped them."""
    skipped_files: int = 0
    """Files that it goes on without: they could not be read, and `millrace repair` skipped them."""
    warnings: tuple[str, ...] = ()
    """What is probably wrong with its records."""
    unknown: int = 0
    """The number of fields of its records that are no columns, in those that were looked at."""
    missing: int = 0
    """The number of columns that are in none of them."""
    rows: int = 0
    """Records read since it was started."""
    answers: int = 0
    """Rows written to views and sinks since it was started."""
    waiting: Waiting | None = None
    """What it waits for; None if it does not wait, or is not running."""
    began: Mapping[str, int] = field(default_factory=dict)
    """When outputs that have missed earlier records were added, by id, in microseconds since 1970."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """The records of each Kafka topic that it had yet to read."""
    damaged: Path | None = None
    """The file with the report, if it is damaged; then nothing else is known."""

    @property
    def notices(self) -> list[str]:
        """What users should know of it, in sentences."""
        known = [None if self.waiting is None else str(self.waiting), clock_notice(self.clock_moved), *self.warnings]
        added = [
            f"{id} has no records from before {to_datetime(at):%Y-%m-%d %H:%M:%S} UTC" for id, at in self.began.items()
        ]
        return [notice for notice in known if notice is not None] + added

    @property
    def state(self) -> str:
        """Running, waiting, stopped or damaged."""
        if self.damaged is not None:
            return "damaged"
        return "stopped" if not self.is_running else "running" if self.waiting is None else "waiting"


def all_under(folder: Path) -> list[Status]:
    """The status of every pipeline with a checkpoint in a folder, by name of the checkpoint."""
    found = []
    for file in sorted(folder.glob(f"*/{_FILE}")):
        running = is_locked(file.parent)
        try:
            about = unsealed(file.read_bytes())
            waiting, skipped = about.get("waiting") if running else None, read_skipped(file.parent)
            found.append(
                Status(
                    str(about["pipeline"]), file.parent, running, float(about["at"]), about["dead"],
                    _checked(about["progress"]), about["clock_moved"], skipped.records, len(skipped.files),
                    tuple(about.get("warnings", ())), about.get("unknown", 0), about.get("missing", 0),
                    about.get("rows", 0), about.get("answers", 0), None if waiting is None else Waiting(**waiting),
                    Checkpoint(file.parent).began(), lags=about.get("lags", {}),
                )
            )  # fmt: skip
        except FileNotFoundError:  # the checkpoint was removed meanwhile
            continue
        except (ValueError, KeyError, TypeError, AttributeError, IsADirectoryError):
            found.append(Status(file.parent.name, file.parent, running, 0.0, 0, {}, damaged=file))
    return found


def described(status: Status, behind: int | None) -> dict[str, Any]:
    """A status as JSON has it. `behind` is the lag in records, or None. A damaged report leaves nothing to describe."""
    about = {
        "pipeline": status.pipeline, "checkpoint": status.checkpoint.name, "state": status.state,
        "running": status.is_running,
    }  # fmt: skip
    if status.damaged is not None:
        return {**about, "file": str(status.damaged)}
    behind = max((each for each in (behind, *status.lags.values()) if each is not None), default=None)
    return {
        **about, "waiting": None if status.waiting is None else asdict(status.waiting), "behind": behind,
        "at": status.at, "rows": status.rows, "answers": status.answers, "dead": status.dead,
        "skipped": status.skipped, "unknown": status.unknown, "missing": status.missing,
        "warnings": list(status.warnings), "clock_moved": status.clock_moved, "began": dict(status.began),
        "lags": dict(status.lags), "progress": status.progress or None,
    }  # fmt: skip


def _checked(progress: dict[str, Any] | None) -> dict[str, Any]:
    """The progress of a micro-batch, if any. Raises KeyError or TypeError if it lacks something that is shown."""
    if progress is None:
        return {}
    parts = progress["parts"].values()
    shown = [progress[name] for name in ("batch", "rows_per_second", "seconds", "late", "open_windows", "errors")]
    shown += [part["lag"] or 0 for part in parts]
    if not all(isinstance(number, int | float) for number in shown):
        raise TypeError("a figure is no number")
    return progress


def is_locked(checkpoint: Path) -> bool:
    """Whether a pipeline runs from a checkpoint."""
    try:
        with (checkpoint / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
