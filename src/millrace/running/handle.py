"""The handle of a pipeline that runs in this process, for Python code and notebooks."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from millrace.running.notebook import LiveDisplay, live_display
from millrace.running.table import as_html
from millrace.running.totals import Totals
from millrace.running.waiting import Waiting
from millrace.spark.progress import BatchProgress, clock_notice

PATIENCE = 30.0
"""How many seconds `stop` gives the micro-batch under way to be committed."""
_END = 20.0
"""How many more seconds the run may take to end after the work was told to stop."""
_LOGGER = logging.getLogger("millrace")


class RunningWork(Protocol):
    """The work of a run, on Spark."""

    def finish(self) -> str:
        """Return at the end of the work, with its outcome in a line. Raises the error that ended it."""

    def stop(self, patience: float) -> None:
        """Make `finish` return soon. May be called from any thread."""


class Run:
    """A pipeline that runs in the background, on Spark. `Pipeline.run` makes it.

    The run goes on while the program does other work. `wait` returns at its end, `stop` ends it; at the end of a `with`
    block it is stopped. At the exit of the interpreter a run that ends by itself (`mode="batch"`, `layer="batch"`,
    `until_caught_up=True`) is completed first, and any other is stopped as `stop` does.
    """

    def __init__(self, pipeline: str, behind: Callable[[], int | None] = lambda: None) -> None:
        """Nothing runs yet. `behind` returns the lag in records."""
        self.pipeline = pipeline
        """The name of the pipeline."""
        self._behind = behind
        self._began = time.monotonic()
        self._seconds: float | None = None
        self._progress: BatchProgress | None = None
        self._totals = Totals()
        self._tasks: tuple[int, int] | None = None
        self._waiting: Waiting | None = None
        self._outcome: str | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._work: RunningWork
        self._displays: list[LiveDisplay] = []

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return not self._ended.is_set()

    @property
    def progress(self) -> BatchProgress | None:
        """The last micro-batch; None before the first one. A batch is one micro-batch, at its end."""
        return self._progress

    @property
    def totals(self) -> Totals:
        """The counts over all micro-batches of this run."""
        return self._totals

    @property
    def waiting(self) -> Waiting | None:
        """What the run waits for, if its store, its log or a file system went away; None if it does not wait."""
        return self._waiting

    @property
    def error(self) -> BaseException | None:
        """The error that ended the run, which `wait` raises; None if there was none."""
        return self._error

    @property
    def summary(self) -> str:
        """The state of the run and its counts, in a line."""
        if self._error is not None:
            return f"failed: {self._error}"
        if self._outcome is not None:
            return self._outcome
        if self._tasks is not None:
            done, total = self._tasks
            return f"running: {done:,} of {total:,} tasks"
        if self._waiting is not None:
            return str(self._waiting)
        return f"running: {self._totals.summary(time.monotonic() - self._began)}"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds; whether the run has ended. Raises the error that ended it.

        Ctrl-C stops the run as `stop` does, then raises KeyboardInterrupt.
        """
        with _plain_interrupt():
            try:
                ended = self._ended.wait(timeout)
            except KeyboardInterrupt:
                self.stop()
                raise
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self, patience: float = PATIENCE) -> None:
        """Stop the run, and return when it has ended. A run that has ended is left alone.

        A micro-batch under way is committed first; one that takes longer than `patience` seconds is cut off, and is run
        again by the next run. A batch is cut off, and changes nothing.
        """
        if self._ended.is_set():
            return
        self._work.stop(patience)
        if not self._ended.wait(_END):
            raise TimeoutError(f"pipeline {self.pipeline} has not stopped: a sink or a source does not return")

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if kind is None and self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        return f"<run of {self.pipeline}: {self.summary}>"

    def _repr_html_(self) -> str:
        """The state as an HTML table."""
        behind = self._behind() if self.is_running else None
        return as_html(self.pipeline, self.summary, self._progress, behind)

    def _ipython_display_(self) -> None:
        """Show the state in a notebook as a table that changes in place until the run ends."""
        display = live_display()
        if display is None:
            sys.stdout.write(f"{self!r}\n")  # a terminal cannot update output in place
            return
        self._displays.append(display)
        self._show(last=self._ended.is_set())

    def begin(self, work: RunningWork, held: AbstractContextManager[Any]) -> None:
        """Follow the work in a thread until it ends, then leave `held`: the store and the Spark session.

        This method, `on_batch`, `on_wait` and `on_tasks` are for `millrace.running.start`, not for users.
        """
        self._work = work
        # The thread is not a daemon, so that the interpreter does not exit while Spark calls into Python.
        threading.Thread(target=self._follow, args=(held,), name=f"millrace {self.pipeline}").start()

    def on_batch(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        """Record a micro-batch, and update the displays."""
        self._totals = self._totals.after(progress)
        self._progress = progress
        notice = clock_notice(progress.clock_moved)
        if notice is not None:
            _LOGGER.warning("pipeline %s: %s", self.pipeline, notice)
        self._show()

    def on_wait(self, waiting: Waiting | None) -> None:
        """Record what the run waits for, or None if it runs again, and update the displays."""
        self._waiting = waiting
        _LOGGER.warning("pipeline %s: %s", self.pipeline, "running again" if waiting is None else waiting)
        self._show()

    def on_tasks(self, done: int, total: int) -> None:
        """Record the finished tasks of a batch, and update the displays."""
        self._tasks = done, total
        self._show()

    def _follow(self, held: AbstractContextManager[Any]) -> None:
        try:
            with held:
                self._outcome = self._work.finish()
        except BaseException as error:
            self._error = error
            # The user may never call wait(), so the error is logged, too.
            _LOGGER.error("pipeline %s failed: %s", self.pipeline, error)
        finally:
            self._show(last=True)  # before wait() returns, so that a waiting cell shows it
            self._ended.set()

    def _show(self, last: bool = False) -> None:
        for display in self._displays:
            with suppress(Exception):  # this may run within a micro-batch, which a failing notebook must not break
                display.update(self._repr_html_(), repr(self), last)


@contextmanager
def _plain_interrupt() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt and do nothing else.

    A session that the user started has a handler of PySpark's, which cancels all jobs: the micro-batch under way would
    fail instead of being committed.
    """
    handler = signal.getsignal(signal.SIGINT)
    of_pyspark = str(getattr(handler, "__module__", "")).startswith("pyspark")
    if not of_pyspark or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
