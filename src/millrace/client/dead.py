"""The dead letters of a pipeline from Python, on this machine or over HTTP."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millrace.client.records import texts_of
from millrace.client.result import Result
from millrace.eventlog.topics import Log
from millrace.letters.box import LetterBox
from millrace.letters.fixing import Fixed, fix, fix_texts
from millrace.letters.letter import Chosen
from millrace.letters.resending import resend
from millrace.letters.tabular import letters_of, reasons_of


class DeadLetters(ABC):
    """The records that a pipeline has set aside. `connect().dead(PIPELINE)` makes one.

    Where letters are chosen, `letters` are their numbers and `reason` is one that `reasons` lists; without both, all
    letters are chosen.
    """

    @abstractmethod
    def reasons(self) -> Result:
        """The reasons: reason, letters, fixed, resent, first, last, hint; the most frequent first."""

    def letters(self, letters: Iterable[int] = (), *, reason: str | None = None) -> Result:
        """The letters: letter, state, at, source, origin, partition, offset, output, reason, hint, value, fixed."""
        return self._letters(Chosen(tuple(letters), reason))

    def fix(self, set: Mapping[str, str], letters: Iterable[int] = (), *, reason: str | None = None) -> Fixed:
        """Set fields of records to the values of SQL expressions over their fields: `{"at": "timestamp_millis(ts)"}`.

        A record that then fits the schema of its source is stored as fixed; the result counts these, and has the
        reasons of the others by number.
        """
        return self._fix(Chosen(tuple(letters), reason), set)

    def replace(self, letter: int, record: Mapping[str, Any] | str) -> Fixed:
        """Replace the value of one letter. Refuses a record that does not fit the schema of its source."""
        (text,) = texts_of(record).to_pylist()
        return self._replace(letter, text)

    def resend(
        self, letters: Iterable[int] = (), *, reason: str | None = None, unchanged: bool = False, anyway: bool = False
    ) -> int:
        """Append fixed records to their topics, each exactly once; returns how many.

        With `unchanged`, also those that were not fixed, as they are. A record that other outputs have read is refused,
        as they would read it twice, unless `anyway`.
        """
        return self._resend(Chosen(tuple(letters), reason), unchanged, anyway)

    def drop(self, letters: Iterable[int] = (), *, reason: str | None = None) -> int:
        """Delete letters for good, also those of a later replay; returns how many."""
        return self._drop(Chosen(tuple(letters), reason))

    @abstractmethod
    def _letters(self, chosen: Chosen) -> Result: ...

    @abstractmethod
    def _fix(self, chosen: Chosen, set: Mapping[str, str]) -> Fixed: ...

    @abstractmethod
    def _replace(self, letter: int, text: str) -> Fixed: ...

    @abstractmethod
    def _resend(self, chosen: Chosen, unchanged: bool, anyway: bool) -> int: ...

    @abstractmethod
    def _drop(self, chosen: Chosen) -> int: ...


class LocalDead(DeadLetters):
    """The dead letters in a folder of this machine."""

    def __init__(self, box: LetterBox, log: Callable[[], Log]) -> None:
        """`log` opens the log."""
        self._box, self._log = box, log

    def reasons(self) -> Result:
        """The reasons."""
        return Result(reasons_of(self._box))

    def _letters(self, chosen: Chosen) -> Result:
        return Result(letters_of(self._box, chosen))

    def _fix(self, chosen: Chosen, set: Mapping[str, str]) -> Fixed:
        return fix(self._box, chosen, set)

    def _replace(self, letter: int, text: str) -> Fixed:
        return fix_texts(self._box, {letter: text})

    def _resend(self, chosen: Chosen, unchanged: bool, anyway: bool) -> int:
        return resend(self._box, self._log(), chosen, unchanged, anyway)

    def _drop(self, chosen: Chosen) -> int:
        return self._box.drop(chosen)
