"""Protobuf: messages by the descriptors of a schema registry, decoded by Google's own library.

A field that is not set is NULL if its presence is known (optional fields, messages), and the default of its type
otherwise, as Protobuf defines. An enum is the name of its value; wrappers, Timestamp, and the messages for dates and
decimals are plain values.
"""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from millrace.model.duration import to_datetime
from millrace.model.errors import PipelineError

_GOOGLE = "google/protobuf/"
_WRAPPERS = {
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_EPOCH = to_datetime(0)


class ProtobufReader:
    """Reads the messages of one schema."""

    def __init__(self, text: str, used: Mapping[str, str]) -> None:
        """`used` has the schemas that this one imports, by their names. Raises PipelineError if one does not parse."""
        pool = descriptor_pool.DescriptorPool()
        try:
            for name, each in used.items():
                _add(pool, each, name)
            self._file = pool.FindFileByName(_add(pool, text, None))
        except (TypeError, KeyError, ValueError, DecodeError) as error:
            raise PipelineError(f"it is no schema that Protobuf's library can read: {error}") from None
        self._messages: dict[tuple[int, ...], type[Message]] = {}

    def message(self, indexes: tuple[int, ...]) -> type[Message]:
        """The message at a place of the schema: the number of a message, then of one nested in it, and so on.

        Raises PipelineError if there is none.
        """
        if indexes not in self._messages:
            among: Sequence[Descriptor] = list(self._file.message_types_by_name.values())
            found: Descriptor | None = None
            for index in indexes:
                if not 0 <= index < len(among):
                    raise PipelineError(f"the schema has no message {list(indexes)}")
                found = among[index]
                among = found.nested_types
            assert found is not None
            self._messages[indexes] = message_factory.GetMessageClass(found)
        return self._messages[indexes]

    def read(self, body: bytes) -> Message:
        """The message of a record, whose indexes come first. Raises PipelineError if it does not decode."""
        indexes, at = read_indexes(body)
        message = self.message(indexes)()
        try:
            message.ParseFromString(body[at:])
        except DecodeError as error:
            raise PipelineError(str(error)) from None
        return message


def read_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """The place of a message in its schema, and where its bytes begin. A single 0 stands for the first message.

    >>> read_indexes(bytes([4, 2, 0, 8, 1]))
    ((1, 0), 3)
    """
    many, at = _number(body, 0)
    if many == 0:
        return (0,), at
    if not 0 < many <= len(body):
        raise PipelineError("its message indexes are cut off")
    found = []
    for _ in range(many):
        index, at = _number(body, at)
        found.append(index)
    return tuple(found), at


def names_of(message: type[Message]) -> tuple[str, ...]:
    """The names of the fields of a message."""
    return tuple(field.name for field in message.DESCRIPTOR.fields)


def getter(message: type[Message], name: str) -> Callable[[Message], Any]:
    """What reads a field of a message as a Python value; None if it is not set."""
    field = message.DESCRIPTOR.fields_by_name[name]
    value = _value(field)
    if field.has_presence:
        return lambda read: value(getattr(read, name)) if read.HasField(name) else None
    return lambda read: value(getattr(read, name))


def as_dict(message: Message) -> dict[str, Any]:
    """All fields of a message as Python values."""
    kind = type(message)
    return {name: getter(kind, name)(message) for name in names_of(kind)}


def _value(field: Any) -> Callable[[Any], Any]:
    if field.is_repeated:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            item = _single(inner.fields_by_name["value"])
            return lambda given: {key: item(given[key]) for key in given}
        each = _single(field)
        return lambda given: [each(one) for one in given]
    return _single(field)


def _single(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return _same if field.message_type is None else _MESSAGES.get(field.message_type.full_name, as_dict)


def _same(value: Any) -> Any:
    return value


def _timestamp(value: Any) -> Any:
    """A moment; one that is no whole number of microseconds, or outside of the years 1 to 9999, stays as it is."""
    try:
        if value.nanos % 1000 == 0:
            return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError:
        pass
    return {"seconds": value.seconds, "nanos": value.nanos}


def _date(value: Any) -> Any:
    try:
        return date(value.year, value.month, value.day)
    except ValueError:  # only a year, or a month of any year
        return {"year": value.year, "month": value.month, "day": value.day}


def _decimal(value: Any) -> Decimal:
    return Decimal(int.from_bytes(value.value, "big", signed=True)).scaleb(-value.scale)


_MESSAGES: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.type.Date": _date,
    "confluent.type.Decimal": _decimal,
    **dict.fromkeys(_WRAPPERS, lambda value: value.value),
}


def _add(pool: descriptor_pool.DescriptorPool, text: str, name: str | None) -> str:
    """Add a file to a pool, under a name if one is given, and return its name."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except ValueError:
        problem = "the schema registry does not give serialized descriptors of Protobuf"
        raise PipelineError(problem, "use one that knows format=serialized") from None
    file.name = name or file.name or "default.proto"
    for imported in file.dependency:
        if imported.startswith(_GOOGLE):
            _add_google(pool, imported)
    pool.Add(file)
    return file.name


def _add_google(pool: descriptor_pool.DescriptorPool, name: str) -> None:
    """Add a file of Protobuf's own library, and those that it imports."""
    module = name.removeprefix(_GOOGLE).removesuffix(".proto")
    if not module.isidentifier():
        raise KeyError(name)
    found = __import__(f"google.protobuf.{module}_pb2", fromlist=["DESCRIPTOR"]).DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto.FromString(found.serialized_pb)
    for imported in file.dependency:
        _add_google(pool, imported)
    pool.Add(file)


def _number(body: bytes, at: int) -> tuple[int, int]:
    """A whole number of variable length, and where the next one begins."""
    value = shift = 0
    while at < len(body) and shift < 64:
        value |= (body[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if body[at - 1] < 128:
            return (value >> 1) ^ -(value & 1), at
    raise PipelineError("its message indexes are cut off")
