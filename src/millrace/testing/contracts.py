"""Checks of the contracts of `CustomSource` and `CustomSink`, for the tests of their authors.

    def test_my_source():
        check_source(lambda: Orders(url), "id BIGINT, at TIMESTAMP", add=place_an_order)

    def test_my_sink():
        check_sink(lambda: Warehouse(url), rows_in_warehouse)

Each raises an AssertionError that names the violated contract.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pyarrow as pa

from millrace.model.connectors import Commit, CustomSink, CustomSource
from millrace.model.schema import Schema, parse_schema
from millrace.sources.custom import columns_of

_MOST_STEPS = 1000
_MOST_KILLS = 400
_WITHOUT_EFFECT = {"millrace", "contextlib", "dataclasses", "functools"}
"""Modules whose own lines change nothing outside of the process: a kill there is the same as at the next line."""
_ROWS = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})


def check_source(
    make: Callable[[], CustomSource], schema: str | Mapping[str, str] | Schema, add: Callable[[], object] | None = None
) -> None:
    """Check that positions are JSON, that they replay the same rows, and that micro-batches read every row once.

    `make` opens the source anew, as after a crash. `add` adds at least one row to the source; without it, the source
    must hold rows already.
    """
    columns = parse_schema(schema)
    if add is not None:
        add()
    first = make()
    start, end = _position(first.start(), "start"), _position(first.end(), "end")
    assert _position(make().start(), "start") == start, "start() must be the same whenever it is called"
    rows = _read(first, start, end, columns)
    assert rows, "the source has no rows to check; pass add="
    assert _read(make(), start, end, columns) == rows, "the rows between two positions must be the same after a restart"
    steps = _micro_batches(make(), start, end)
    stepped = [row for at, after in steps for row in _read(make(), at, after, columns)]
    assert stepped == rows, "micro-batches between start() and end() must read every row once, in order"
    assert _read(first, end, end, columns) == [], "splits() between a position and itself must have no rows"
    if add is None:
        return
    add()
    assert make().start() == start, "start() must be the same after the source has grown"
    assert _read(make(), start, end, columns) == rows, "new rows must not change the rows between old positions"
    later = make()
    after = _position(later.end(), "end")
    more = _read(later, end, after, columns)
    assert more, "end() must move when the source grows"
    assert _read(later, start, after, columns) == [*rows, *more], (
        "reading up to a later position must return the rows up to the earlier one, then the new rows"
    )


def _position(position: Any, what: str) -> Any:
    """A position after a round trip through JSON, as from the checkpoint."""
    try:
        back = json.loads(json.dumps(position))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what}() must return a JSON value, not {position!r}: {error}") from None
    assert back == position, f"{what}() returned {position!r}, which JSON turns into {back!r}"
    return back


def _read(source: CustomSource, start: Any, end: Any, schema: Schema) -> list[dict[str, Any]]:
    """The rows between two positions, read as workers read them: from copies of the source and its splits."""
    from pyspark import cloudpickle  # Spark's own pickler; imported here, as this module must not import Spark

    rows: list[dict[str, Any]] = []
    for split in source.splits(start, end):
        try:
            worker, piece = cloudpickle.loads(cloudpickle.dumps((source, split)))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise AssertionError(f"the source and its splits must be picklable: {error}") from None
        rows += columns_of(worker.read(piece), schema, "read()").to_pylist()
    return rows


def _micro_batches(source: CustomSource, start: Any, end: Any) -> list[tuple[Any, Any]]:
    steps, at = [], start
    while at != end:
        after = _position(source.limit(at, end), "limit")
        assert after != at, f"limit() must advance from {at!r}: there are rows up to {end!r}"
        steps.append((at, after))
        at = after
        assert len(steps) < _MOST_STEPS, f"limit() does not reach {end!r}"
    return steps


def check_sink(
    make: Callable[[], CustomSink], stored: Callable[[], list[dict[str, Any]]], rows: pa.Table = _ROWS
) -> None:
    """Check that commits are atomic and idempotent, at whatever line of the sink the process is killed.

    `make` opens the sink anew, `stored` returns all rows that it holds, in any order. The check writes `rows` several
    times. It forks, and kills the child with SIGKILL at each line of Python that `write` runs, one after the other,
    except lines of contextlib, dataclasses and functools, which store nothing themselves. A sink that defines `last`
    must return each commit that was written.
    """
    make()
    before = _sorted(stored())
    expected = list(before)

    def written(commit: Commit) -> None:
        make().write(rows, commit)

    def check_last(commit: Commit) -> None:
        sink = make()
        if type(sink).last is not CustomSink.last:
            told = sink.last(commit.pipeline, commit.checkpoint)
            assert told == commit, f"after write() of {commit}, last() must return it, not {told}"

    one, other = Commit("check", "a", 0), Commit("check", "b", 0)
    for commit in (one, other):
        written(commit)
        expected += rows.to_pylist()
        assert _sorted(stored()) == _sorted(expected), f"write() of {commit} must store its rows"
        written(commit)
        assert _sorted(stored()) == _sorted(expected), f"a second write() of {commit} must change nothing"
        check_last(commit)
    for line in range(1, _MOST_KILLS):
        commit = Commit("check", "a", line)
        ended = _killed_at(line, lambda commit=commit: written(commit))  # type: ignore[misc]
        left = _sorted(stored())
        whole = _sorted([*expected, *rows.to_pylist()])
        assert left in (_sorted(expected), whole), f"a kill at line {line} of write() left a part of {commit}"
        written(commit)
        expected += rows.to_pylist()
        assert _sorted(stored()) == whole, f"after a kill at line {line} and a new write(), {commit} is not stored once"
        check_last(commit)
        if ended:
            return


def _killed_at(line: int, work: Callable[[], None]) -> bool:
    """Run `work` in a child process that is killed at a line of the user's code; whether it ended before that line."""
    child = os.fork()
    if child == 0:
        try:
            sys.settrace(_killer(line))
            work()
            sys.settrace(None)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert not (os.WIFEXITED(status) and os.WEXITSTATUS(status)), "write() failed in a child process; see its traceback"
    return os.WIFEXITED(status)


def _killer(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that counts lines that may have an effect, and kills the process at one of them."""
    passed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _WITHOUT_EFFECT:
            return trace
        if event == "line":
            passed += 1
            if passed == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)
