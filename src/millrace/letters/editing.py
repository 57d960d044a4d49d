"""Dead letters as a text for an editor: for each a line with its number and its reason, then its record."""

from collections.abc import Sequence

from millrace.letters.letter import Letter

_HELP = "# Correct the records below. A letter whose record you leave as it is, or remove, is not changed."


def to_edit(letters: Sequence[Letter]) -> str:
    """The text to edit."""
    return "\n".join([_HELP, *(line for letter in letters for line in (_head(letter), letter.text or ""))]) + "\n"


def edited(letters: Sequence[Letter], text: str) -> dict[int, str]:
    """The records that were changed in a text, by the numbers of their letters."""
    heads = {_head(letter): letter for letter in letters}
    found: dict[int, list[str]] = {}
    current: Letter | None = None
    for line in text.splitlines():
        if line in heads:
            current = heads[line]
            found[current.number] = []
        elif current is not None:
            found[current.number].append(line)
    before = {letter.number: (letter.text or "").strip() for letter in letters}
    now = {number: "\n".join(lines).strip() for number, lines in found.items()}
    return {number: record for number, record in now.items() if record and record != before[number]}


def _head(letter: Letter) -> str:
    return f"# {letter.number}: {' '.join(letter.rejected.reason.split())}"
