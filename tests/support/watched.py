"""A project as a run of a pipeline leaves it, made by hand and served by a real server: what the page shows."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyarrow as pa

from millrace import Pipeline, agg, log, on, window
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.letters.letter import LetterSource, Rejected
from millrace.model.arrow import arrow_schema
from millrace.model.connectors import Commit
from millrace.model.query import Query
from millrace.plan.flow import flow_of
from millrace.running.status import note
from millrace.running.views import KeptViews
from millrace.running.waiting import Waiting
from millrace.sources.arrived import Latency
from millrace.spark.answers import schema_of
from millrace.spark.progress import BatchProgress, PartProgress
from millrace.spark.recent import Recent, write_flow
from millrace.views.store import open_store

HOUR = 3_600_000_000
NOON = 1_767_268_800_000_000
"""2026-01-01 12:00 UTC."""
PLAYS = log("plays", schema="user STRING, track STRING, ms BIGINT, at TIMESTAMP")
_TIMED = PLAYS.event_time("at", delay="10s")
HOURLY = (
    _TIMED.group_by("track")
    .window(window.fixed("1h"), lateness="1d")
    .trigger(on.watermark(early=on.every("10s"), late=on.each()))
    .retracting()
    .aggregate(plays=agg.count(), listeners=agg.approx_distinct("user"))
)
TOTAL = _TIMED.window(window.all_time()).trigger(on.each()).retracting().aggregate(ms=agg.sum("ms"))
VISITS = (
    _TIMED.group_by("user").window(window.session("30m")).trigger(on.each()).accumulating().aggregate(plays=agg.count())
)
QUERIES = {"hourly_plays": HOURLY, "total": TOTAL, "visits": VISITS}
PIPELINE = Pipeline("charts", QUERIES)
LONG = "The Long Way Round the Mill Pond and Back Again Before the Rain (Live at the Weir, Remastered)"
BAD = '{"user": "x", "at": "yesterday"}'
REASON, HINT = "at is not TIMESTAMP", "write it as 2026-01-31T12:00:00Z"


def answers(query: Query, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Answers of a query; what a row leaves out is as in an early first pane."""
    usual = {"diff": 1, "timing": "early", "index": 0, "last": False}
    return pa.Table.from_pylist([{**usual, **row} for row in rows], arrow_schema(schema_of(query)))


def hourly(
    track: str | None, plays: int, diff: int = 1, timing: str = "early", index: int = 0, hour: int = 0
) -> dict[str, Any]:
    """An answer about the plays of a track in an hour after noon."""
    start = NOON + hour * HOUR
    return {"track": track, "window_start": start, "window_end": start + HOUR, "plays": plays, "listeners": plays // 2,
            "diff": diff, "timing": timing, "index": index}  # fmt: skip


def visit(user: str, start: int, end: int, plays: int) -> dict[str, Any]:
    """An answer about a session, in minutes after noon."""
    minute = HOUR // 60
    return {"user": user, "window_start": NOON + start * minute, "window_end": NOON + end * minute, "plays": plays}


@dataclass(slots=True)
class Project:
    """A project with a pipeline `charts` that seems to run."""

    folder: Path
    held: ExitStack
    batches: int = 0
    commits: int = 0
    rows: int = 0
    began: float = field(default_factory=lambda: round(time.time()) - 7_200.0)
    _views: KeptViews | None = field(default=None)

    @property
    def log(self) -> Log:
        """The log."""
        return Log(self.folder / "log.db")

    @property
    def checkpoint(self) -> Path:
        """The folder of the run."""
        return self.folder / "charts"

    def commit(self, **rows: Sequence[dict[str, Any]]) -> None:
        """Commit answers to views, by name."""
        if self._views is None:
            self._views = KeptViews(open_store(self.folder / "views.db"), PIPELINE)
        given = {name: answers(QUERIES[name], rows.get(name, ())) for name in PIPELINE.views}
        self._views.write(given, Commit("charts", "one", self.commits), once=True)
        self.commits += 1

    def batch(self, rows: int, age: float = 0.0, lag: int = 10_000_000, **others: Any) -> BatchProgress:
        """Report a micro-batch that ended some seconds ago."""
        at = time.time() - age
        mark = round((at - lag / 1e6) * 1e6)
        part = PartProgress(mark, lag, 16, 46_000, 3, 21, 0, ("log plays",), elements=rows)
        progress = BatchProgress(
            self.batches, rows, 0.5, 0, {"view hourly_plays": part, "view total": part, "view visits": part},
            {"run": 0.4, "write": 0.05, "edge": 0.2, "panes": 0.1}, sources={"plays": rows, "ticks": 0},
            latency=Latency(0.8, 1.6),
        )  # fmt: skip
        self.batches += 1
        self.rows += rows
        Recent(self.checkpoint).add(progress, at, self.began)
        note(self.checkpoint, "charts", progress, 2, 0, rows=self.rows, answers=99, at=at, **others)
        return progress

    def wait(self, problem: str, advice: str) -> None:
        """Report that the run waits."""
        now = time.time()
        note(self.checkpoint, "charts", None, 0, 0, waiting=Waiting(problem, advice, now - 5, now + 5))

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the run end for a while."""
        self.held.close()
        try:
            yield
        finally:
            self.hold()

    def hold(self) -> None:
        """Lock the checkpoint, as a run does."""
        file = self.held.enter_context((self.checkpoint / "lock").open("wb"))
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def project(folder: Path) -> Iterator[Project]:
    """A project with records, answers, corrections, dead letters and a minute of micro-batches."""
    with ExitStack() as held:
        made = Project(folder, held)
        made.checkpoint.mkdir(parents=True)
        made.hold()
        made.log.create("plays", partitions=2)
        made.log.create("ticks")
        texts = [
            json.dumps({"user": f"u{n}", "track": "Weir", "ms": 40_000 + n, "at": "2026-01-01T12:00:00Z"})
            for n in range(60)
        ]
        made.log.append("plays", [*texts, BAD], [f"u{n}" for n in range(61)])
        made.log.report("charts", "plays", made.log.ends("plays"))
        tracks = [("Weir", 3), ("Delta", 12), ("Eddy", 7), (None, 1), (LONG, 2)]
        made.commit(
            hourly_plays=[*(hourly(*each) for each in tracks), hourly("Weir", 1, hour=1)],
            total=[{"ms": 2**60 + 1}], visits=[visit("ann", 0, 40, 2), visit("ann", 50, 90, 3)],
        )  # fmt: skip
        made.commit(hourly_plays=[hourly("Weir", 3, -1, "on-time", 1), hourly("Weir", 5, 1, "on-time", 1)])
        made.commit(
            hourly_plays=[hourly("Weir", 5, -1, "late", 2), hourly("Weir", 6, 1, "late", 2)],
            visits=[visit("ann", 0, 90, 6)],
        )  # fmt: skip
        write_flow(made.checkpoint, flow_of(PIPELINE))
        for age in range(60, 0, -1):
            made.batch(100 + age % 7, age)
        source = LetterSource("plays", "log", PLAYS.schema, ("view hourly_plays",), made.log.uid_of("plays"))
        letters = [
            Rejected("plays", "plays/0", 0, 30 + n, None, REASON, f"{REASON}: 'yesterday'", HINT, BAD) for n in range(2)
        ]
        box_of(folder, "charts").put(letters, {"plays": source}, "one", 0, NOON)
        box_of(folder, "charts").serve("one", {"plays": source}, lambda letter, uid: False)
        yield made


@dataclass(slots=True)
class Served:
    """A server in a process of its own, which can be killed and started again."""

    folder: Path
    port: int
    options: tuple[str, ...] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def address(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        places = ("--folder", ".", "--log", "log.db", "--store", "views.db", "--port", str(self.port))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millrace", "serve", *places, *self.options],
            cwd=self.folder, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONWARNINGS": "default"},
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                urlopen(f"{self.address}/healthz").close()
                return
            except URLError:
                assert self._process.poll() is None, "the server has ended"
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    """A server over a project."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Served(folder, port, options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
