"""Simulated listeners, generated from a seed: their plays arrive out of order, and some of them hours late.

Simulated time runs at ten minutes a second, so that an hour of the charts closes every six seconds.
"""

import threading
import time
from collections.abc import Callable

import duckdb
import pyarrow as pa

from millrace.eventlog.topics import Log
from millrace.model.errors import MillraceError

START = 1_767_225_600_000_000
"""The start of simulated time, in microseconds: the beginning of 2026."""
SPEED = 600
"""Simulated seconds per real second."""
PER_TICK, TICK = 500, 0.25
"""The number of plays in an append, and the seconds between two appends."""
SHORTEST = 30_000
"""The minimum duration of a play that counts, in milliseconds."""

_TRACKS = (
    "Millstream", "Watershed", "Undertow", "Headrace", "Tailrace", "Spillway", "Penstock", "Sluice Gate", "Backwater",
    "Confluence", "Meander", "Oxbow", "Riffle", "Plunge Pool", "Braided River", "Delta", "Estuary", "High Tide",
    "Low Tide", "Tributary", "Floodplain", "Levee", "Weir", "Fish Ladder", "Mill Pond", "Waterwheel", "Cascade",
    "Rapids", "Eddy", "Whirlpool",
)  # fmt: skip


def instant(tick: int) -> int:
    """The simulated time at a tick, in microseconds."""
    return START + int(tick * TICK * SPEED * 1_000_000)


def plays(tick: int, seed: int = 7) -> pa.Table:
    """The plays of a tick: the JSON of each, and whether it counts. The same seed gives the same plays."""
    first = tick * PER_TICK
    at = instant(tick)
    titles = ", ".join("'" + title + "'" for title in _TRACKS)

    def chance(what: int) -> str:
        # Hash a text, because DuckDB's hashes of several numbers are not independent.
        return f"(hash(printf('%d %d %d', i, {seed}, {what})) / 18446744073709551616.0)"

    # Most plays arrive within the delay of the watermark, one in 150 up to three hours late: few enough that an hour
    # stays on-time for some tracks while others are corrected.
    most = f"CASE WHEN {chance(1)} < 1 / 150.0 THEN 10800 ELSE 8 END"
    late = f"{chance(2)} * {most}"
    # Each hour has a hit, so that tracks rise and fall.
    hit = f"{chance(6)} < 0.06 AND {chance(1)} >= 1 / 150.0"
    hit_of_the_hour = _TRACKS[(at // 3_600_000_000 * 7 + 11) % len(_TRACKS)]
    record = "{'user': listener, 'track': track, 'ms': ms, 'at': strftime(moment, '%Y-%m-%dT%H:%M:%S.%fZ')}"
    asked = f"""
        SELECT to_json({record})::VARCHAR AS value, ms >= {SHORTEST} AS counts
        FROM (SELECT printf('user-%05d', (hash(i, {seed}, 3) % 20000)::BIGINT) AS listener,
                     CASE WHEN {hit} THEN '{hit_of_the_hour}'
                     ELSE [{titles}][1 + CAST(floor({len(_TRACKS)} * pow({chance(4)}, 1.7)) AS BIGINT)] END AS track,
                     CAST(1000 + {chance(5)} * 240000 AS BIGINT) AS ms,
                     make_timestamp({at} - CAST(({late}) * 1000000 AS BIGINT)) AS moment
              FROM range({first}, {first + PER_TICK}) r(i))"""
    return duckdb.connect(config={"threads": 1}).sql(asked).to_arrow_table()


class Listeners:
    """A thread that appends simulated plays to a topic until it is stopped."""

    def __init__(self, log: Log, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is sent until `start`."""
        self._log, self._topic, self._clock = log, topic, clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.sent = self.counting = 0
        self.now: int | None = None
        """The simulated time, in microseconds; None before the first append."""
        self.failure: MillraceError | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current append. Does nothing if the thread was not started."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise the error of an append, if there was one."""
        if self.failure is not None:
            raise self.failure

    def _go_on(self) -> None:
        began, tick = self._clock(), 0
        while not self._over.wait(max(0.0, began + tick * TICK - self._clock())):
            made = plays(tick)
            try:
                self._log.append(self._topic, made["value"].combine_chunks())
            except MillraceError as error:
                self.failure = error
                return
            self.sent += len(made)
            self.counting += sum(made["counts"].to_pylist())
            self.now = instant(tick)
            tick += 1
