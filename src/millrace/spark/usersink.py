"""Sinks in a user's code: functions and custom sinks. A replay calls them again, or leaves them out."""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from millrace.model.connectors import Commit, CustomSink, is_stored
from millrace.spark.sent import Sent


class FunctionWriter:
    """A user's function. It may be called twice for one batch, and can detect that by the batch id."""

    def __init__(self, function: Callable[[list[Mapping[str, Any]], int], None], id: str, sent: Sent) -> None:
        self._function, self._id, self._sent = function, id, sent

    def last(self) -> Commit | None:
        """The last commit for which the function has returned."""
        return self._sent.last(self._id)

    def lost(self) -> None:
        """Nothing: what a function has done is not known."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Call the function if there are answers, then record the commit."""
        if is_stored(self.last(), commit, self._id) and once:
            return
        if len(answers):
            self._function(answers.to_pylist(), commit.batch)
        self._sent.note(self._id, commit)

    def replace(self, answers: pa.Table) -> None:
        """Call the function once, with batch id 0."""
        self._function(answers.to_pylist(), 0)

    def newest(self) -> int:
        """Nothing: the records of commits beside the checkpoints tell."""
        return 0

    def serve(self) -> None:
        """Nothing: a function is called in place."""


class ObjectWriter:
    """A user's `CustomSink`. One that defines `last` receives every commit, also those without rows."""

    def __init__(self, sink: CustomSink, id: str, sent: Sent) -> None:
        self._sink, self._id, self._sent = sink, id, sent
        self._tells = type(sink).last is not CustomSink.last

    def last(self) -> Commit | None:
        """The last commit of the recorded checkpoint: the sink's own, if it tells, otherwise the recorded one."""
        recorded = self._sent.last(self._id)
        if recorded is None or not self._tells:
            return recorded
        return self._sink.last(recorded.pipeline, recorded.checkpoint)

    def lost(self) -> None:
        """Nothing: the rows of the sink are not known."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Pass the answers and the commit to the sink, which stores them once whatever the guarantee is."""
        if is_stored(self._sent.last(self._id), commit, self._id) and once:
            return
        if len(answers) or self._tells:
            self._sink.write(answers, commit)
        self._sent.note(self._id, commit)

    def replace(self, answers: pa.Table) -> None:
        """Pass the answers of a batch to the sink."""
        self._sink.replace(answers)

    def newest(self) -> int:
        """Nothing: the records of commits beside the checkpoints tell."""
        return 0

    def serve(self) -> None:
        """Nothing: a user's sink is written in place."""
