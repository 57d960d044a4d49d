"""A look at the fields of some records of each bundle: those that are no columns, and columns that are no fields.

Decoding reads only the fields that the schema names, so it cannot tell. Looking at every record would cost as much as
decoding it; a misspelled column is missing in all records, so a few of each bundle are enough.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.model.schema import Schema
from millrace.sources.bundle import Bundle

LOOKED_AT = 20
"""The number of records of a bundle that are looked at."""
_NAMES = 100
"""The number of unknown fields that are counted; records may have any number."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The fields of some records of a source, compared with its columns."""

    records: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    """The fields that are no columns, with the number of records that have them."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """The columns that are no fields of some records, with the number of these."""

    def __add__(self, other: "Looked") -> "Looked":
        unknown = Counter(self.unknown) + Counter(other.unknown)
        missing = Counter(self.missing) + Counter(other.missing)
        return Looked(self.records + other.records, dict(list(unknown.items())[:_NAMES]), dict(missing))

    @property
    def never(self) -> list[str]:
        """The columns that are in none of the records."""
        return [name for name, many in self.missing.items() if many == self.records]

    def to_json(self) -> dict[str, Any]:
        """The counts as a JSON value."""
        return {"records": self.records, "unknown": dict(self.unknown), "missing": dict(self.missing)}


def look(bundle: Bundle, schema: Schema) -> Looked:
    """Look at the first records of a bundle."""
    if bundle.names is not None:
        return compared({tuple(bundle.names): min(LOOKED_AT, len(bundle))}, schema)
    if bundle.texts is None:  # a custom source or a script, whose rows are checked when they are read
        return Looked()
    names = (_names(text) for text in bundle.texts[:LOOKED_AT].to_pylist())
    return compared(Counter(each for each in names if each is not None), schema)


def _names(text: str | None) -> tuple[str, ...] | None:
    try:
        record = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return tuple(record) if isinstance(record, dict) else None


def compared(records: Mapping[tuple[str, ...], int], schema: Schema) -> Looked:
    """The counts of records, given by their names of fields with the number of each."""
    unknown, missing = Counter[str](), Counter[str]()
    columns = schema.names
    for names, many in records.items():
        unknown.update(dict.fromkeys((name for name in names if name not in columns), many))
        missing.update(dict.fromkeys((name for name in columns if name not in names), many))
    return Looked(sum(records.values()), dict(list(unknown.items())[:_NAMES]), dict(missing))


def combined(looks: Iterable[Mapping[str, Looked]]) -> dict[str, Looked]:
    """Several looks, by source, as one."""
    found: dict[str, Looked] = {}
    for each in looks:
        for source, looked in each.items():
            found[source] = found.get(source, Looked()) + looked
    return found
