"""The batch host: a pipeline over all that its sources hold, on Spark.

All input, then the watermark at the end of time (rule 11): the same edge and the same `advance` as in a stream, once
for each shard, in a grouped map. The answer is the last pane of each key and window.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace.edge.dedup import deduped
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME
from millrace.model.pipeline import Pipeline
from millrace.model.query import Query
from millrace.panes.advance import Panes, State
from millrace.panes.blobs import from_bytes, to_bytes
from millrace.panes.grouping import identify
from millrace.panes.store import stack
from millrace.sources.memory import Script
from millrace.spark.dedup import Deduplicating
from millrace.spark.envelope import reported
from millrace.spark.failure import plain_error
from millrace.spark.gather import Gathered, gather
from millrace.spark.messages import DEAD, DEAD_LETTERS, FROM_SHARD, NO_PART, PANES, PARTIALS, ROWS, STATUS
from millrace.spark.outputs import check_places, of_views, parts_of, writers_of
from millrace.spark.plan import DEFAULT_LOG, Packed, Plan
from millrace.spark.progress import ShardStatus
from millrace.spark.session import labels_of, streaming
from millrace.spark.settled import settled
from millrace.spark.snapshots import Lookup
from millrace.spark.source import read_messages
from millrace.spark.unanswered import letters_of
from millrace.spark.writers import FileWriter, Views

OnTasks = Callable[[int, int], None]
"""What is called now and then with how many tasks are done, and how many there are."""


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    views: Views | None = None,
    *,
    dead_letters: str | Path | None = None,
    log: str | Path = DEFAULT_LOG,
    lookups: Mapping[str, Lookup] | None = None,
    scripts: Mapping[str, Script] | None = None,
    fuse: bool = True,
    shards: int | None = None,
    on_tasks: OnTasks | None = None,
) -> Gathered:
    """Compute a pipeline once and put the answers in place of what its views and sinks held."""
    pipeline = settled(spark, pipeline)
    writers = writers_of(pipeline, str(Path(log).absolute()))
    gathered = collect(
        spark, pipeline, log=log, lookups=lookups, scripts=scripts, fuse=fuse, shards=shards, on_tasks=on_tasks
    )
    if views is not None and pipeline.views:
        views.replace(of_views(pipeline, gathered.answers))
    for name, writer in writers.items():
        writer.replace(gathered.answers[name])
    if dead_letters is not None:
        FileWriter(str(dead_letters), "json").replace(gathered.dead_letters)
    return gathered


def collect(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    log: str | Path = DEFAULT_LOG,
    lookups: Mapping[str, Lookup] | None = None,
    scripts: Mapping[str, Script] | None = None,
    fuse: bool = True,
    shards: int | None = None,
    on_tasks: OnTasks | None = None,
) -> Gathered:
    """Compute a pipeline once."""
    given = scripts or {}
    check_places(pipeline, given, log)
    parts = parts_of(settled(spark, pipeline))
    with TemporaryDirectory(prefix="millrace-batch-") as folder:
        labels = labels_of(shards or spark.sparkContext.defaultParallelism)
        at = str(Path(log).absolute())
        plan = Plan(tuple(parts.values()), labels, folder, at, scripts=given, lookups=lookups or {}, fuse=fuse)
        packed = plan.pack()
        messages = read_messages(streaming(spark, plan.shards), packed, stream=False)
        answering = messages.groupBy("shard").applyInArrow(_answering(packed), FROM_SHARD)
        try:
            with _watched(spark, on_tasks):
                return gather(plan, answering.toArrow())
        except (PySparkException, Py4JError) as error:
            raise plain_error(error) from None


def _answering(packed: Packed) -> Callable[[pa.Table], pa.Table]:
    @reported
    def answer(sent: pa.Table) -> pa.Table:
        ordered = sent.take(pc.sort_indices(sent, sort_keys=[("place", "ascending")]))
        passed = (ordered["kind"].to_numpy() != PARTIALS) | (ordered["part"].to_numpy() == NO_PART)
        through, ordered = ordered.filter(pa.array(passed)), ordered.filter(pa.array(~passed))
        made = []
        for number in pc.unique(ordered["part"]).to_pylist():
            part = packed.plan.parts[number]
            mine = ordered.filter(pc.equal(ordered["part"], number))
            partials = [from_bytes(each) for each in mine["payload"].to_pylist() if each is not None]
            about = {"shard": mine["shard"][0].as_py(), "place": 0}
            parts = deduped(part.of)
            if parts is not None:
                passed = Deduplicating(part.name, parts).take(State(), partials)
                partials = passed.tables
                if passed.letters:
                    letters = to_bytes(pa.Table.from_pylist(passed.letters, DEAD_LETTERS))
                    made.append({**about, "part": NO_PART, "kind": DEAD, "payload": letters})
            if not partials:
                continue
            if not isinstance(part.of, Query):
                made.append({**about, "part": number, "kind": ROWS, "payload": to_bytes(stack(partials))})
                continue
            panes = Panes(part.of)
            state, said = panes.advance(State(), stack(partials), END_OF_TIME, 0)
            if said:
                last = _last(stack(said), panes.keys)
                made.append({**about, "part": number, "kind": PANES, "payload": to_bytes(last)})
            # As with answers, one a key and window; its letters do not say which firing it was.
            unanswered = {letter["value"]: letter for letter in letters_of(part, state.failed)}
            if unanswered:
                letters = to_bytes(pa.Table.from_pylist(list(unanswered.values()), DEAD_LETTERS))
                made.append({**about, "part": NO_PART, "kind": DEAD, "payload": letters})
            status = ShardStatus(number, BEGINNING_OF_TIME, 0, 0, 0, state.dropped, 0.0, len(unanswered))
            made.append({**about, "part": number, "kind": STATUS, "told": json.dumps(asdict(status))})
        return pa.concat_tables([through, pa.Table.from_pylist(made, through.schema)])

    return answer


def _last(said: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """The last pane of each key and window; what was taken back is not an answer."""
    same = identify([said[name].combine_chunks() for name in (*keys, "start", "end")], len(said))
    last = said.take(pa.array(same.lasts))
    return last.filter(pc.greater(last["diff"], 0))


class _watched:  # noqa: N801
    """Tell how many tasks are done, while the block runs."""

    def __init__(self, spark: SparkSession, tell: OnTasks | None) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._tell, self._over = tell, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        if self._tell is not None:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._tell is not None:
            self._thread.join()

    def _watch(self) -> None:
        done = total = 0
        while not self._over.wait(0.2):
            for stage in self._tracker.getActiveStageIds():
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    done, total = max(done, info.numCompletedTasks), max(total, info.numTasks)
            if self._tell is not None:
                self._tell(done, total)
