"""The batch layer: recomputes windows that are over from an archive, and replaces the answers of the stream.

Windows that end by the boundary, for which the archive has all records, belong to the batch layer: later answers of
the stream for them are discarded, and the next run of the batch layer recomputes them. Windows after the boundary
belong to the stream.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from millrace.eventlog.durable import write_whole
from millrace.eventlog.topics import existing_log
from millrace.model.aggregate import max_
from millrace.model.duration import to_datetime, to_instant
from millrace.model.errors import PipelineError, refuse
from millrace.model.pane import Mode
from millrace.model.pipeline import Pipeline
from millrace.model.query import Query
from millrace.model.stream import EventTime, Source, Stream, find_event_time, reads_changes, with_sources
from millrace.model.watermark import BoundedDelay
from millrace.model.window import Calendar, Fixed, Sliding, all_time
from millrace.running.archive import archive
from millrace.running.ending import told_to_end
from millrace.running.lease import Lease
from millrace.running.placement import check_placement
from millrace.running.preflight import serving
from millrace.running.run import unless_told
from millrace.running.settings import Locations
from millrace.running.streaming import typed
from millrace.running.views import KeptViews, lookups, read_boundary
from millrace.views.store import Store, open_store

_NEWEST = "millrace_newest_"


def run_batch_layer(console: Console, pipeline: Pipeline, home: Locations) -> str:
    """Extend the archive and recompute the windows that are over; returns the outcome in a line."""
    check_layers(pipeline)
    check_placement(pipeline, home)
    with told_to_end() as told, Lease(pipeline.name, home.master, conf=home.conf) as lease:
        return compute_batch_layer(typed(pipeline, home, lease), home, lease, told)


def check_layers(pipeline: Pipeline) -> None:
    """Refuse a pipeline that has no batch layer."""
    if not all(source.archive for source in pipeline.sources):
        raise PipelineError("the batch layer needs every source to be layers(batch=files(...), speed=log(...))")
    for name, of in pipeline.views.items():
        _delay(name, _only_stage(name, of))


def compute_batch_layer(pipeline: Pipeline, home: Locations, lease: Lease, told: Sequence[int]) -> str:
    """Run the batch layer on a leased session; a signal in `told` cancels it."""
    from millrace.spark import batch

    queries = {name: _only_stage(name, of) for name, of in pipeline.views.items()}
    delays = {name: _delay(name, query) for name, query in queries.items()}
    again = f"{home.command('run')} --layer batch"
    added = sum(archive(existing_log(home.log, source.name), source, again) for source in pipeline.sources)
    asked = {name: replace(query, stream=with_sources(query.stream, _archive)) for name, query in queries.items()}
    newest = {f"{_NEWEST}{name}": _newest(query) for name, query in asked.items()}
    spark = lease.session(home.checkpoint / "batch.log")
    whole = Pipeline(pipeline.name, {**asked, **newest})
    gathered = unless_told(
        told, spark, lambda: batch.collect(spark, whole, log=home.log, lookups=lookups(pipeline, home.store))
    )
    if gathered is None:
        return f"stopped: {added:,} records archived; the served views have not changed"
    found = gathered.answers
    seen = {name: found[f"view {_NEWEST}{name}"]["newest"].to_pylist() for name in asked}
    if not all(seen.values()):
        return f"{added:,} records archived; there is nothing to compute yet"
    until = min(to_instant(seen[name][0]) - delay for name, delay in delays.items())
    boundary = max(until, read_boundary(home.boundary) or until)
    write_whole(home.boundary, lambda path: path.write_text(str(boundary), encoding="utf-8"))
    with closing(open_store(home.store)) as store:
        generation = serving(store, pipeline.name)
        views = KeptViews(store, pipeline, generation)
        views.open()
        answers = {name: _differences(store, name, found[f"view {name}"], boundary) for name in asked}
        views.correct(answers)
    changed = sum(map(len, answers.values()))
    return f"{added:,} records archived; {changed:,} rows put right in windows that ended by {to_datetime(boundary)}"


def _archive(source: Source) -> Source:
    assert source.archive is not None
    return Source("files", source.archive, source.schema, (("format", "parquet"),), source.place)


def _only_stage(name: str, of: Query | Stream) -> Query:
    """The query of a view. Refuses one over the answers of other queries."""
    if not isinstance(of, Query) or reads_changes(of.stream):
        raise refuse(f"view {name}: layers do not support queries over the answers of other queries", of.place)
    return of


def _delay(name: str, query: Query) -> int:
    """The watermark delay of a view. Refuses views that the batch layer cannot compute."""
    event_time = find_event_time(query.stream)
    if not isinstance(query.windowing, Fixed | Sliding | Calendar):
        raise refuse(f"view {name}: layers need fixed, sliding or calendar windows, not {query.windowing}", query.place)
    if query.mode is Mode.DISCARDING:
        raise refuse(f"view {name}: layers do not support discarding()", query.place)
    if not isinstance(event_time, EventTime) or not isinstance(event_time.estimator.policy, BoundedDelay):
        raise refuse(f"view {name}: layers need event_time(..., delay=...) to know when a window is over", query.place)
    return event_time.estimator.policy.delay


def _newest(query: Query) -> Query:
    event_time = find_event_time(query.stream)
    assert event_time is not None
    return query.stream.window(all_time()).aggregate(newest=max_(event_time.column))


def _differences(store: Store, view: str, computed: pa.Table, boundary: int) -> pa.Table:
    """The answers that replace a view's rows up to the boundary by the computed rows."""
    held = store.rows(view).rows
    over = computed.filter(pc.less_equal(computed["window_end"].cast(pa.int64()), boundary))
    gone = held.filter(pc.less_equal(held["window_end"].cast(pa.int64()), boundary))
    taken_back = [
        pa.array([-1] * len(gone), field.type) if field.name not in gone.column_names else gone[field.name]
        for field in computed.schema
    ]
    return pa.concat_tables([pa.table(taken_back, schema=computed.schema), over])
