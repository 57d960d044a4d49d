"""The fused edges inside a Spark task: they read splits of sources and send messages to the shards.

A bundle is decoded once and processed by every output that reads its source. Records that do not fit the schema, and
rows for which an expression has no value, become dead letters; the others are processed.
"""

import json
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.edge.connection import ROW_ERRORS, ROW_NUMBER
from millrace.edge.decode import JsonDecoder, Misfit, look_like_objects
from millrace.edge.fused import Fused, IsLate, columns_read
from millrace.edge.records import RecordDecoder, text_of
from millrace.edge.taken import Taken
from millrace.formats.texts import SPACES
from millrace.model.arrow import arrow_type
from millrace.model.late import TooLate
from millrace.model.query import Query
from millrace.model.stream import EventTime, Source, Stream, event_times, own_sources
from millrace.model.watermark import Seen
from millrace.model.window import Custom
from millrace.panes.advance import Panes
from millrace.panes.arms import Ints
from millrace.panes.blobs import to_bytes
from millrace.panes.columns import RowsFailedError
from millrace.panes.hashing import hash_keys
from millrace.panes.late import LateJudge
from millrace.panes.lift import assigned, lift
from millrace.panes.store import stack
from millrace.plan.compile import why_lifted
from millrace.plan.plan import Stage
from millrace.plan.stages import from_source
from millrace.sources.arrived import Arrived, arrivals, arrived_in
from millrace.sources.bundle import LOGGED, Bundle, Split, Times
from millrace.sources.looked import Looked, combined
from millrace.spark.answers import as_answers
from millrace.spark.job import Job, PackedJob
from millrace.spark.messages import DEAD, DEAD_LETTERS, NO_STAGE, PARTIALS, ROWS, Message, TaskReport
from millrace.spark.side_rows import by_key, side_rows, typed
from millrace.spark.snapshots import read_snapshot

DEDUP_SHARD = 0
"""The shard that runs the dedup of an output, and all operators after it."""


@dataclass(slots=True)
class Sent:
    """The rows and event times that a task has collected for one output."""

    rows: list[pa.Table] = field(default_factory=list)
    seen: dict[int, Seen] = field(default_factory=dict)
    right: list[pa.Table] = field(default_factory=list)
    """For a join: the rows of its right side."""


@dataclass(slots=True)
class Letters:
    """The dead letters of one bundle."""

    source: str
    bundle: Bundle
    split: Split
    rows: list[dict[str, Any]] = field(default_factory=list)
    places: set[tuple[int, str | None]] = field(default_factory=set)
    whole: pa.Table | None = None
    """All columns of the records, read for the first dead letter."""

    def reject(self, misfit: Misfit) -> None:
        """Make a record that does not fit the schema a dead letter: no output can read it."""
        self._add(misfit.row, None, misfit.problem, misfit.reason, misfit.hint)

    def add(self, place: int, output: str, reason: str, hint: str | None = None, problem: str | None = None) -> None:
        """Make a record a dead letter of an output, once, however many of its rows are set aside."""
        self._add(place, output, problem or reason, reason, hint)

    def _add(self, place: int, output: str | None, problem: str, reason: str, hint: str | None) -> None:
        if (place, output) in self.places:
            return
        self.places.add((place, output))
        if self.bundle.texts is not None or self.bundle.encoded is not None:
            value = text_of(self.bundle, place)
        else:
            self.whole = self.split.read().rows if self.whole is None else self.whole
            value = json.dumps(self.whole.slice(place, 1).to_pylist()[0], default=str)  # type: ignore[union-attr]
        value = None if value is None else value.strip(SPACES)
        self.rows.append(
            {
                "source": self.source,
                "origin": self.bundle.origin,
                "partition": self.bundle.partition,
                "offset": int(self.bundle.offsets[place]),
                "output": output,
                "problem": problem,
                "reason": reason,
                "hint": hint,
                "value": value,
                "raw": self._raw(place, value),
            }
        )

    def _raw(self, place: int, value: str | None) -> str | None:
        """The bytes of a record in base 64, if the source has them and they are not those of its text."""
        raw = None if self.bundle.raw is None else self.bundle.raw[place].as_py()
        return None if raw is None or (value is not None and raw == value.encode()) else b64encode(raw).decode()


class FusedReader:
    """The fused edges of a job, ready to read splits."""

    def __init__(self, job: Job, tables: Mapping[str, pa.Table]) -> None:
        """Prepare the statements. `tables` holds the rows of tables that may change, by name."""
        self._job = job
        self._panes = [panes_of(stage) for stage in job.stages]
        fused = [(number, job.stages[number]) for number in job.plan.fused]
        self._deduped = {number for number, stage in fused if stage.dedup is not None}
        self._readers = [Reading(fused, source, tables) for source in job.sources]

    def messages(
        self, splits: Sequence[tuple[int, Split]], times: dict[int, Times], task: int, now: int,
        watermarks: Mapping[int, int],
    ) -> list[Message]:  # fmt: skip
        """The messages to the shards for some splits, each with the number of its source; `times` is by stage.

        Records of sources that know no log times were logged `now`. `watermarks` is by stage: that of a stage which
        keeps late records.
        """
        began = time.process_time()
        sent = {number: Sent() for number in times}
        letters: list[dict[str, Any]] = []
        arrived, looks = list[Mapping[str, Arrived]](), list[Mapping[str, Looked]]()
        by_shape = Counter[str]()
        for number, split in splits:
            bundle = split.read(self._readers[number].wanted)
            source = self._job.sources[number]
            arrived.append({source.name: arrived_in(bundle)})
            looks.append({source.name: self._readers[number].look(bundle)})
            before = self._readers[number].by_shape
            letters += self._readers[number].take(bundle, split, sent, now, watermarks)
            by_shape[source.name] += self._readers[number].by_shape - before
        spent = time.process_time() - began
        counted = TaskReport(
            Times(0, 0), arrived=arrivals(arrived), spent=spent, looked=combined(looks), by_shape=+by_shape
        )
        return list(self._packed(sent, times, letters, task, counted))

    def _packed(
        self, sent: dict[int, Sent], times: dict[int, Times], letters: list[dict[str, Any]], task: int,
        counted: TaskReport,
    ) -> Iterator[Message]:  # fmt: skip
        sequence = task << 32
        for number, made in sent.items():
            panes = self._panes[number]
            report = TaskReport(times[number], made.seen)
            if number in self._deduped:
                rows_before = stack(made.rows) if made.rows else None
                payload = None if rows_before is None else to_bytes(rows_before)
                yield Message(DEDUP_SHARD, number, sequence, PARTIALS, report.to_json(), payload)
            elif (join := self._job.stages[number].join) is not None:
                for side, tables in enumerate((made.rows, made.right)):
                    seen = made.seen if side == 0 else {}
                    report = TaskReport(times[number], seen, side=side)
                    yield from by_key(join.spec, number, sequence, tables, report, self._job.shards)
            elif panes is None:
                for table in made.rows:
                    sequence += 1
                    if len(table):
                        rows = as_answers(self._job.stages[number].of, table)
                        yield Message(0, number, sequence, ROWS, payload=to_bytes(rows))
            else:
                yield from by_shard(panes, number, sequence, made.rows, report, self._job.shards)
        if letters:
            table = pa.Table.from_pylist(letters, DEAD_LETTERS)
            yield Message(0, NO_STAGE, sequence, DEAD, payload=to_bytes(table))
        yield Message(0, NO_STAGE, sequence, PARTIALS, counted.to_json())


class Reading:
    """One source and the fused outputs that read it."""

    def __init__(
        self,
        fused: Sequence[tuple[int, Stage]],
        source: Source,
        tables: Mapping[str, pa.Table],
        named: str | None = None,
    ) -> None:
        """Prepare the statements of stages, by number. Dead letters name the source, or what is `named` instead."""
        self._source, self._named = source, named or source.name
        self._takers = [
            Taker(number, stage, source, tables, side)
            for number, stage in fused
            for side, stream in stage.own_streams
            if source in own_sources(stream)
        ]
        self.wanted = {name for _, stage in fused for name in columns_read(stage.of)} | {*source.schema.required}
        self._decoder = RecordDecoder(source, self.wanted)
        self._is_clean = True
        """Whether the last bundle had no dead letters."""

    @property
    def by_shape(self) -> int:
        """How many records have been decoded by shape."""
        return self._decoder.by_shape

    def look(self, bundle: Bundle) -> Looked:
        """Look at the fields of the first records of a bundle."""
        return self._decoder.look(bundle)

    def take(
        self, bundle: Bundle, split: Split, sent: dict[int, Sent], now: int = 0,
        watermarks: Mapping[int, int] | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Process the bundle of a split for every output, and return the dead letters.

        `watermarks` is by output: those before the micro-batch, by which outputs that keep late records find them.
        """
        if not len(bundle):
            return []
        for taker in self._takers:
            taker.judge_by((watermarks or {}).get(taker.number))
        letters, logged = Letters(self._named, bundle, split), pa.array(bundle.log_times(now))
        is_json = bundle.texts is not None and bundle.cells is None and bundle.metadata is None
        if not (is_json and self._is_clean and self._take_at_once(bundle.texts, logged, sent)):
            self._take_rows(*decoded(self._decoder, letters), logged, sent, letters)
        self._is_clean = not letters.rows
        return letters.rows

    def _take_at_once(self, texts: pa.Array, logged: pa.Array, sent: dict[int, Sent]) -> bool:
        """Decode and aggregate in one statement, if only one output reads the source; whether that succeeded.

        Otherwise nothing was processed, and each record must be checked.
        """
        json = self._decoder.json
        if len(self._takers) != 1 or not json.is_one_statement or json.by_shape.takes(texts):
            return False
        if not look_like_objects(texts):
            return False
        (taker,) = self._takers
        return taker.take_texts(texts, logged, json, sent[taker.number])

    def _take_rows(
        self, rows: pa.Table, places: npt.NDArray[np.int64], logged: pa.Array, sent: dict[int, Sent], letters: Letters
    ) -> None:
        # A table without columns, which has no length, stands for rows of which no output reads a column.
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        numbers = pa.array(places)
        times = logged if len(places) == len(logged) else logged.take(numbers)
        rows = pa.table({**columns, ROW_NUMBER: numbers, LOGGED: times})
        for column in self._source.schema:
            if column.name not in rows.column_names:  # no output reads it
                rows = rows.append_column(column.name, pa.nulls(len(rows), arrow_type(column.type)))
        for taker in self._takers:
            taker.take(rows, sent[taker.number], letters)


class Taker:
    """One output that is fused to one source."""

    def __init__(
        self, number: int, stage: Stage, source: Source, tables: Mapping[str, pa.Table], side: int = 0
    ) -> None:
        """Prepare the statement. `side` is that of a join. Raises CannotFuseError if there is none."""
        self.number, self._output, self._source = number, stage.id, source
        of = stage.of if stage.dedup is None else stage.dedup.above
        self._join = stage.join
        if self._join is not None:
            of = self._join.sides[side]
        self._side = side
        logged = stage.dedup is not None and stage.dedup.needs_log_times
        ordered = stage.dedup is not None
        lifts = why_lifted(of, stage.is_read)
        of = from_source(of, source)
        self._of = of
        self._compile = partial(Fused, source=source, tables=tables, ordered=ordered, logged=logged, lifts=lifts)
        self._fused = self._compile(of)
        self._from_texts: Fused | None = None
        self._ahead = _guard_of(of)
        """How far ahead of the log time an event may be, while no record so far may have been further; then None."""
        node = self._fused.event_time
        before = len(stage.estimators(0)) if side else 0  # the nodes of the left side come first
        nodes = [id(each) for each in event_times(stage.stream if self._join is None else self._join.sides[side])]
        self._node = None if node is None else before + nodes.index(id(node))
        self._panes = panes_of(stage) if isinstance(of, Query) and self._fused.lifts else None
        self._judge: LateJudge | None = None
        """Finds the rows that are too late; None if they are not kept."""

    def judge_by(self, watermark: int | None) -> None:
        """From now on, make dead letters of rows that are too late by a watermark; of none if it is None."""
        of = self._of
        keeps = watermark is not None and isinstance(of, Query) and of.keeps_late
        self._judge = LateJudge(of, self._output, watermark) if keeps else None  # type: ignore[arg-type]

    def take(self, rows: pa.Table, sent: Sent, letters: Letters) -> None:
        """Process rows; those without an event time, or without a value for an expression, become dead letters."""
        if not len(rows):
            return
        try:
            taken = self._fused.take(rows, self._is_late)
        except ROW_ERRORS as error:
            self._take_halves(rows, sent, letters, str(error).splitlines()[0])
            return
        self._add(taken, sent, letters)
        for place, why in taken.timeless:
            letters.add(place, self._output, why.reason, why.hint, why.problem)
        for place, reason in taken.bad:
            letters.add(place, self._output, reason)
        if self._judge is not None and taken.late:
            places, slices = zip(*taken.late, strict=True)
            for row, late in self._judge.of_slices(np.array(slices)).items():
                letters.add(places[row], self._output, late.reason, late.hint, late.problem)

    @property
    def _is_late(self) -> IsLate | None:
        return None if self._judge is None else self._judge.slices

    def _take_halves(self, rows: pa.Table, sent: Sent, letters: Letters, error: str) -> None:
        """Bisect rows on which DuckDB fails unexpectedly, so that only the failing row becomes a dead letter."""
        if len(rows) == 1:
            letters.add(rows[ROW_NUMBER][0].as_py(), self._output, error)
            return
        half = len(rows) // 2
        self.take(rows.slice(0, half), sent, letters)
        self.take(rows.slice(half), sent, letters)

    def take_texts(self, texts: pa.Array, logged: pa.Array, decoder: JsonDecoder, sent: Sent) -> bool:
        """Process records that are not decoded yet; False, with nothing processed, if a record may be a dead letter."""
        if not self._fused.is_one_statement:
            return False
        if self._from_texts is None:
            self._from_texts = self._compiled_for_texts(decoder)
        records = pa.table({"value": texts} if self._ahead is not None else {"value": texts, LOGGED: logged})
        if not self._from_texts.decodes_all(records):
            return False
        try:
            taken = self._from_texts.take(records, self._is_late)
        except ROW_ERRORS:
            return False
        newest = max(taken.seen.newest, taken.seen.closed)
        if self._ahead is not None and newest - self._ahead > pc.min(logged).as_py():
            self._ahead = self._from_texts = None  # from now on, the statement looks at each record
            return self.take_texts(texts, logged, decoder, sent)
        # If a joined table has no matching row, DuckDB may not read all records, so not all were checked.
        if taken.timeless or taken.bad or taken.late or (self._from_texts.has_tables and not len(taken.rows)):
            return False
        return self._add(taken, sent, None)

    def _compiled_for_texts(self, decoder: JsonDecoder) -> Fused:
        """The statement over texts. It compares event times with log times only if one may be too far ahead."""
        of = self._of if self._ahead is None else _unguarded(self._of)
        return self._compile(of, decoded=decoder.sure(self._compile(of).hidden))

    def _add(self, taken: Taken, sent: Sent, letters: Letters | None) -> bool:
        """Add a result; False, with nothing added, if a row must become a dead letter but `letters` is None."""
        rows = taken.rows
        if len(rows) and self._panes is not None:
            rows, failed = lifted(self._panes, rows, np.ones(len(rows), np.int64) if self._panes.changes else None)
            late = self._late_among(taken.rows, rows, failed)
            if (failed or late) and letters is None:
                return False
            for row, reason in failed.items():
                place = taken.rows[ROW_NUMBER][row].as_py()
                letters.add(place, self._output, reason)  # type: ignore[union-attr]
            for row, why in late.items():
                place = taken.rows[ROW_NUMBER][row].as_py()
                letters.add(place, self._output, why.reason, why.hint, why.problem)  # type: ignore[union-attr]
        if len(rows) and self._join is not None:
            (sent.right if self._side else sent.rows).append(side_rows(self._join, self._side, rows, self._source))
        elif len(rows):
            sent.rows.append(rows)
        self._see(taken.seen, sent)
        return True

    def _late_among(self, rows: pa.Table, made: pa.Table, failed: Iterable[int]) -> dict[int, TooLate]:
        """The lifted rows that are too late, without those that failed. The shards still count them, and drop them."""
        if self._judge is None or not len(made):
            return {}
        good = without(len(rows), failed)
        found = self._judge.of_elements(rows["at"].to_numpy().astype(np.int64)[good], made)
        return {int(good[row]): late for row, late in found.items()}

    def _see(self, seen: Seen, sent: Sent) -> None:
        if self._node is not None:
            sent.seen[self._node] = sent.seen.get(self._node, Seen()) + seen


def panes_of(stage: Stage) -> Panes | None:
    """The panes of a stage; None if it has no query."""
    query = stage.query
    return None if query is None else Panes(query, query.reads_retractions, stage.is_read)


def _guard_of(of: Query | Stream) -> int | None:
    """How far ahead of the log time the events of a query may be, if its statement also returns the newest event."""
    return of.stream.ahead if isinstance(of, Query) and isinstance(of.stream, EventTime) else None


def _unguarded(of: Query | Stream) -> Query:
    assert isinstance(of, Query)
    assert isinstance(of.stream, EventTime)
    return replace(of, stream=replace(of.stream, ahead=None))


def decoded(decoder: RecordDecoder, letters: Letters) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The rows of a bundle and their indexes in it; records that do not fit become dead letters."""
    rows, misfits = decoder.decode(letters.bundle)
    for misfit in misfits:
        letters.reject(misfit)
    return rows, without(len(letters.bundle), [misfit.row for misfit in misfits])


def by_shard(
    panes: Panes, number: int, sequence: int, partials: list[pa.Table], report: TaskReport, shards: int
) -> Iterator[Message]:
    """A message to each shard, with the partials of its keys."""
    text = report.to_json()
    if not partials:
        for shard in range(shards):
            yield Message(shard, number, sequence, PARTIALS, text)
        return
    whole = stack(partials).combine_chunks()
    hashes = hash_keys([whole[name].chunk(0) for name in panes.keys], len(whole))
    owners = hashes % np.uint64(shards)
    for shard in range(shards):
        own = whole if shards == 1 else whole.filter(pa.array(owners == shard))
        yield Message(shard, number, sequence, PARTIALS, text, to_bytes(own) if len(own) else None)


def lifted(panes: Panes, rows: pa.Table, diffs: Ints | None = None) -> tuple[pa.Table, dict[int, str]]:
    """The partials of unaggregated rows, and the rows for which a user's function has no value, with the reasons.

    The partials leave those rows out. Rows that are changes have `diffs`.
    """
    if not len(rows):
        return pa.table({}), {}
    try:
        return _lifted(panes, rows, diffs), {}
    except RowsFailedError as error:
        left = without(len(rows), error.rows)
        made, more = lifted(panes, rows.take(pa.array(left)), None if diffs is None else diffs[left])
        failed = {int(left[row]): reason for row, reason in more.items()}
        for row, reason in error.rows.items():
            failed[row] = reason + panes.query.of_key(tuple(rows[key][row].as_py() for key in panes.keys))
        return made, failed


def without(many: int, left_out: Iterable[int]) -> npt.NDArray[np.intp]:
    """The numbers below `many`, without some."""
    numbers, places = np.arange(many), list(left_out)
    return np.delete(numbers, places) if places else numbers


def _lifted(panes: Panes, rows: pa.Table, diffs: Ints | None) -> pa.Table:
    query = panes.query
    rows = rows.combine_chunks()
    at = rows["at"].to_numpy().astype(np.int64)
    keys = [
        typed(rows[key], query.stream.schema.type_of(name)) for key, name in zip(panes.keys, query.keys, strict=True)
    ]
    arguments = [
        [typed(rows[f"a{n}_{p}"], argument.type) for p, argument in enumerate(computed.arguments)]
        for n, computed in enumerate(query.computed)
    ]
    windows = None
    if isinstance(query.windowing, Custom):
        names = query.stream.schema.names
        given = rows.select([f"row_{name}" for name in names]).rename_columns(names).to_pylist()
        windows = assigned(query.windowing, at.tolist(), given)
    return lift(panes, keys, at, arguments, windows, diffs)


@lru_cache(8)
def reader_of(packed: PackedJob, tables: tuple[tuple[str, str], ...]) -> FusedReader:
    """The fused edges of a job, with tables by the paths of their snapshots, cached in the worker."""
    return FusedReader(packed.job, {name: read_snapshot(path) for name, path in tables})
