"""The embedded log beside plain files of JSON lines: appends that are on the disk when they return, and reading."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.figures import Figure, figure
from millrace.eventlog.topics import Log
from millrace.sources.files import lines

_SIZES = {10_000: 400_000, 100: 100_000}
"""How many records are appended at a time, and in all."""


def _records(many: int) -> list[bytes]:
    """JSON records of about 200 bytes."""
    chance = np.random.default_rng(7)
    users, tracks, ms = (chance.integers(0, most, many).tolist() for most in (100_000, 10_000, 300_000))
    sessions = [chance.bytes(16).hex() for _ in range(many)]
    return [
        json.dumps(
            {
                "user": f"user-{users[number]:06}",
                "track": f"track-{tracks[number]:05}",
                "ms": ms[number],
                "at": f"2026-01-01T12:{number // 60 % 60:02}:{number % 60:02}.000Z",
                "session": sessions[number],
                "device": ("iPhone", "Android", "web")[number % 3],
                "country": ("DE", "US", "FR", "NL")[number % 4],
            }
        ).encode()
        for number in range(many)
    ]


def _seconds(work: Callable[[], object], times: int = 5) -> float:
    """The median, after one run to warm up."""
    work()
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return sorted(spent)[times // 2]


def _append_log(log: Log, records: pa.Array, step: int) -> None:
    for start in range(0, len(records), step):
        log.append("plays", records.slice(start, step))


def _append_file(path: Path, records: list[bytes], step: int) -> None:
    with path.open("ab") as file:
        for start in range(0, len(records), step):
            file.write(b"\n".join(records[start : start + step]) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _read_log(log: Log, many: int) -> None:
    read = log.read("plays", 0, 0, many)
    assert len(read) == many
    assert read["value"].num_chunks == 1


def _read_file(path: Path, many: int) -> None:
    assert len(lines(str(path), path.read_bytes())) == many


def _bench(step: int, many: int) -> list[Figure]:
    records = _records(many)
    column, size = pa.array(records, pa.binary()), sum(map(len, records)) / 1e6
    spent: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        path = Path(folder) / "plays.json"

        def fresh_log() -> None:
            with Log(Path(folder) / "log.db") as log:
                log.remove("plays")
                log.create("plays")
                _append_log(log, column, step)

        def fresh_file() -> None:
            path.unlink(missing_ok=True)
            _append_file(path, records, step)

        with Log(Path(folder) / "log.db") as log:
            log.create("plays")
            spent["append"] = _seconds(fresh_log, 3), _seconds(fresh_file, 3)
            spent["read"] = _seconds(lambda: _read_log(log, many)), _seconds(lambda: _read_file(path, many))
    return [
        figure(
            f"log, {what} JSON of {size / many * 1e6:.0f} bytes, {step:,} records an append",
            of / ours,
            of / theirs,
            unit,
        )
        for what, (ours, theirs) in spent.items()
        for of, unit in ((many, "records/s"), (size, "MB/s"))
    ]


def run() -> list[Figure]:
    """All of it."""
    return [made for step, many in _SIZES.items() for made in _bench(step, many)]


if __name__ == "__main__":
    run()
