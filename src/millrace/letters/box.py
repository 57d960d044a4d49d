"""The dead letters of one pipeline, in an SQLite file beside its checkpoints.

A letter is identified by the position of its record and by the output that has no value for it. So an edge that reads
the record again, a repeated micro-batch and a replay list it only once. Each checkpoint lists the letters that it has
met; those of the served checkpoint are shown. A record that a replay can read is therefore no longer dead, and is dead
again after a rollback. What was done about a letter belongs to its record, and holds for all checkpoints.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

from millrace.eventlog.sealed import unsealed
from millrace.letters.database import reading, writing
from millrace.letters.letter import Chosen, Letter, LetterSource, Problem, Rejected, State
from millrace.model.errors import ConflictError, NotFoundError, not_found
from millrace.model.schema import parse_schema

SUFFIX = ".dead.db"
BATCH = "batch "
"""The ids of runs in batch mode, which have no checkpoint, start with this."""
_COLUMNS = ", ".join(f"letters.{field.name}" for field in fields(Rejected))
_values = attrgetter(*(field.name for field in fields(Rejected)))
_SHOWN = (
    " FROM letters JOIN met ON met.letter = letters.number LEFT JOIN handled ON handled.record = letters.record"
    " WHERE met.checkpoint = (SELECT served FROM box)"
)
_PUT = (
    "INSERT INTO letters (identity, record, uid, at, source, origin, partition, offset, output, problem, reason, hint,"
    " value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (identity) DO UPDATE SET"
    " problem = excluded.problem, reason = excluded.reason, hint = excluded.hint, value = excluded.value"
)
_STATE = "CASE WHEN resent IS NOT NULL THEN 'resent' WHEN fixed IS NOT NULL THEN 'fixed' ELSE 'dead' END"


def box_of(folder: Path, pipeline: str) -> "LetterBox":
    """The dead letters of a pipeline whose checkpoints are in a folder."""
    return LetterBox(folder / f"{pipeline}{SUFFIX}")


def find_box(folder: Path, pipeline: str) -> "LetterBox":
    """The dead letters of a pipeline that has run. Refuses an unknown pipeline."""
    known = {path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}")}
    for path in folder.glob("*/millrace.json"):
        with suppress(OSError, ValueError, KeyError):  # a damaged checkpoint names no pipeline
            known.add(str(unsealed(path.read_bytes())["pipeline"]))
    if pipeline not in known:
        raise not_found("pipeline", pipeline, sorted(known), "name one that has run, and the folder of its checkpoints")
    return box_of(folder, pipeline)


class LetterBox:
    """The dead letters of a pipeline. Processes may share the file; the first letter creates it."""

    def __init__(self, file: Path) -> None:
        """Open nothing yet."""
        self.file = file.absolute()

    def put(
        self, rejected: Sequence[Rejected], sources: Mapping[str, LetterSource], checkpoint: str, batch: int, now: int
    ) -> int:
        """Store what a micro-batch has set aside; returns how many letters it is the first to list.

        Idempotent: a repeated micro-batch changes nothing, and returns the same number.
        """
        if not rejected:
            return 0
        with writing(self.file, create=True) as database:
            _describe(database, checkpoint, sources.values())
            dropped = {identity for (identity,) in database.execute("SELECT identity FROM dropped")}
            rows = []
            for each in rejected:
                uid = sources[each.source].uid if each.source in sources else ""
                record, identity = _identities(each, uid, f"{checkpoint} {batch}")
                if identity not in dropped:
                    rows.append((identity, record, uid, now, *_values(each)))
            # A file may have been replaced: then what was done about the record at this place no longer counts.
            changed = "SELECT record FROM letters WHERE identity = ? AND value IS NOT ?"
            database.executemany(
                f"DELETE FROM handled WHERE record IN ({changed})", [(row[0], row[-1]) for row in rows]
            )
            database.executemany(_PUT, rows)
            database.executemany(
                "INSERT OR IGNORE INTO met SELECT number, ?, ? FROM letters WHERE identity = ?",
                [(checkpoint, batch, row[0]) for row in rows],
            )
            count = "SELECT count(*) FROM met WHERE checkpoint = ? AND batch = ?"
            return int(database.execute(count, (checkpoint, batch)).fetchone()[0])

    def serve(
        self, checkpoint: str, sources: Mapping[str, LetterSource], is_unread: Callable[[Rejected, str], bool]
    ) -> None:
        """Show the letters of a checkpoint from now on.

        The first time, it takes over those letters of the one before whose records it does not read, by `is_unread` of
        the letter and the id of its topic. Letters that no checkpoint can show any more are deleted.
        """
        if not self.file.exists():
            return
        with writing(self.file) as database:
            _describe(database, checkpoint, sources.values())
            (before,) = database.execute("SELECT served FROM box").fetchone()
            if before == checkpoint:
                return
            if not database.execute("SELECT 1 FROM checkpoints WHERE id = ?", (checkpoint,)).fetchone():
                rows = database.execute(
                    f"SELECT number, uid, {_COLUMNS} FROM letters JOIN met ON letter = number WHERE checkpoint = ?",
                    (before,),
                ).fetchall()
                unread = [number for number, uid, *about in rows if is_unread(Rejected(*about), uid)]
                database.executemany(
                    "INSERT OR IGNORE INTO met VALUES (?, ?, -1)", [(number, checkpoint) for number in unread]
                )
            last = "SELECT coalesce(max(last), 0) + 1 FROM checkpoints"
            database.execute(f"INSERT OR REPLACE INTO checkpoints VALUES (?, ({last}))", (checkpoint,))
            database.execute("UPDATE box SET served = ?", (checkpoint,))
            _forget(database)

    def problems(self) -> list[Problem]:
        """The problems of the letters, the most frequent first."""
        with reading(self.file) as database:
            found = database.execute(
                f"SELECT problem, count(*), sum({_STATE} = 'fixed'), sum({_STATE} = 'resent'), min(at), max(at),"
                f" max(hint){_SHOWN} GROUP BY problem ORDER BY count(*) DESC, problem"
            )
            return [Problem(*row) for row in found]

    def letters(self, chosen: Chosen | None = None, limit: int | None = None) -> list[Letter]:
        """The chosen letters, by number, at most `limit`. Refuses numbers and a problem that no letter has."""
        chosen = chosen or Chosen()
        where, values = _where(chosen)
        with reading(self.file) as database:
            found = database.execute(
                f"SELECT number, letters.at, {_STATE}, fixed, uid, {_COLUMNS}{_SHOWN}{where} ORDER BY number LIMIT ?",
                (*values, -1 if limit is None else limit),
            ).fetchall()
            there = {number for (number,) in database.execute(f"SELECT number{_SHOWN}{where}", values)}
        letters = [
            Letter(number, at, Rejected(*about), State(state), fixed, uid)
            for number, at, state, fixed, uid, *about in found
        ]
        if chosen.problem is not None and not letters and not chosen.numbers:
            raise not_found(
                "reason", chosen.problem, [each.problem for each in self.problems()], "see millrace dead list PIPELINE"
            )
        missing = sorted(set(chosen.numbers) - there)
        if missing:
            raise NotFoundError(f"there is no dead letter {missing[0]}", "see millrace dead show PIPELINE")
        return letters

    def sources(self) -> dict[str, LetterSource]:
        """The sources of the served checkpoint, by name."""
        with reading(self.file) as database:
            rows = database.execute(
                "SELECT name, kind, types, outputs, uid, strict FROM sources"
                " WHERE checkpoint = (SELECT served FROM box)"
            ).fetchall()
        return {
            name: LetterSource(
                name, kind, parse_schema(json.loads(types)), tuple(json.loads(outputs)), uid, bool(strict)
            )
            for name, kind, types, outputs, uid, strict in rows
        }

    def fix(self, values: Mapping[int, str]) -> None:
        """Store corrected values, by number. Refuses a letter that was sent already."""
        with writing(self.file) as database:
            for number, value in values.items():
                changed = database.execute(
                    "INSERT INTO handled (record, fixed) SELECT record, ? FROM letters WHERE number = ?"
                    " ON CONFLICT (record) DO UPDATE SET fixed = excluded.fixed"
                    " WHERE sending IS NULL AND resent IS NULL",
                    (value, number),
                )
                if not changed.rowcount:
                    raise ConflictError(f"dead letter {number} was sent again already", "leave it out")

    def drop(self, chosen: Chosen) -> int:
        """Delete letters for good: they are not listed again, whoever meets them. Returns how many there were."""
        numbers = [(letter.number,) for letter in self.letters(chosen)]
        if numbers:
            with writing(self.file) as database:
                keep = "INSERT OR IGNORE INTO dropped SELECT identity FROM letters WHERE number = ?"
                database.executemany(keep, numbers)
                database.executemany("DELETE FROM letters WHERE number = ?", numbers)
                database.execute("DELETE FROM met WHERE letter NOT IN (SELECT number FROM letters)")
                database.execute("DELETE FROM handled WHERE record NOT IN (SELECT record FROM letters)")
        return len(numbers)

    def begin_sending(self, letters: Sequence[Letter], least: int) -> int:
        """Note that letters are sent in one append; returns its sequence number, which is at least `least`."""
        with writing(self.file) as database:
            (last,) = database.execute("SELECT sequence FROM box").fetchone()
            sequence = max(last + 1, least)
            database.execute("UPDATE box SET sequence = ?", (sequence,))
            for letter in letters:
                begun = database.execute(
                    "INSERT INTO handled (record, sending) SELECT record, ? FROM letters WHERE number = ?"
                    " ON CONFLICT (record) DO UPDATE SET sending = excluded.sending"
                    " WHERE sending IS NULL AND resent IS NULL",
                    (sequence, letter.number),
                )
                if not begun.rowcount:
                    raise ConflictError(f"dead letter {letter.number} is being sent by another process", "try again")
            return int(sequence)

    def unfinished(self) -> dict[int, list[Letter]]:
        """The letters of appends that were begun but not completed, by sequence number; one for each record."""
        with reading(self.file) as database:
            rows = database.execute(
                f"SELECT sending, record, number, letters.at, fixed, uid, {_COLUMNS} FROM letters JOIN handled"
                " USING (record) WHERE sending IS NOT NULL AND resent IS NULL ORDER BY number DESC"
            ).fetchall()
        found: dict[int, dict[str, Letter]] = {}
        for sequence, record, number, at, fixed, uid, *about in rows:
            found.setdefault(sequence, {})[record] = Letter(number, at, Rejected(*about), State.FIXED, fixed, uid)
        return {sequence: list(letters.values()) for sequence, letters in found.items()}

    def finish_sending(self, sequence: int, now: int) -> None:
        """Mark the letters of an append as sent."""
        with writing(self.file) as database:
            database.execute("UPDATE handled SET resent = ? WHERE sending = ?", (now, sequence))

    @property
    def id(self) -> str:
        """The id of the box; no other has it."""
        with reading(self.file) as database:
            return str(database.execute("SELECT id FROM box").fetchone()[0])


def _forget(database: sqlite3.Connection) -> None:
    """Delete what is not shown again: a rollback shows the checkpoint before the last, and nothing an earlier batch."""
    for is_batch, keep in ((False, 2), (True, 1)):
        old = f"SELECT id FROM checkpoints WHERE (id GLOB '{BATCH}*') = ? ORDER BY last DESC LIMIT -1 OFFSET ?"
        for table in ("met", "sources"):
            database.execute(f"DELETE FROM {table} WHERE checkpoint IN ({old})", (is_batch, keep))
        database.execute(f"DELETE FROM checkpoints WHERE id IN ({old})", (is_batch, keep))
    database.execute("DELETE FROM letters WHERE number NOT IN (SELECT letter FROM met)")


def _describe(database: sqlite3.Connection, checkpoint: str, sources: Iterable[LetterSource]) -> None:
    rows = []
    for each in sources:
        types = {column.name: f"{column.type}{' NOT NULL' if column.required else ''}" for column in each.schema}
        about = (json.dumps(types), json.dumps(each.outputs), each.uid, each.is_strict)
        rows.append((checkpoint, each.name, each.kind, *about))
    database.executemany("INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _identities(rejected: Rejected, uid: str, commit: str) -> tuple[str, str]:
    """The identity of a record, and of a letter about it. What has no offset is identified by its micro-batch."""
    place: tuple[object, ...] = (uid, rejected.origin, rejected.offset)
    if rejected.offset is None:
        place = (rejected.origin, commit, rejected.reason, rejected.value)
    record = hashlib.sha256(json.dumps(place).encode()).hexdigest()[:32]
    return record, f"{record} {rejected.output or ''}"


def _where(chosen: Chosen) -> tuple[str, list[object]]:
    where = ""
    values: list[object] = []
    if chosen.numbers:
        where += " AND number IN (SELECT value FROM json_each(?))"
        values.append(json.dumps(chosen.numbers))
    if chosen.problem is not None:
        where += " AND problem = ?"
        values.append(chosen.problem)
    return where, values
