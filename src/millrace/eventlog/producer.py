"""A producer: takes records one by one and appends them to a topic in batches.

    with Producer(".millrace/log.db", "plays") as plays:
        plays.send({"track": "Hey", "ms": 180_000}, key="ann")

When `flush` returns or the `with` block ends, all records sent are on the disk. Between flushes a record waits at most
`linger`, unless an append fails: then the next `send` raises the error, the records stay queued, and later appends
retry them. `flush` retries at once, and raises if that fails.
"""

import atexit
import concurrent.futures.thread  # noqa: F401 Arrow imports it for its first array, which Python refuses at exit
import json
import sys
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from millrace.eventlog.records import Headers
from millrace.eventlog.topics import Log, existing_log
from millrace.model.duration import SECOND, Duration, parse_duration, to_instant
from millrace.model.errors import MachineError, MillraceError, refuse, shown

Value: TypeAlias = Mapping[str, Any] | str | bytes | None
"""An object that is encoded as JSON, or text or bytes stored unchanged. None is a tombstone."""

_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=lambda value: _text(value)
)

Pairs: TypeAlias = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class ProducerBatch:
    """Records that are appended together, by column."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | str | None] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)
    headers: list[Pairs | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: bytes | None, key: bytes | str | None, timestamp: int | None, headers: Pairs | None) -> None:
        """Add a record."""
        self.values.append(value)
        self.keys.append(key)
        self.timestamps.append(timestamp)
        self.headers.append(headers)


class Producer:
    """Appends to one topic. Threads may share it.

    With an id, appends are idempotent: the log stores a retried append once. A program that restarts with the same id
    reads from `kept` how many of its records are stored, and continues after them. Only one producer at a time may use
    an id.
    """

    def __init__(
        self, log: Log | str | Path, topic: str, id: str | None = None, linger: Duration = "50ms", batch: int = 10_000
    ) -> None:
        """Refuses an unknown topic."""
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise refuse(f"batch= is how many records are appended together, not {shown(batch)}")
        self._given = isinstance(log, Log)
        self._log = log if isinstance(log, Log) else existing_log(log, topic)
        self._log.topic(topic)
        self._topic, self._id, self._session = topic, id, uuid.uuid4().hex
        self._linger, self._most = parse_duration(linger, "linger") / SECOND, batch
        self._kept = 0 if id is None else self._log.last(topic, id) or 0
        self._open = ProducerBatch()
        self._tried: ProducerBatch | None = None
        """The batch whose append failed; it is retried unchanged."""
        self._error: Exception | None = None
        self._closed = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        with suppress(MillraceError):  # the first error is the one to raise
            self.close()

    @property
    def kept(self) -> int:
        """How many records are on the disk: all under this id, or those of this producer if it has no id."""
        return self._kept

    def send(
        self,
        value: Value,
        key: bytes | str | None = None,
        timestamp: datetime | int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Queue a record. If this raises, the record is not queued."""
        record = _value(value), _key(key), _timestamp(timestamp), _headers(headers)
        with self._change:
            if self._closed:
                raise refuse(f"this producer of {self._topic!r} is closed; make another")
            self._raise()
            if len(self._open) >= self._most:
                self._append()
            self._open.add(*record)
            if len(self._open) == 1:
                self._wake()

    def flush(self) -> None:
        """Append all queued records; returns when they are on the disk. Raises MillraceError if the append fails."""
        with self._change:
            self._error = None  # this call retries the append, and raises again if that fails
            self._change.notify_all()
            self._append()

    def close(self) -> None:
        """Flush, then stop the background thread."""
        atexit.unregister(self._close_at_exit)
        try:
            self.flush()
        finally:
            with self._change:
                self._closed = True
                self._change.notify_all()
            if self._thread is not None:
                self._thread.join()
            if not self._given:
                self._log.close()

    def _close_at_exit(self) -> None:
        """Flush if the program ends without closing the producer. Nobody can handle an error then: it is printed."""
        try:
            self.close()
        except MillraceError as error:
            lost = len(self._tried or ()) + len(self._open)
            advice = "close the producer in the program, and handle the error that close() raises"
            told = f"{error.problem}: {lost:,} of the records sent to {self._topic!r} are lost; {advice}"
            sys.stderr.write(f"{told}\n")

    def _append(self) -> None:
        """Append queued records; a batch that fails is kept and retried with the same sequence number."""
        while batch := self._tried or self._open:
            if self._tried is None:
                self._tried, self._open = batch, ProducerBatch()
            after = self._kept + len(batch)
            try:
                self._log.append(
                    self._topic, batch.values, batch.keys, batch.timestamps, batch.headers,
                    self._id, None if self._id is None else after, self._session,
                )  # fmt: skip
            except MachineError as error:
                raise self._waiting(error) from error
            self._tried, self._kept = None, after

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self._change.notify_all()
            raise self._waiting(error) if isinstance(error, MachineError) else error

    def _waiting(self, error: MachineError) -> MachineError:
        """The error of an append, with what became of the records: earlier batches are kept, and the rest waits."""
        waiting = len(self._tried or ()) + len(self._open)
        told = f"{self._kept:,} of the records are kept and {waiting:,} wait"
        return MachineError(error.problem, f"{told}: fix the cause, then flush() appends them")

    def _wake(self) -> None:
        """Let the background thread append the queued records after `linger`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"producer of {self._topic}", daemon=True)
            self._thread.start()
            atexit.register(self._close_at_exit)
        self._change.notify_all()

    def _run(self) -> None:
        with self._change:
            while not self._closed:
                self._change.wait_for(lambda: len(self._open) > 0 or self._closed)
                self._change.wait_for(lambda: self._closed, self._linger)
                if self._closed:
                    return
                try:
                    self._append()
                except Exception as error:  # `send` raises it in the user's thread
                    self._error = error
                    self._change.wait_for(lambda: self._error is None or self._closed)


def _value(value: Value) -> bytes | None:
    if isinstance(value, Mapping):
        try:
            value = _ENCODER.encode(value)
        except (TypeError, ValueError) as error:
            raise refuse(f"a record must be a JSON value: {error}") from None
    if isinstance(value, str):
        return value.encode()
    if value is not None and not isinstance(value, bytes):
        raise refuse(f"a record is a dict, text or bytes, not {shown(value)}")
    return value


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{shown(value)} is not")


def _key(key: object) -> bytes | str | None:
    if key is not None and not isinstance(key, bytes | str):
        raise refuse(f"a key is text or bytes, not {shown(key)}")
    return key


def _timestamp(timestamp: object) -> int | None:
    return timestamp if timestamp is None or isinstance(timestamp, int) else to_instant(timestamp)


def _headers(headers: Headers | None) -> Pairs | None:
    if headers is None:
        return None
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    made = []
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes | str | None):
            raise refuse(f"a header is a name with bytes, not {shown((name, value))}")
        made.append((name, value.encode() if isinstance(value, str) else value))
    return made
