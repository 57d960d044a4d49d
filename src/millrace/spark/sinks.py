"""The writer of each kind of sink."""

from typing import assert_never

from millrace.model.pipeline import FileSink, FunctionSink, ObjectSink, Sink, TableSink, TopicSink
from millrace.model.schema import Schema
from millrace.spark.filesink import FileWriter
from millrace.spark.sent import Sent
from millrace.spark.tablesink import TableWriter
from millrace.spark.topicsink import TopicWriter
from millrace.spark.usersink import FunctionWriter, ObjectWriter
from millrace.spark.writers import Writer


def writer_of(
    sink: Sink, id: str, schema: Schema, log: str, pipeline: str, sent: Sent, generation: int, staged: bool
) -> Writer:
    """The writer of a sink. It writes in place, or `staged`: to a generation that is served later.

    The commits to a sink in a user's code are recorded in `sent`, under its id.
    """
    match sink:
        case FileSink():
            return FileWriter(sink, pipeline, generation, staged)
        case TableSink(path, table):
            return TableWriter(path, table, schema, pipeline, generation, staged)
        case FunctionSink(function):
            return FunctionWriter(function, id, sent)
        case TopicSink(topic):
            return TopicWriter(log, topic, pipeline, generation)
        case ObjectSink(writer):
            return ObjectWriter(writer, id, sent)
        case never:
            assert_never(never)
