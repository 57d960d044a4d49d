"""Topics of the log as sinks. They cannot be swapped: a replay appends to them again, or leaves them out."""

import pyarrow as pa

from millrace.eventlog.sequences import PIPELINES
from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit, is_stored
from millrace.spark.answers import json_lines


class TopicWriter:
    """A topic of the log, with a JSON record for each change of an answer.

    The commit is the sequence number of the pipeline as a producer, and the digest its session. Each generation is a
    producer of its own, because its batches are counted from 0 again.
    """

    def __init__(self, log: str, topic: str, pipeline: str, generation: int = 1) -> None:
        """Refuses a topic that does not exist."""
        self._log, self._topic, self._pipeline = Log(log), topic, pipeline
        self._producer = f"{PIPELINES}{pipeline}" if generation == 1 else f"{PIPELINES}{pipeline}@{generation}"
        self._log.topic(topic)

    def last(self) -> Commit | None:
        """The last append of the pipeline."""
        found = self._log.last_append(self._topic, self._producer)
        return None if found is None else Commit(self._pipeline, "", *found)

    def lost(self) -> None:
        """Nothing: the log tells what is damaged of a topic."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Append the answers, none if there are none; a repeated append is idempotent if `once`."""
        if is_stored(self.last(), commit, f"topic {self._topic}"):
            if not once and len(answers):
                self._log.append(self._topic, json_lines(answers))
            return
        self._log.append(
            self._topic, json_lines(answers), producer=self._producer, sequence=commit.batch, session=commit.digest
        )

    def replace(self, answers: pa.Table) -> None:
        """Append the answers: records of a topic are never replaced."""
        if len(answers):
            self._log.append(self._topic, json_lines(answers))

    def newest(self) -> int:
        """The newest generation that has appended to the topic."""
        name = f"{PIPELINES}{self._pipeline}"
        found = [producer.removeprefix(name) for producer in self._log.producers(self._topic, name)]
        return max((int(end[1:] or 1) for end in found if end == "" or end[1:].isdecimal()), default=0)

    def serve(self) -> None:
        """Nothing: records are in place when they are appended."""
