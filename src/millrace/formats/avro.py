"""Avro: records by their writer's schema, decoded by fastavro.

A record is read by the schema that wrote it, or resolved to a reader's schema, by Avro's rules: then a field that the
writer lacks has the reader's default, and numbers are promoted. Times and dates that become columns of type TIMESTAMP
and DATE are left as numbers, which become a column at once.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from uuid import UUID

from millrace.formats.avro_columns import FlatField, flat_fields
from millrace.model.errors import PipelineError
from millrace.model.extra import extra

with extra("kafka", "Avro"):
    from fastavro import parse_schema, schemaless_reader
    from fastavro.schema import SchemaParseException

_PER_SECOND = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}
_DATE = "date"
_FROM = re.compile(r" from <[^>]*>")
"""What fastavro says of the object that it reads from."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A field that is read as a number: a time with so many units in a second, or a date if there are none."""

    per_second: int | None


class AvroReader:
    """Reads the records of one schema."""

    def __init__(
        self, text: str, used: Iterable[str] = (), columns: Mapping[str, str] | None = None, by: str | None = None,
        used_by: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """`used` has the schemas that this one refers to, `by` is the reader's schema, `columns` has the wanted types.

        Raises PipelineError if a schema does not parse, or is not one of a record.
        """
        self.numbered: dict[str, Numbered] = {}
        """The fields that are read as numbers."""
        writer, reader = _loaded(text), None if by is None else _loaded(by)
        whole = self._whole = writer if reader is None else reader
        if not isinstance(whole, dict) or whole.get("type") != "record" or not isinstance(whole.get("fields"), list):
            raise PipelineError("it is not the schema of a record")
        self.names: tuple[str, ...] = tuple(str(field.get("name")) for field in whole["fields"])
        if reader is None:  # fastavro resolves different units, but not of numbers
            for field in whole["fields"]:
                self._number(field, columns)
        try:
            self._writer = _parsed(writer, used)
            self._reader = None if reader is None else _parsed(reader, used_by)
        except (SchemaParseException, KeyError, TypeError, ValueError) as error:
            raise PipelineError(f"it is no schema that fastavro can read: {error}") from None

    def _number(self, field: dict[str, Any], columns: Mapping[str, str] | None) -> None:
        """Leave the time or date of a field as a number, if its column is a TIMESTAMP or a DATE, or if it has none."""
        if columns is None:
            return
        type = columns.get(str(field.get("name")))
        found = _logical(field.get("type"))
        unit = found.removeprefix("local-").removeprefix("timestamp-")
        if type == "TIMESTAMP" and found != unit and unit in _PER_SECOND:
            self.numbered[str(field["name"])] = Numbered(_PER_SECOND[unit])
            field["type"] = _plain(field["type"])
        elif type == "DATE" and found == _DATE:
            self.numbered[str(field["name"])] = Numbered(None)
            field["type"] = _plain(field["type"])
        elif type is None:
            field["type"] = _plain(field.get("type"))

    def flat(self, columns: Mapping[str, str]) -> list[FlatField] | None:
        """The fields, if all records can be read in columns of these types; else None, and only fastavro can."""
        return flat_fields(self._whole, columns, self.numbered) if self._reader is None else None

    def read(self, bodies: Sequence[bytes]) -> tuple[list[dict[str, Any] | None], dict[int, str]]:
        """The fields of each record, None for those that do not decode; these with the reasons."""
        found: list[dict[str, Any] | None] = []
        wrong: dict[int, str] = {}
        writer, by = self._writer, self._reader
        for row, body in enumerate(bodies):
            file = BytesIO(body)
            try:
                record = schemaless_reader(file, writer, by)
                if file.tell() != len(body):
                    raise ValueError(f"{len(body) - file.tell()} bytes are left over")
            except Exception as error:  # fastavro raises what the bytes lead it to: IndexError, EOFError, ...
                wrong[row] = _FROM.sub("", str(error)) or type(error).__name__
                found.append(None)
            else:
                found.append(record)  # type: ignore[arg-type]
        return found, wrong


def plain(value: Any) -> Any:
    """A value without types of Python that are no values of a column: a UUID is its text."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def has_uuid(schema: str) -> bool:
    """Whether some value of a schema may be a UUID."""
    return '"uuid"' in schema


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PipelineError(f"it is no schema of Avro: {error}") from None


def _parsed(schema: Any, used: Iterable[str]) -> Any:
    known: dict[str, Any] = {}
    for each in used:
        parse_schema(_loaded(each), named_schemas=known)
    return parse_schema(schema, named_schemas=known)


def _logical(type: Any) -> str:
    """The logical type of a field, which may be NULL; the empty text if it has none."""
    if isinstance(type, list):
        others = [each for each in type if each != "null"]
        return _logical(others[0]) if len(others) == 1 else ""
    return str(type.get("logicalType", "")) if isinstance(type, dict) else ""


def _plain(type: Any) -> Any:
    if isinstance(type, list):
        return [_plain(each) for each in type]
    return {name: each for name, each in type.items() if name != "logicalType"} if isinstance(type, dict) else type
