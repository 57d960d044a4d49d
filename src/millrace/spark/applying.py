"""The steps of a native edge that run in Python: `mapInArrow` between two parts of the Spark plan.

Rows that are no elements pass with their hidden columns. So does a row that the step rejects, as a dead letter, and,
once event time is assigned, a row of which it makes no rows: it still advances the watermark.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from millrace.model.applied import apply
from millrace.model.arrow import arrow_schema
from millrace.model.schema import backticked
from millrace.model.stream import Applying
from millrace.sources.bundle import LOGGED
from millrace.spark.envelope import reported
from millrace.spark.marks import AGAIN, BAD, CARRIED, CONTROL, LEFT_OUT, MARKS, OFFSET, ORIGIN, TIME

_ELEMENT = "__element"


def applied(step: Applying, above: DataFrame, element: Column) -> DataFrame:
    """The rows after a step, which takes the rows for which the condition `element` holds."""
    marks = [name for name in MARKS if name in above.columns or name in (LEFT_OUT, AGAIN, BAD)]
    missing = {name: f.lit(None).cast(MARKS[name]) for name in marks if name not in above.columns}
    given = above.withColumns({_ELEMENT: element, **missing})
    columns = ", ".join(f"{backticked(column.name)} {column.type}" for column in step.schema)
    hidden = ", ".join(f"`{name}` {MARKS[name]}" for name in marks)
    return given.mapInArrow(_applying(step), f"{columns}, {CARRIED}, {hidden}")


def _applying(step: Applying) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    @reported
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from after(step, pa.Table.from_batches([batch])).combine_chunks().to_batches()

    return run


def after(step: Applying, rows: pa.Table) -> pa.Table:
    """The rows that a step makes, in order, among those that only pass."""
    element = rows[_ELEMENT].to_numpy()
    elements = np.flatnonzero(element)
    made = apply(step, rows.filter(rows[_ELEMENT]))
    origins = elements[made.origins]
    reasons = {int(elements[row]): reason for row, reason in made.failed.items()}
    is_gone = element.copy()
    is_gone[origins] = False
    is_gone[list(reasons)] = False
    passes = ~element | is_gone if TIME in rows.column_names else ~element
    passes[list(reasons)] = True
    passed = np.flatnonzero(passes)
    places = np.concatenate([origins, passed])
    repeated = np.zeros(len(places), bool)
    repeated[1 : len(origins)] = origins[1:] == origins[:-1]  # its event time counts once
    hidden = [ORIGIN, OFFSET, LOGGED, CONTROL, *(name for name in MARKS if name in rows.column_names)]
    marks = {name: rows[name].take(pa.array(places)).combine_chunks() for name in hidden}
    found = [reasons.get(place) for place in places.tolist()] if reasons else pa.nulls(len(places))
    marks[BAD] = pc.coalesce(marks[BAD], pa.array(found, pa.string()))
    marks[LEFT_OUT] = pc.or_(pc.fill_null(marks[LEFT_OUT], False), pa.array(is_gone[places]))
    marks[AGAIN] = pc.or_(pc.fill_null(marks[AGAIN], False), pa.array(repeated))
    values = pa.concat_tables([made.rows, _nulls(arrow_schema(step.schema), len(passed))])
    whole = pa.table([*values.columns, *marks.values()], names=[*values.column_names, *marks])
    return whole.take(pa.array(np.argsort(places, kind="stable")))


def _nulls(schema: pa.Schema, many: int) -> pa.Table:
    return pa.table([pa.nulls(many, each.type) for each in schema], schema=schema)
