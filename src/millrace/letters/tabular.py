"""Dead letters as Arrow tables, for the command line, the server and Python."""

import pyarrow as pa

from millrace.letters.box import LetterBox
from millrace.letters.letter import Chosen

_TIME = pa.timestamp("us", "UTC")
REASONS = pa.schema(
    [("reason", pa.string()), ("letters", pa.int64()), ("fixed", pa.int64()), ("resent", pa.int64()), ("first", _TIME),
     ("last", _TIME), ("hint", pa.string())]
)  # fmt: skip
LETTERS = pa.schema(
    [("letter", pa.int64()), ("state", pa.string()), ("at", _TIME), ("source", pa.string()), ("origin", pa.string()),
     ("partition", pa.int64()), ("offset", pa.int64()), ("output", pa.string()), ("reason", pa.string()),
     ("hint", pa.string()), ("value", pa.string()), ("fixed", pa.string())]
)  # fmt: skip


def reasons_of(box: LetterBox) -> pa.Table:
    """The reasons of the letters, each with its count and its first and last time, the most frequent first."""
    return pa.Table.from_pylist([problem.to_dict() for problem in box.problems()], REASONS)


def letters_of(box: LetterBox, chosen: Chosen, limit: int | None = None) -> pa.Table:
    """The chosen letters, by number, at most `limit`."""
    return pa.Table.from_pylist([letter.to_dict() for letter in box.letters(chosen, limit)], LETTERS)
