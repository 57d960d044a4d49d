"""Dead letters as a text for an editor: for each a line with its number and its reason, then its record."""

import re
from collections.abc import Sequence

from millrace.letters.letter import Letter

_HEAD = re.compile(r"# (\d+): ")
_HELP = "# Correct the records below. A letter whose record you leave as it is, or remove, is not changed."


def to_edit(letters: Sequence[Letter]) -> str:
    """The text to edit."""
    return "\n".join([_HELP, *(line for letter in letters for line in (_head(letter), letter.text or ""))]) + "\n"


def edited(letters: Sequence[Letter], text: str) -> dict[int, str]:
    """The records that were changed in a text, by the numbers of their letters.

    A reason may have been changed, too: it names the value that a user replaces everywhere.
    """
    numbers = {letter.number for letter in letters}
    found: dict[int, list[str]] = {}
    current: int | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None and int(head[1]) in numbers:
            current = int(head[1])
            found[current] = []
        elif current is not None:
            found[current].append(line)
    before = {letter.number: (letter.text or "").strip() for letter in letters}
    now = {number: "\n".join(lines).strip() for number, lines in found.items()}
    return {number: record for number, record in now.items() if record and record != before[number]}


def _head(letter: Letter) -> str:
    return f"# {letter.number}: {' '.join(letter.rejected.reason.split())}"
