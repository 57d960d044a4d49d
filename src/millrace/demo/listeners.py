"""People who listen to music, made up from a seed: some of what they do is told late, and out of order.

Time goes fast for them: ten minutes a second, so that an hour of charts closes every six seconds.
"""

import threading
import time
from collections.abc import Callable

import duckdb
import pyarrow as pa

from millrace.eventlog.topics import Log
from millrace.model.errors import MillraceError

START = 1_767_225_600_000_000
"""The first moment, in microseconds: the beginning of 2026."""
SPEED = 600
"""How many seconds of theirs pass in one of ours."""
PER_TICK, TICK = 500, 0.25
"""How many plays are sent together, and how often, in seconds."""
SHORTEST = 30_000
"""From how many milliseconds on a play counts."""

_TRACKS = (
    "Millstream", "Watershed", "Undertow", "Headrace", "Tailrace", "Spillway", "Penstock", "Sluice Gate", "Backwater",
    "Confluence", "Meander", "Oxbow", "Riffle", "Plunge Pool", "Braided River", "Delta", "Estuary", "High Tide",
    "Low Tide", "Tributary", "Floodplain", "Levee", "Weir", "Fish Ladder", "Mill Pond", "Waterwheel", "Cascade",
    "Rapids", "Eddy", "Whirlpool",
)  # fmt: skip


def plays(tick: int, seed: int = 7) -> pa.Table:
    """What is sent at a tick: the JSON of each play, and whether it counts. The same for the same seed."""
    first = tick * PER_TICK
    at = START + int(tick * TICK * SPEED * 1_000_000)
    titles = ", ".join("'" + title + "'" for title in _TRACKS)

    def chance(what: int) -> str:
        return f"(hash(i, {seed}, {what}) / 18446744073709551616.0)"

    # Most plays are told within seconds; one in twelve within the hour, one in fifty up to a few hours late.
    most = f"CASE WHEN {chance(1)} < 0.02 THEN 14400 WHEN {chance(1)} < 0.1 THEN 1800 ELSE 8 END"
    late = f"{chance(2)} * {most}"
    record = "{'user': listener, 'track': track, 'ms': ms, 'at': strftime(moment, '%Y-%m-%dT%H:%M:%S.%fZ')}"
    asked = f"""
        SELECT to_json({record})::VARCHAR AS value, ms >= {SHORTEST} AS counts
        FROM (SELECT printf('user-%05d', (hash(i, {seed}, 3) % 20000)::BIGINT) AS listener,
                     [{titles}][1 + CAST(floor({len(_TRACKS)} * pow({chance(4)}, 2.5)) AS BIGINT)] AS track,
                     CAST(1000 + {chance(5)} * 240000 AS BIGINT) AS ms,
                     make_timestamp({at} - CAST(({late}) * 1000000 AS BIGINT)) AS moment
              FROM range({first}, {first + PER_TICK}) r(i))"""
    return duckdb.connect(config={"threads": 1}).sql(asked).to_arrow_table()


class Listeners:
    """Someone who sends what they do, until told to stop."""

    def __init__(self, log: Log, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Send to a topic."""
        self._log, self._topic, self._clock = log, topic, clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.sent = self.counting = 0
        self.failure: MillraceError | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, when what is being sent is kept."""
        self._over.set()
        self._thread.join()

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
            tick += 1
