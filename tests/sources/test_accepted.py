"""Parquet columns are read as they are or without loss, or stop the run; over all pairs of types."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace import PipelineError
from millrace.edge.tables import columns_of
from millrace.model.accepted import accepted
from millrace.model.arrow import arrow_type
from millrace.model.inputs import table
from millrace.model.schema import parse_schema
from millrace.sources.files import FileSplit

NAIVE = [datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None), datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)]
HELD: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint16": (pa.uint16(), [0, 2**16 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float32": (pa.float32(), [0.5, -(2.0**100)]),
    "float64": (pa.float64(), [0.1, -1e300]),
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["a", ""]),
    "large_string": (pa.large_string(), ["a", ""]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    "binary": (pa.binary(), [b"a", b"\xff"]),
    "large_binary": (pa.large_binary(), [b"a", b"\xff"]),
    "fixed": (pa.binary(2), [b"ab", b"\xff\x00"]),
    "date32": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "time64": (pa.time64("us"), [0, 1]),
    "timestamp[ms]": (pa.timestamp("ms"), NAIVE),
    "timestamp[us]": (pa.timestamp("us"), NAIVE),
    "timestamp[ns]": (pa.timestamp("ns"), NAIVE),
    "timestamp[us, UTC]": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC)] * 2),
    "timestamp[ms, Berlin]": (pa.timestamp("ms", "Europe/Berlin"), [datetime(2026, 1, 1, tzinfo=UTC)] * 2),
    "timestamp[ns, UTC]": (pa.timestamp("ns", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC)] * 2),
    "decimal(5, 2)": (pa.decimal128(5, 2), [Decimal("999.99"), Decimal("-0.01")]),
    "decimal(20, 2)": (pa.decimal128(20, 2), [Decimal("1.00"), Decimal("2.00")]),
    "decimal(5, 3)": (pa.decimal128(5, 3), [Decimal("1.000"), Decimal("2.000")]),
    "duration": (pa.duration("us"), [1, 2]),
    "list": (pa.list_(pa.int64()), [[1], []]),
    "struct": (pa.struct({"x": pa.int64()}), [{"x": 1}, None]),
    "null": (pa.null(), [None, None]),
}
_STRINGS = "string large_string dictionary"
_BINARY = "binary large_binary fixed"
TAKEN = {
    "TINYINT": "int8",
    "SMALLINT": "int8 int16 uint8",
    "INT": "int8 int16 int32 uint8 uint16",
    "BIGINT": "int8 int16 int32 int64 uint8 uint16 uint32",
    "FLOAT": "int8 int16 uint8 uint16 float32",
    "DOUBLE": "int8 int16 int32 uint8 uint16 uint32 float32 float64",
    "BOOLEAN": "bool",
    "STRING": _STRINGS,
    "BINARY": _BINARY,
    "DATE": "date32",
    "TIMESTAMP": "|".join(name for name in HELD if name.startswith("timestamp")),
    "DECIMAL(5, 2)": "int8|decimal(5, 2)",
    "DECIMAL(20, 2)": "int8|int16|int32|decimal(5, 2)|decimal(20, 2)",
    "DECIMAL(38, 10)": "int8|int16|int32|int64|decimal(5, 2)|decimal(20, 2)|decimal(5, 3)",
    "ARRAY<BIGINT>": "list",
}
"""What is read as what. The null type, which holds nothing, is read as anything."""


def read(path: Path, type: str) -> pa.ChunkedArray:
    rows = FileSplit(str(path), "parquet", parse_schema({"a": type}), 0, 1, 0).read().rows
    assert rows is not None
    return rows["a"]


@pytest.mark.parametrize("type", TAKEN)
def test_what_is_read_loses_nothing_and_all_else_stops_the_run(type: str, tmp_path: Path) -> None:
    taken = TAKEN[type].split("|") if "|" in TAKEN[type] else TAKEN[type].split()
    for name, (kind, values) in HELD.items():
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"a": pa.array(values, kind)}), path)
        held = pq.read_schema(path).field("a").type
        assert (accepted(kind, type) is not None) == (name in (*taken, "null")), (name, type)
        if accepted(held, type) is None:
            with pytest.raises(PipelineError) as refused:
                read(path, type)
            assert f"a.parquet: column a is {held}, which cannot be read as {type}" in refused.value.message
            continue
        found = read(path, type)
        assert found.type == arrow_type(type)
        expected = pa.array(values, kind).to_pylist()
        shown = [
            each.replace(tzinfo=UTC) if isinstance(each, datetime) and not each.tzinfo else each for each in expected
        ]
        assert found.to_pylist() == shown, (name, type)


@pytest.mark.parametrize("type", TAKEN)
def test_tables_in_parquet_files_are_read_alike(type: str, tmp_path: Path) -> None:
    for kind, values in HELD.values():
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"a": pa.array(values, kind)}), path)
        held = pq.read_schema(path).field("a").type
        joined = table("t", {"a": type}, path=str(path))
        if accepted(held, type) is None:
            with pytest.raises(PipelineError, match="cannot be read as"):
                columns_of(joined)
        else:
            assert columns_of(joined)["a"].to_pylist() == read(path, type).to_pylist()


@pytest.mark.spark
def test_where_spark_differs_is_a_fixed_list(tmp_path: Path, spark: SparkSession) -> None:
    names = ["int32", "int64", "uint32", "float32", "float64", "bool", "string", "date32", "decimal(5, 2)"]
    names += ["timestamp[ms]", "timestamp[us, UTC]", "timestamp[ns, UTC]"]
    more: set[tuple[str, str]] = set()
    less: set[tuple[str, str]] = set()
    for name in names:
        kind, values = HELD[name]
        path = tmp_path / f"{names.index(name)}.parquet"
        pq.write_table(pa.table({"a": pa.array(values, kind)}), path)
        for type in ("INT", "BIGINT", "DOUBLE", "DECIMAL(20, 2)", "STRING", "DATE", "TIMESTAMP"):
            try:
                spark.read.schema(f"a {type}").parquet(str(path)).selectExpr("CAST(a AS STRING)").collect()
                takes = True
            except (PySparkException, Py4JJavaError):
                takes = False
            if takes != (accepted(kind, type) is not None):
                (more if takes else less).add((name, type))
    times = {(name, "BIGINT") for name in ("timestamp[ms]", "timestamp[us, UTC]", "timestamp[ns, UTC]")}
    days = {("date32", type) for type in ("INT", "BIGINT", "DOUBLE")}
    assert more == times | days | {("int32", "DATE")}  # by what they are made of
    assert less == {("timestamp[ns, UTC]", "TIMESTAMP")}  # which pandas writes


def test_a_column_that_nobody_reads_stops_the_run_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([1]), "b": pa.array([1])}), path)
    split = FileSplit(str(path), "parquet", parse_schema("a BIGINT, b TIMESTAMP"), 0, 1, 0)
    with pytest.raises(PipelineError, match="column b is int64, which cannot be read as TIMESTAMP"):
        split.read({"a"})


def test_nanoseconds_are_read_as_long_as_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([1_000, 2_001], pa.timestamp("ns"))}), path)
    with pytest.raises(PipelineError, match=r"column a is timestamp\[ns\], and one of its values is not TIMESTAMP"):
        read(path, "TIMESTAMP")
