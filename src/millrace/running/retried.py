"""A stream that goes on after trouble of the machine: it is started again from its checkpoint, with back-off.

A restart repeats the micro-batch that failed, with the same offsets and the same commit. What the store and the sinks
have of it, they recognise. So a retry is as exact as a run that was killed and started again.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.model.duration import SECOND, format_duration, parse_duration
from millrace.model.errors import MachineError, gone
from millrace.model.pipeline import FileSink, Pipeline, TableSink
from millrace.running.handle import PATIENCE
from millrace.running.lease import Lease
from millrace.running.preflight import check_agreement
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import Report
from millrace.running.streaming import Listener, start_stream
from millrace.running.views import KeptViews
from millrace.running.waiting import LONGEST, Waiting, backoff, may_pass
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.filesink import record_of
from millrace.spark.progress import BatchProgress
from millrace.views.store import file_of, open_store

if TYPE_CHECKING:
    from millrace.spark.stream import StreamRun


class RetriedStream:
    """The stream of a pipeline, which is started again after trouble of the machine."""

    def __init__(
        self,
        pipeline: Pipeline,
        home: Locations,
        how: StreamOptions,
        lease: Lease,
        on_batch: Listener,
        on_wait: Callable[[Waiting | None], None],
    ) -> None:
        """Start the stream, and first Spark if it does not run.

        Trouble before the stream has started is raised: a wrong address is more likely than a server that went away.
        `on_wait` is called before each wait, and with None when the stream runs again.
        """
        self._pipeline, self._home, self._how, self._lease = pipeline, home, how, lease
        self._on_batch, self._on_wait = on_batch, on_wait
        self._patience = parse_duration(how.retry, "retry") / SECOND
        self._report = Report(pipeline)
        self._held = ExitStack()
        self._stream: StreamRun | None = None
        """The running stream; None while the run waits."""
        self._checkpoint = Checkpoint(home.checkpoint)
        self._places = _places(pipeline, home)
        self._seen: set[Path] = set()
        """The files that were there after a start or a micro-batch."""
        self._over = threading.Event()
        self._trouble: tuple[float, float] | None = None
        """When the trouble began, by the clock that cannot be set and by the wall clock; None if there is none."""
        self._tries = 0
        self._due = self._started = 0.0
        try:
            self._start()
        except BaseException:
            self._held.close()
            raise

    def __enter__(self) -> "RetriedStream":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._held.close()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._over.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait at most about `timeout` seconds; whether the stream has ended. Raises the error that ended it for good.

        All restarts happen in this call, so one thread calls it again and again.
        """
        if self._stream is None:
            if self._over.wait(min(timeout, max(0.0, self._due - time.monotonic()))):
                return True
            if time.monotonic() >= self._due:
                self._try_again()
            return False
        try:
            return self._stream.wait(timeout)
        except Exception as error:
            self._wait_out(error)
            return False

    def stop(self, patience: float = PATIENCE) -> None:
        """Stop the stream as `StreamRun.stop` does, or the waiting. May be called from any thread."""
        self._over.set()
        stream = self._stream
        if stream is not None:
            stream.stop(patience)

    def _start(self) -> None:
        missing = self._gone()
        if missing is not None:
            raise missing
        store = self._held.enter_context(closing(open_store(self._home.store)))
        generation = check_agreement(self._pipeline, self._home, store, self._how.from_here)
        self._checkpoint = Checkpoint(self._home.generation(generation))
        if self._pipeline.views:
            self._held.enter_context(store.claim(self._pipeline.name, generation))
        views = KeptViews(store, self._pipeline, generation, self._home.boundary, self._checkpoint.began)
        self._stream = start_stream(
            self._pipeline, self._home, generation, views, self._how, self._lease, self._batch, report=self._report
        )
        self._started = time.monotonic()
        self._look()
        if self._over.is_set():  # it was stopped meanwhile, from another thread
            self._stream.stop()

    def _try_again(self) -> None:
        self._held.close()  # among others the lock of the checkpoint, which the stream takes itself
        try:
            self._start()
        except Exception as error:
            self._wait_out(error)
        else:
            self._report.waits(self._checkpoint.folder, None)
            self._on_wait(None)

    def _batch(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        self._trouble = None
        self._look()
        self._on_batch(progress, answers)

    def _wait_out(self, error: Exception) -> None:
        """Plan the next try after an error. Raises the error if it cannot pass, or has not for too long."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.stop(0)
        self._held.close()
        trouble = (self._gone() if self._patience else None) or error
        if self._over.is_set() or not may_pass(trouble):
            raise trouble
        now = time.monotonic()
        if self._trouble is None or (stream is not None and now - self._started > LONGEST):
            self._trouble, self._tries = (now, time.time()), 0
        began, since = self._trouble
        seconds = backoff(self._tries, now - began, self._patience)
        if seconds is None:
            raise _given_up(trouble, self._patience)
        self._tries += 1
        self._due = now + seconds
        assert isinstance(trouble, MachineError)
        waiting = Waiting(trouble.problem, str(trouble.advice), since, time.time() + seconds)
        if self._is_held():
            self._report.waits(self._checkpoint.folder, waiting)
        self._on_wait(waiting)

    def _is_held(self) -> bool:
        """Lock the checkpoint while the run waits, so that nobody else starts from it; whether that was possible."""
        with suppress(OSError, MachineError):
            self._checkpoint.check_there()  # otherwise a lock would be made in the folder of a missing file system
            self._held.enter_context(self._checkpoint.lock())
            return True
        return False

    def _look(self) -> None:
        places = {*self._places, self._checkpoint.file.absolute()}
        self._seen |= {path for path in places - self._seen if path.exists()}

    def _gone(self) -> MachineError | None:
        """The error for a file that was there before: it was moved, or its file system is not mounted."""
        missing = sorted(path for path in self._seen if not path.exists())
        return gone(missing[0]) if missing else None


def _places(pipeline: Pipeline, home: Locations) -> list[Path]:
    """The files, beside the checkpoint, by which a missing file system is noticed."""
    store = file_of(home.store)
    sinks = [output.sink for output in pipeline.sinks]
    places = [
        home.log,
        *([] if store is None else [store]),
        *(Path(sink.path) for sink in sinks if isinstance(sink, TableSink)),
        *(record_of(Path(sink.path), pipeline.name) for sink in sinks if isinstance(sink, FileSink)),
    ]
    return [path.absolute() for path in places]


def _given_up(error: BaseException, patience: float) -> BaseException:
    """The error that ends the run; it says for how long the run has tried, if it did."""
    if not patience or not isinstance(error, MachineError):
        return error
    tried = format_duration(round(patience * SECOND))
    return MachineError(f"{error.problem}, and retries for {tried} did not help", str(error.advice))
