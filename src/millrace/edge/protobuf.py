"""Records of one schema of Protobuf as rows."""

from collections.abc import Mapping

import pyarrow as pa
from google.protobuf.message import Message

from millrace.edge.decode import Misfit
from millrace.edge.held import Columns, Rows
from millrace.formats.protobuf import ProtobufReader, as_dict, getter, names_of
from millrace.model.errors import PipelineError
from millrace.model.plain import to_json


class ProtobufRows:
    """Reads the messages of one schema, each of the kind that it names."""

    def __init__(self, columns: Columns, text: str, used: Mapping[str, str]) -> None:
        """`used` has the schemas that this one imports, by their names."""
        self._columns, self._reader = columns, ProtobufReader(text, used)

    def read(self, bodies: pa.Array) -> Rows:
        """The rows of the records that fit, in their order, and the misfits."""
        wrong: dict[int, Misfit] = {}
        messages: list[Message | None] = []
        for row, body in enumerate(bodies.to_pylist()):
            try:
                messages.append(self._reader.read(body))
            except PipelineError as error:
                wrong[row] = self._columns.undecoded(row, error.problem)
                messages.append(None)
        kinds = {type(message) for message in messages if message is not None}
        strange = {kind: self._columns.unknown(names_of(kind)) for kind in kinds}
        for row, message in enumerate(messages):
            if message is not None and (reason := strange[type(message)]) is not None:
                wrong[row] = Misfit(row, reason)
        values = {}
        for name in self._columns.schema.names:
            read = {kind: getter(kind, name) for kind in kinds if name in kind.DESCRIPTOR.fields_by_name}
            if len(kinds) == 1 and read:
                (get,) = read.values()
                values[name] = [None if message is None else get(message) for message in messages]
            elif read:
                values[name] = [read[type(each)](each) if type(each) in read else None for each in messages]  # type: ignore[index, arg-type]
        return self._columns.rows(len(bodies), values, wrong)

    def names(self, body: bytes) -> tuple[str, ...] | None:
        """The fields of the message of a record; None if it does not decode."""
        try:
            return names_of(type(self._reader.read(body)))
        except PipelineError:
            return None

    def text(self, body: bytes) -> str | None:
        """A record as JSON; None if it does not decode."""
        try:
            return to_json(as_dict(self._reader.read(body)))
        except PipelineError:
            return None
