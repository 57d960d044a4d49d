"""The writer of each kind of sink."""

from typing import assert_never

from millrace.model.kafka_sink import KafkaSink
from millrace.model.pipeline import FileSink, FunctionSink, ObjectSink, Sink, TableSink, TopicSink
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.spark.answers import schema_of
from millrace.spark.filesink import FileWriter
from millrace.spark.sent import Sent
from millrace.spark.tablesink import TableWriter
from millrace.spark.topicsink import TopicWriter
from millrace.spark.usersink import FunctionWriter, ObjectWriter
from millrace.spark.writers import Writer


def writer_of(
    sink: Sink, id: str, of: Query | Stream, log: str, pipeline: str, sent: Sent, generation: int, staged: bool
) -> Writer:
    """The writer of a sink. It writes in place, or `staged`: to a generation that is served later.

    The commits to a sink in a user's code are recorded in `sent`, under its id; of a Kafka topic, the commits begun.
    """
    match sink:
        case FileSink():
            return FileWriter(sink, pipeline, generation, staged)
        case TableSink(path, table):
            return TableWriter(path, table, schema_of(of), pipeline, generation, staged)
        case FunctionSink(function):
            return FunctionWriter(function, id, sent)
        case TopicSink(topic):
            return TopicWriter(log, topic, pipeline, generation)
        case KafkaSink():
            from millrace.spark.kafka_records import AnswerRecords  # its packages are optional
            from millrace.spark.kafkasink import KafkaWriter

            return KafkaWriter(sink, id, AnswerRecords(sink, of), pipeline, sent, generation)
        case ObjectSink(writer):
            return ObjectWriter(writer, id, sent)
        case never:
            assert_never(never)
