"""Requests about the records of topics: the newest ones, as a person looks at them."""

from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Depends, Query

from millrace.eventlog.topics import Log
from millrace.model.errors import NotFoundError
from millrace.server.door import check_reads_all

_SCANNED = 10_000
"""The number of records of a partition in which a text is searched."""


def record_routes(log: Log) -> APIRouter:
    """The requests about the records of a log."""
    routes = APIRouter(prefix="/topics/{topic}", dependencies=[Depends(check_reads_all)])

    @routes.get("/records")
    def records(
        topic: str,
        last: Annotated[int, Query(description="The maximum number of records.", ge=1, le=1_000)] = 50,
        partition: Annotated[int | None, Query(description="Only this partition.", ge=0)] = None,
        contains: Annotated[str | None, Query(description="Only records whose value or key holds this text.")] = None,
    ) -> dict[str, Any]:
        """The newest records of a topic, oldest first. A text is searched in the last records of each partition."""
        bounds = list(enumerate(zip(log.starts(topic), log.ends(topic), strict=True)))
        if partition is not None and partition >= len(bounds):
            raise NotFoundError(
                f"topic {topic!r} has no partition {partition}", f"its partitions are 0 to {len(bounds) - 1}"
            )
        wanted = [each for each in bounds if partition is None or each[0] == partition]
        read = [
            _records(log, topic, number, max(start, end - (last if contains is None else _SCANNED)), end)
            for number, (start, end) in wanted
        ]
        found = pa.concat_tables(read)
        scanned = len(found)
        if contains is not None:
            found = found.filter(pc.or_kleene(_holds(found["value"], contains), _holds(found["key"], contains)))
        found = found.sort_by([(name, "ascending") for name in ("timestamp", "partition", "offset")])
        newest = found.slice(max(0, len(found) - last)).to_pylist()
        return {"topic": topic, "scanned": scanned, "records": list(map(_shown, newest))}

    return routes


def _records(log: Log, topic: str, partition: int, start: int, end: int) -> pa.Table:
    found = log.read(topic, partition, start, end).select(["offset", "timestamp", "key", "value"])
    return found.append_column("partition", pa.array([partition] * len(found), pa.int32()))


def _holds(texts: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    return pc.fill_null(pc.match_substring(texts, text.encode()), False)


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "partition": record["partition"],
        "offset": record["offset"],
        "time": record["timestamp"].isoformat(),
        "key": _text(record["key"]),
        "value": _text(record["value"]),
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace").rstrip("\n")
