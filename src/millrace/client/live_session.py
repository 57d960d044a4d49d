"""A live query as a client sees it, without socket and clock: messages of the server go in, replies come out."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from millrace.client.live_link import LostError
from millrace.client.live_result import Change, DivergedError, LiveResult, Row, Watcher
from millrace.live.canonical import MOST
from millrace.model.errors import Kind, MillraceError, rebuilt
from millrace.model.plain import to_json


class State(StrEnum):
    """The state of a live query."""

    CONNECTING = "connecting"
    LIVE = "live"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


class LiveSession:
    """A live query over connections that come and go.

    Each subscription has another name, so that messages of an earlier one, which are still under way, are not mistaken
    for its own.
    """

    def __init__(self, sql: str, params: Sequence[Any], min_interval: float, up_to: int | None) -> None:
        """Ask for a query: see `Connection.live`."""
        self._asked = {"sql": sql, "params": list(params), "min_interval": min_interval, "up_to": up_to}
        self.state = State.CONNECTING
        self.error: MillraceError | None = None
        self.watermark: str | None = None
        self._result = LiveResult()
        self._watchers: list[Watcher] = []
        self._number = 0
        self._token: str | None = None
        self._is_resuming = False
        self._snapshot: list[tuple[str, list[Any]]] | None = None
        self._head: tuple[list[str], bool] = ([], False)
        """The columns of the snapshot, and whether it is sorted."""

    @property
    def rows(self) -> list[Row]:
        """The rows as they are now."""
        return self._result.rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self._result.columns

    @property
    def version(self) -> int | None:
        """The version of the view that the rows are of; None before the first snapshot."""
        return self._result.version

    @property
    def is_over(self) -> bool:
        """Whether the query has ended."""
        return self.state is State.CLOSED

    def watch(self) -> Watcher:
        """Begin to watch."""
        watcher = Watcher()
        self._watchers.append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Watch no longer."""
        self._watchers.remove(watcher)

    def told(self, watcher: Watcher) -> Change | None:
        """What a watcher has not been told; None if there is nothing."""
        return watcher.take(self._result, self.watermark)

    def greeting(self) -> str:
        """What to send first on a connection: go on where the result is, or subscribe."""
        self._snapshot = None
        self._number += 1
        self._is_resuming = self._token is not None
        if self._is_resuming:
            return self._message(type="resume", token=self._token, version=self.version)
        return self._message(type="subscribe", **self._asked)

    def take(self, text: str | bytes) -> list[str]:
        """Take a message of the server. Returns messages to send.

        Raises LostError if the server cannot serve the query now.
        """
        said = json.loads(text, parse_int=_whole)
        if said["sub"] not in ("", str(self._number)):
            return []
        match said["type"]:
            case "snapshot":
                self._head = said["columns"], said["sorted"]
                self._snapshot = [*(self._snapshot or ()), *said["rows"]] if said["from"] else said["rows"]
            case "ready":
                self._ready(said)
            case "batch":
                return self._batch(said)
            case "progress":
                return self._progress(said)
            case "refetch":
                self._snapshot = None
            case "closed":
                return self._closed(said)
            case "error":
                return self._failed(rebuilt(Kind(said["kind"]), said["problem"], said["advice"]))
        return []

    def lost(self) -> None:
        """Note that the connection is lost."""
        self.state = State.RECONNECTING

    def end(self, error: MillraceError | None = None) -> None:
        """End, with an error or without one."""
        self.state, self.error = State.CLOSED, error

    def _ready(self, said: dict[str, Any]) -> None:
        self._token, self._is_resuming, self.state = said["token"], False, State.LIVE
        if self._snapshot is not None:
            step = self._result.begin(*self._head, self._snapshot, said["version"])
            self._snapshot = None
            for watcher in self._watchers:
                watcher.note(step)

    def _batch(self, said: dict[str, Any]) -> list[str]:
        try:
            step = self._result.apply(said)
        except DivergedError:
            return self._anew()
        for watcher in self._watchers:
            watcher.note(step)
        return []

    def _progress(self, said: dict[str, Any]) -> list[str]:
        self._result.version, self.watermark = said["version"], said["watermark"]
        return [] if self._result.agrees(said["rows"], said["checksum"]) else self._anew()

    def _anew(self) -> list[str]:
        """Read the result anew: it is not what the server has."""
        ended = self._message(type="unsubscribe")
        self._token = None
        return [ended, self.greeting()]

    def _closed(self, said: dict[str, Any]) -> list[str]:
        if said["reason"] == "up_to":
            self.end()
            return []
        self._token = said["token"]
        return [self.greeting()]

    def _failed(self, error: MillraceError) -> list[str]:
        if self._is_resuming and error.kind is not Kind.MACHINE:  # the token is not valid any more
            self._token = None
            return [self.greeting()]
        if error.kind is Kind.MACHINE and self.version is not None:
            raise LostError(error.problem)
        self.end(error)
        return []

    def _message(self, **said: Any) -> str:
        return to_json({**said, "sub": str(self._number)})


def _whole(digits: str) -> int | float:
    """A whole number as JavaScript reads it: beyond 2^53 - 1 it stands for a floating point number."""
    value = int(digits)
    return value if -MOST <= value <= MOST else float(digits)
