"""Dead letters as values: what was set aside, why, and what was done about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millrace.model.duration import to_datetime
from millrace.model.schema import Schema


class State(StrEnum):
    """What was done about a dead letter."""

    DEAD = "dead"
    FIXED = "fixed"
    """It has a corrected value, which was not sent yet."""
    RESENT = "resent"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record, a row or an answer that a micro-batch has set aside."""

    source: str
    origin: str
    """The file, or the partition of a topic, that holds the record."""
    partition: int | None
    offset: int | None
    """The offset of the record in the origin; None for an answer, and for a row after a dedup."""
    output: str | None
    """The output that has no value for it; None if the record does not fit the schema, so that no output reads it."""
    problem: str
    """The reason without the values of the record."""
    reason: str
    hint: str | None
    value: str | None
    """The text of the record; None if it is not text in UTF-8."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, as it is stored."""

    number: int
    at: int
    """When it was set aside first, in microseconds."""
    rejected: Rejected
    state: State
    fixed: str | None
    """The corrected value."""
    uid: str = ""
    """The id of the topic of its record."""

    @property
    def text(self) -> str | None:
        """The value that would be sent: the corrected one, if there is one."""
        return self.rejected.value if self.fixed is None else self.fixed

    def to_dict(self) -> dict[str, object]:
        """The letter by the names that users see."""
        about = self.rejected
        return {
            "letter": self.number, "state": self.state.value, "at": to_datetime(self.at), "source": about.source,
            "origin": about.origin, "partition": about.partition, "offset": about.offset, "output": about.output,
            "reason": about.reason, "hint": about.hint, "value": about.value, "fixed": self.fixed,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """The dead letters with one problem."""

    problem: str
    letters: int
    fixed: int
    resent: int
    first: int
    """When the first one was set aside, in microseconds."""
    last: int
    hint: str | None

    def to_dict(self) -> dict[str, object]:
        """The problem by the names that users see."""
        return {
            "reason": self.problem, "letters": self.letters, "fixed": self.fixed, "resent": self.resent,
            "first": to_datetime(self.first), "last": to_datetime(self.last), "hint": self.hint,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some dead letters of a pipeline: those with these numbers or this problem; all if neither is given."""

    numbers: tuple[int, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LetterSource:
    """A source of a pipeline, as its dead letters need it."""

    name: str
    kind: str
    schema: Schema
    outputs: tuple[str, ...]
    """The outputs that read it."""
    uid: str = ""
    """The id of the topic, which a topic of the same name that is made later does not have."""
    is_strict: bool = False
    """Whether it refuses records with fields that the schema does not have."""

    @property
    def types(self) -> Mapping[str, str]:
        """The types of its columns, by name."""
        return {column.name: column.type for column in self.schema}
