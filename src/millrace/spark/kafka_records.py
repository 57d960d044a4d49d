"""Answers as records of Kafka: their keys, values, headers and timestamps."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.model.arrow import arrow_schema
from millrace.model.kafka_sink import KafkaSink, key_of
from millrace.model.plain import as_text, to_json
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.spark.answers import free_names, schema_of
from millrace.spark.kafka_transactions import Record
from millrace.spark.kafka_values import Values


class AnswerRecords:
    """Makes records of the answers of a query, or of the rows of a stream."""

    mark = ""

    def __init__(self, sink: KafkaSink, of: Query | Stream) -> None:
        """Refuses a column of unknown type."""
        self._sink, self._key = sink, key_of(of, sink)
        names = schema_of(of).names
        self._diff = free_names(of.schema.names, ["diff"])[0]
        rest = [name for name in names if name != self._diff]
        self._added = free_names(rest, ["sequence", "deleted"])
        self._values = Values(sink, arrow_schema(schema_of(of)))

    def of(self, answers: pa.Table, ends: Callable[[], int]) -> Iterator[Record]:
        """The records of some answers. `ends` is the sum of the ends of all partitions, for a changelog."""
        keys = key_texts(answers, self._key, whole=self._sink.changelog)
        if self._sink.changelog:
            kept = pa.array(sorted(dict(zip(keys, range(len(keys)), strict=True)).values()), pa.int64())
            answers, keys = answers.take(kept), [keys[place] for place in kept.to_pylist()]
            answers = self._changes(answers, ends())
        values = self._values.of(answers)
        headers = self._headers(answers)
        times = self._times(answers)
        return map(Record, values, keys, headers, times)

    def _changes(self, answers: pa.Table, first: int) -> pa.Table:
        """The latest rows, with a sequence that grows through the whole topic, and whether they are deleted."""
        sequence = pa.array(range(first, first + len(answers)), pa.int64())
        deleted = pc.less(answers[self._diff], 0)
        columns = answers.drop_columns([self._diff])
        for name, column in zip(self._added, (sequence, deleted), strict=True):
            columns = columns.append_column(name, column)
        return columns

    def _headers(self, answers: pa.Table) -> list[tuple[tuple[str, str], ...]]:
        """The headers of each row; a NULL is left out."""
        if not self._sink.headers:
            return [()] * len(answers)
        texts = [[(name, each) for each in _texts(answers[column])] for name, column in self._sink.headers]
        rows = zip(*texts, strict=True)
        return [tuple((name, text) for name, text in row if text is not None) for row in rows]

    def _times(self, answers: pa.Table) -> list[int | None]:
        if self._sink.timestamp is None:
            return [None] * len(answers)
        moments = answers[self._sink.timestamp].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return [None if each is None else each // 1000 for each in moments.to_pylist()]


def key_texts(answers: pa.Table, names: Sequence[str], whole: bool = False) -> list[str | None]:
    """The key of each row: none, the text of one column, or a JSON object of several; of one, too, if `whole`."""
    if not names and not whole:
        return [None] * len(answers)
    if len(names) == 1 and not whole:
        return _texts(answers[names[0]])
    columns = {name: _equal(answers[name]) for name in names}
    if not columns:
        return ["{}"] * len(answers)
    return [to_json(row) for row in pa.table(columns).to_pylist()]


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """The values as text: a text is itself, a moment as in JSON without quotes, others as in JSON."""
    return [each if each is None or isinstance(each, str) else _text(each) for each in _equal(column).to_pylist()]


def _text(value: object) -> str:
    text = to_json(value)
    return as_text(value) if text.startswith('"') and not isinstance(value, float) else text.strip('"')


def _equal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that are equal as keys, as equal values: -0.0 is 0.0."""
    return pc.add(column, pa.scalar(0.0, column.type)) if types.is_floating(column.type) else column
