"""A project that trouble befalls, step by step, and a user who does what each message advises."""

import json
import os
import random
import re
import shlex
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli import app
from millrace.cli.options import EXIT_CODES
from millrace.eventlog.topics import Log
from millrace.model.errors import CorruptError, Kind, MillraceError
from millrace.running.load import load
from millrace.spark import crash
from millrace.views.store import open_store

PIPELINE = """
from pathlib import Path

from millrace import CustomSource, Pipeline, agg, log, on, source, to_files, to_table, to_topic, window


class WrongClock(CustomSource):
    # No rows, in a process whose wall clock is ahead by the seconds that a file holds.

    def start(self):
        return 0

    def end(self):
        import time

        from millrace.spark import source as planned

        ahead = int(Path(AHEAD).read_text()) * 1_000_000
        planned.wall_clock = lambda: time.time_ns() // 1000 + ahead
        return 0

    def splits(self, start, end):
        return []

    def read(self, split):
        return []


columns = "id BIGINT, k STRING, v BIGINT, at TIMESTAMP"
plays = log("plays", columns).union(source("clock", columns, WrongClock()))
timed = plays.event_time("at", delay="0s").group_by("k")
fixed = timed.window(window.fixed("10s"), lateness="1000d").trigger(on.each())
counts = {"n": agg.count(), "total": agg.sum("v")}
retracting = fixed.retracting().aggregate(**counts)
visits = timed.window(window.session("5s"), lateness="1000d").trigger(on.each()).retracting()
once = plays.dedup("id").event_time("at", delay="0s").group_by("k").window(window.all_time()).trigger(on.each())
views = {
    "accumulating": fixed.accumulating().aggregate(**counts),
    "retracting": retracting,
    "discarding": fixed.discarding().aggregate(**counts),
    "visits": visits.aggregate(**counts),
    "deduped": once.accumulating().aggregate(**counts),
}
sinks = [retracting.to(to_table("out.db", "changes")), retracting.to(to_files("out", "json")), *TOPIC]
walk = Pipeline("walk", views=views, sinks=sinks)
"""
TOPIC = 'TOPIC = [fixed.retracting().aggregate(**counts).to(to_topic("alerts"))]\n'
SESSION = 5
_VIEWS_DB = ".millrace/views.db"

Total = tuple[int, int]
Answers = dict[str, Any]


class CrashError(Exception):
    """The end of a run at a point where tests may kill it."""


class Walk:
    """One project in a folder, and its user."""

    def __init__(self, folder: Path, seed: int, ahead: Path, topic_sink: bool, store: str = _VIEWS_DB) -> None:
        """A project in a folder, which `create` creates or which is a copy; `ahead` is the file of the wrong clock."""
        self.draw, self.store, self.topic_sink = random.Random(seed), store, topic_sink
        self.folder, self.copies = folder, folder.with_name(f"{folder.name} copies")
        self.ahead = ahead
        self.log: list[str] = []
        self.known: dict[tuple[int, int], dict[str, Any]] = {}
        """The records of the log, by partition and offset, as they were when they could be read."""
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        ahead.write_text("0")

    def create(self) -> None:
        """Write the pipeline, and create its topics."""
        topic = TOPIC if self.topic_sink else "TOPIC = []\n"
        head, _, tail = PIPELINE.partition("views = {")
        Path("walk.py").write_text(f"AHEAD = {str(self.ahead)!r}\n{head}{topic}views = {{{tail}")
        self.told("topics", "create", "plays", "--partitions", "2")
        self.told("topics", "create", "alerts")

    # --- What a user does ---

    def told(self, *command: str) -> tuple[int, str]:
        """Type a command; returns its exit code and its last line."""
        result = CliRunner().invoke(app, list(command))
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            raise AssertionError(f"{self}: {command} ended with {error!r}") from error
        *_, line = ["", *result.output.strip().splitlines()]
        self.log.append(f"{shlex.join(command)} -> {result.exit_code} {line[-300:]}")
        return result.exit_code, line

    def run(self) -> tuple[int, str]:
        return self.told("run", "walk.py", "--until-caught-up", *self._store())

    def send(self) -> None:
        """Append records to the log."""
        lines = []
        for _ in range(self.draw.randint(1, 30)):
            id = self.draw.randrange(60)  # rows with the same id are the same, so that dedup may keep any of them
            at = f"2026-01-01T00:{id * 7 % 2:02}:{id * 13 % 60:02}Z"
            lines.append(json.dumps({"id": id, "k": "abc"[id % 3], "v": id % 9, "at": at}))
        Path("send.json").write_text("\n".join(lines))
        self.told("send", "plays", "send.json", "--key", "k")

    def crash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run, and die at a point of the delivery."""
        points = [point for point in crash.POINTS if point.startswith("sink")]
        wanted, left = self.draw.choice(points), self.draw.randrange(3)

        def reach(point: str) -> None:
            nonlocal left
            if point == wanted:
                left -= 1
                if left < 0:
                    raise CrashError

        with monkeypatch.context() as patched:
            for module in ("writers", "filesink", "tablesink"):
                patched.setattr(f"millrace.spark.{module}.reach", reach)
            try:
                self.run()
            except AssertionError as error:
                if not isinstance(error.__cause__, CrashError):
                    raise

    def replay(self) -> None:
        self.told("replay", "walk.py", *self._store(), *(["--no-resend"] if self.topic_sink else []))

    def savepoint(self) -> None:
        self.told("savepoint", "walk.py", f"s{len(self.log)}", *self._store())

    def from_savepoint(self) -> None:
        """Start from a savepoint, in the place of the checkpoint."""
        saved = sorted(Path(".millrace/savepoints").glob("*"))
        if saved:
            self._away(Path(".millrace/walk"))
            chosen = str(self.draw.choice(saved))
            self.told("run", "walk.py", "--until-caught-up", "--from-savepoint", chosen, *self._store())

    # --- What happens to a user ---

    def parts(self) -> list[Path]:
        """All that a backup might hold, or miss."""
        folders = [path for path in Path(".millrace").glob("walk*") if path.is_dir()]
        inside = [folder / name for folder in folders for name in ("spark", "sources", "millrace.json")]
        found = [Path(".millrace/log.db"), Path(".millrace/views.db"), Path("out.db"), Path("out"), *folders, *inside]
        return [path for path in found if path.exists()]

    def copy(self) -> None:
        """Copy a part, to put it back later."""
        part = self.draw.choice(self.parts())
        to = self.copies / str(len(self.log)) / part
        to.parent.mkdir(parents=True)
        for path in _with_journal(part):
            if path.is_dir():
                shutil.copytree(path, to)
            else:
                shutil.copy2(path, to.with_name(path.name))
        self.log.append(f"copied {part}")

    def put_back(self) -> None:
        """Put an older copy of a part in its place."""
        copies = sorted(self.copies.glob("*"))
        if copies:
            chosen = self.draw.choice(copies)
            for old in (path for path in chosen.rglob("*") if path.is_file()):
                part = Path(*old.relative_to(chosen).parts[:3])
                break
            else:
                return
            part = next(each for each in [*part.parents, part] if (chosen / each).exists() and each in _PARTS(chosen))
            self._remove(part)
            part.parent.mkdir(parents=True, exist_ok=True)
            if (chosen / part).is_dir():
                shutil.copytree(chosen / part, part)
            else:
                for path in _with_journal(chosen / part):
                    shutil.copy2(path, part.with_name(path.name))
            self.log.append(f"put back {part} of {chosen.name}")

    def delete(self) -> None:
        """Lose a part."""
        part = self.draw.choice(self.parts())
        self._remove(part)
        self.log.append(f"deleted {part}")

    def damage(self) -> None:
        """Flip a bit of a file of the checkpoint, or cut it."""
        files = [path for path in Path(".millrace").glob("walk*/**/*") if path.is_file()]
        self._damage([path for path in files if path.name not in ("lock", "spark.log")])

    def damage_database(self) -> None:
        """Flip a bit of a database, or cut it."""
        self.remember()
        self._damage([Path(".millrace/log.db"), Path(_VIEWS_DB), Path("out.db")])

    def jump(self) -> None:
        """Set the clock ahead, or right again."""
        seconds = self.draw.choice([0, 0, 60, 86_400])
        self.ahead.write_text(str(seconds))
        self.log.append(f"the clock is {seconds} s ahead")

    def fill(self) -> None:
        """Run on a disk without room, then make room."""
        room = os.statvfs(".").f_bavail * os.statvfs(".").f_bsize
        left = self.draw.randrange(1 << 19)
        Path("filler").write_bytes(bytes(max(room - left, 0)))
        self.log.append(f"left {left} bytes of room")
        self.run()
        Path("filler").unlink()

    def beside(self) -> None:
        """Start a run while another one runs; it is refused, and the other one then stopped."""
        walk = load(Path("walk.py"))
        try:
            first = walk.run(store=self.store)
        except MillraceError as error:
            self.log.append(f"walk.run() -> {error}")
            return
        code, line = self.run()
        first.stop()
        assert (code, "another run uses the checkpoint" in line) == (EXIT_CODES[Kind.MACHINE], True), self

    def _damage(self, files: list[Path]) -> None:
        files = [path for path in files if path.exists() and path.stat().st_size]
        if not files:
            return
        path = self.draw.choice(sorted(files))
        data = bytearray(path.read_bytes())
        if self.draw.random() < 0.5:
            data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
        else:
            del data[self.draw.randrange(len(data)) :]
        path.write_bytes(data)
        self.log.append(f"damaged {path}")

    def move(self) -> None:
        """Move the project to another folder."""
        to = self.folder.with_name(f"{self.folder.name} moved")
        os.chdir("/")
        self.folder.rename(to)
        self.folder = to
        os.chdir(to)
        self.log.append("moved the folder")

    def topic_again(self) -> None:
        """Remove the topic and make it again."""
        self.told("topics", "remove", "plays", "--yes")
        self.told("topics", "create", "plays", "--partitions", "2")
        if self.draw.random() < 0.5:
            self.send()

    # --- What must hold ---

    def settle(self) -> None:
        """Run, and do what the messages advise, until the answers are exact."""
        for _ in range(8):
            code, line = self.run()
            if code == 0:
                self.check()
                return
            commands = re.findall(r"millrace ((?:replay|topics create|repair|run) [^;]*?)(?:;|$|, or| \()", line)
            assert commands, f"{self}: no advice in {line!r}"
            words = [word if word != "FILE" else "walk.py" for word in shlex.split(commands[0])]
            if words[0] == "topics":
                words += ["--partitions", "2"] if words[2] == "plays" else []
            elif "--store" not in words:
                words += self._store()
            _, line = self.told(*words)
            if "--resend" in line:
                self.told(*words, "--resend")
        raise AssertionError(f"{self}: the advice leads nowhere")

    def check(self) -> None:
        """Compare the answers with those of plain Python for the log as it is.

        Records that were damaged after they were read are still in the answers, until a replay.
        """
        found, now = self.found(), self.records()
        damaged = {place: record for place, record in self.known.items() if place not in now}
        assert found in (expected(now), expected({**now, **damaged})), self
        self.known = {**damaged, **now} if found != expected(now) else now

    def remember(self) -> None:
        """Remember the records of the log, which is about to be damaged."""
        if Path(".millrace/log.db").exists():
            self.known = {**self.known, **self.records()}

    def records(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The records of the log that can be read, by partition and offset."""
        log = Log(".millrace/log.db")
        found = {}
        for partition, (start, end) in enumerate(zip(log.starts("plays"), log.ends("plays"), strict=True)):
            for offset in range(start, end):
                with suppress(CorruptError):
                    for text in log.read("plays", partition, offset, offset + 1)["value"].to_pylist():
                        found[partition, offset] = json.loads(text)
        return found

    def found(self) -> Answers:
        """The answers in views and sinks."""
        with closing(open_store(self.store)) as store:
            tables = {name: store.rows(name).rows.to_pylist() for name in _VIEWS}
        rows = {
            name: Counter({_key(row): 1 for row in table} if name != "discarding" else _summed(table))
            for name, table in tables.items()
        }
        found: Answers = {name: dict(each) for name, each in rows.items()}
        found["table"], found["files"] = _net(_in_table()), _net(_in_files())
        return found

    def _store(self) -> list[str]:
        return [] if self.store == _VIEWS_DB else ["--store", self.store]

    def _remove(self, part: Path) -> None:
        for path in _with_journal(part):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _away(self, part: Path) -> None:
        if part.exists():
            part.rename(part.with_name(f"old-{len(self.log)}"))

    def __str__(self) -> str:
        return "\n  ".join([f"in {self.folder}:", *self.log])


_VIEWS = ("accumulating", "retracting", "discarding", "visits", "deduped")


def _PARTS(chosen: Path) -> set[Path]:  # noqa: N802
    fixed = {Path(".millrace/log.db"), Path(".millrace/views.db"), Path("out.db"), Path("out")}
    walks = {Path(".millrace", path.name) for path in (chosen / ".millrace").glob("walk*")}
    deeper = {walk / name for walk in walks for name in ("spark", "sources", "millrace.json")}
    return {path for path in fixed | walks | deeper if (chosen / path).exists()}


def _with_journal(part: Path) -> list[Path]:
    """A part; of a database, with its journal."""
    return [path for path in (part, Path(f"{part}-wal"), Path(f"{part}-shm")) if path.exists()]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["k"], row.get("window_start"), row.get("window_end"), row["n"], row["total"]


def _summed(table: list[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    totals: dict[tuple[Any, ...], list[int]] = {}
    for row in table:
        total = totals.setdefault((row["k"], row["window_start"], row["window_end"]), [0, 0])
        total[0] += row["n"]
        total[1] += row["total"]
    return {(*key, *total): 1 for key, total in totals.items()}


def _in_table() -> list[tuple[Any, ...]]:
    if not Path("out.db").exists():
        return []
    with closing(sqlite3.connect("out.db")) as database:
        if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'changes'").fetchone():
            return []
        return database.execute("SELECT k, window_start, n, total, diff FROM changes").fetchall()


def _in_files() -> list[tuple[Any, ...]]:
    rows = [json.loads(line) for path in Path("out").glob("walk-*.json") for line in path.read_text().splitlines()]
    return [(row["k"], row["window_start"], row["n"], row["total"], row["diff"]) for row in rows]


def _net(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    """The rows that stand, with how often."""
    net = Counter[tuple[Any, ...]]()
    for *row, diff in rows:
        net[row[0], str(row[1])[14:19], *row[2:]] += diff
    return {row: many for row, many in net.items() if many}


def expected(found: dict[tuple[int, int], dict[str, Any]]) -> Answers:
    """The answers to the records of a log, computed in plain Python."""
    records = list(found.values())
    for record in records:
        record["time"] = datetime.fromisoformat(record["at"])

    def totals(keyed: Callable[[dict[str, Any]], tuple[Any, ...]], of: list[dict[str, Any]]) -> dict[Any, int]:
        sums: dict[tuple[Any, ...], list[int]] = {}
        for record in of:
            total = sums.setdefault(keyed(record), [0, 0])
            total[0] += 1
            total[1] += record["v"]
        return {(*key, *total): 1 for key, total in sums.items()}

    def windowed(record: dict[str, Any]) -> tuple[Any, ...]:
        start = record["time"].replace(second=record["time"].second // 10 * 10)
        return record["k"], start, start + timedelta(seconds=10)

    fixed = totals(windowed, records)
    visits: dict[tuple[Any, ...], int] = {}
    for key in {record["k"] for record in records}:
        theirs = sorted((record for record in records if record["k"] == key), key=lambda record: record["time"])
        groups: list[list[dict[str, Any]]] = []
        for record in theirs:
            if not groups or record["time"] - groups[-1][-1]["time"] >= timedelta(seconds=SESSION):
                groups.append([])
            groups[-1].append(record)
        for group in groups:
            ends = group[-1]["time"] + timedelta(seconds=SESSION)
            visits[key, group[0]["time"], ends, len(group), sum(record["v"] for record in group)] = 1
    net = {(key, start.strftime("%M:%S"), n, total): 1 for key, start, _, n, total in fixed}
    distinct = {record["id"]: record for record in records}
    deduped = totals(lambda record: (record["k"], None, None), list(distinct.values()))
    return {
        "accumulating": fixed, "retracting": fixed, "discarding": fixed, "visits": visits, "deduped": deduped,
        "table": net, "files": net,
    }  # fmt: skip
