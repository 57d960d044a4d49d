"""Every row of the table "After trouble" in docs/operations.md.

Each case damages, deletes or puts back a part of a project, and runs the pipeline. The run is right, or refuses; then
the first command of its advice is followed as it was printed, until a run succeeds. The views then equal the records in
the log, counted in plain Python.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, closing
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from millrace.cli import app
from millrace.eventlog.topics import Log
from millrace.views.store import open_store
from postgres import Postgres

pytestmark = pytest.mark.spark

CHARTS = """
from millrace import Pipeline, agg, log, on, to_files, to_table, to_topic, window

users = log("plays", "user STRING").group_by("user").window(window.all_time()).trigger(on.each())
counted = users.accumulating().aggregate(plays=agg.count())
added = users.discarding().aggregate(plays=agg.count())
charts = Pipeline("charts", {"counts": counted}, sinks=[added.to(to_files("out", "json")),
                                                       added.to(to_table("sink.db", "added"))])
alerts = Pipeline("alerts", {"others": counted}, sinks=[added.to(to_topic("sent"))])
"""
ONLY_VIEWS = """
from millrace import Pipeline, agg, log, on, window

users = log("plays", "user STRING").group_by("user").window(window.all_time()).trigger(on.each())
charts = Pipeline("charts", {"counts": users.accumulating().aggregate(plays=agg.count())})
"""
HOME = Path(".millrace")
LOG, VIEWS, CHECKPOINT = HOME / "log.db", HOME / "views.db", HOME / "charts"
RUN = "run charts.py --pipeline charts --until-caught-up"
REPLAY, REPAIR = "replay charts.py --pipeline charts", "repair charts.py --pipeline charts --yes"
COMMAND = re.compile(r"millrace ((?:replay|repair|run|topics|send)\b[^;\n)]*)")


def send(*users: str) -> None:
    """Append records in a block of their own: it is too large to be merged."""
    with closing(Log(LOG)) as log:
        first, *rest = ({"user": user} for user in users)
        log.append("plays", [json.dumps({**first, "padding": os.urandom(560_000).hex()}), *map(json.dumps, rest)])


def command(text: str) -> Result:
    return CliRunner().invoke(app, shlex.split(text))


def succeed(text: str) -> str:
    done = command(text)
    assert done.exit_code == 0, done.output
    return done.output


def in_log(topic: str = "plays") -> Counter[str]:
    """The records of each user in the log as it is."""
    with closing(Log(LOG)) as log:
        bounds = zip(log.starts(topic), log.ends(topic), strict=True)
        found = [log.read(topic, number, *each)["value"].to_pylist() for number, each in enumerate(bounds)]
    return Counter(json.loads(value)["user"] for values in found for value in values)


def in_view(view: str = "counts", store: str | Path = VIEWS) -> Counter[str]:
    with closing(open_store(store)) as opened:
        rows = opened.query(f'SELECT "user", plays FROM {view}').rows
    assert len({user for user, _ in rows}) == len(rows)
    return Counter(dict(rows))


def total(rows: Iterator[tuple[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for user, plays in rows:
        found[user] += plays
    return found


def in_files() -> Counter[str]:
    texts = [path.read_text() for path in Path("out").glob("*.json") if path.name[0] != "_"]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return total((row["user"], row["plays"]) for row in rows)


def in_table() -> Counter[str]:
    with closing(sqlite3.connect("sink.db")) as database:
        return total(iter(database.execute("SELECT user, plays FROM added")))


def in_topic() -> Counter[str]:
    with closing(Log(LOG)) as log:
        values = log.read("sent", 0, 0, *log.ends("sent"))["value"].to_pylist()
    return total((row["user"], row["plays"]) for row in map(json.loads, values))


def follow(text: str, most: int = 8) -> list[str]:
    """Run a command, and follow the advice until the first command succeeds; returns the commands of the advice."""
    followed: list[str] = []
    for _ in range(most):
        done = command(text)
        assert "Traceback" not in done.output, done.output
        if done.exit_code == 0:
            return followed
        advised = COMMAND.search(done.output)
        assert advised is not None, done.output
        followed.append(advised[1].strip().replace("FILE", "charts.py --pipeline charts"))
        command(followed[-1])
    raise AssertionError(f"{followed} do not help: {done.output}")


@pytest.fixture(scope="module")
def made(one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose pipelines have run twice and have two blocks to read; `older` is a copy after the first run."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        Path("charts.py").write_text(CHARTS)
        succeed("topics create plays")
        succeed("topics create sent")
        send("ann", "bob")
        succeed(f"{RUN} --shards 1")
        succeed(RUN.replace("charts --until", "alerts --until") + " --shards 1")
        shutil.copytree(folder, folder.with_name(f"{folder.name}-older"))
        send("ann", "cal")
        succeed(RUN)
        succeed(RUN.replace("charts --until", "alerts --until"))
        succeed("savepoint charts.py saved --pipeline charts")
        send("ann", "dan")
        send("bob", "eve")
    shutil.copytree(folder.with_name(f"{folder.name}-older"), folder / "older")
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, as the working folder."""
    shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def remove(*paths: str | Path) -> Callable[[], None]:
    def trouble() -> None:
        for path in map(Path, paths):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            for side in ("-wal", "-shm"):
                path.with_name(f"{path.name}{side}").unlink(missing_ok=True)

    return trouble


def remove_one(folder: str) -> Callable[[], None]:
    """Remove the first file of a file sink."""
    return lambda: min(Path(folder).glob("charts-*")).unlink()


def put_back(path: str | Path, then: Callable[[], None] = lambda: None) -> Callable[[], None]:
    def trouble() -> None:
        if Path(path).exists():
            remove(path)()
        if (older := Path("older", path)).is_dir():
            shutil.copytree(older, path)
        else:
            for side in ("", "-wal", "-shm"):
                if (copy := older.with_name(f"{older.name}{side}")).exists():
                    shutil.copy(copy, Path(path).with_name(copy.name))
        then()

    return trouble


def cut(path: Path, pattern: str) -> Callable[[], None]:
    def trouble() -> None:
        (file,) = (each for each in path.glob(pattern) if not each.name.endswith(".crc"))
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return trouble


def empty(file: Path) -> Callable[[], None]:
    def trouble() -> None:
        file.write_bytes(b"")

    return trouble


def overwrite(path: Path) -> Callable[[], None]:
    """Overwrite the pages of an SQLite database after the first."""

    def trouble() -> None:
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = DELETE")
        data = path.read_bytes()
        assert len(data) > 8_192
        path.write_bytes(data[:4_096] + b"\xa5" * (len(data) - 4_096))

    return trouble


def damage_page(path: Path, table: str) -> Callable[[], None]:
    """Overwrite the first page of a table of an SQLite database."""

    def trouble() -> None:
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = DELETE")
            (size,) = database.execute("PRAGMA page_size").fetchone()
            roots = dict(database.execute("SELECT name, rootpage FROM sqlite_schema"))
        page = roots.get(table, 1)
        with path.open("rb+") as file:
            file.seek((page - 1) * size)
            file.write(b"\xa5" * size)

    return trouble


def damage_block(*firsts: int) -> Callable[[], None]:
    def trouble() -> None:
        with closing(sqlite3.connect(LOG, isolation_level=None)) as database:
            plays = database.execute("SELECT id FROM topics WHERE name = 'plays'").fetchone()[0]
            for first in firsts:
                sql = "SELECT content FROM blocks WHERE topic = ? AND first = ?"
                (content,) = database.execute(sql, (plays, first)).fetchone()
                with database.blobopen("contents", "block", content) as blob:
                    blob.seek(5_000)
                    (byte,) = blob.read(1)
                    blob.seek(5_000)
                    blob.write(bytes([byte ^ 1]))

    return trouble


def make_again(topic: str) -> Callable[[], None]:
    def trouble() -> None:
        succeed(f"topics remove {topic}")
        succeed(f"topics create {topic}")
        if topic == "plays":
            send("ann", "fay", "fay", "gus", "ida")

    return trouble


def uncommit(then: Callable[[], None]) -> Callable[[], None]:
    """Let the second micro-batch be in progress: its answers are written, but Spark has not committed it."""

    def trouble() -> None:
        for name in ("1", ".1.crc"):
            (CHECKPOINT / "spark" / "commits" / name).unlink()
        then()

    return trouble


def retain() -> None:
    """Keep only the last block."""
    with closing(Log(LOG)) as log:
        log.change("plays", max_bytes=1_000)
        log.retain()
        assert log.starts("plays") == [6]


def stop_a_replay() -> None:
    with closing(open_store(VIEWS)) as store:
        assert store.begin_generation("charts", [], 2) == 2
    shutil.copytree(CHECKPOINT, HOME / "charts@2")


def remove_a_topic() -> None:
    succeed("topics remove plays")


def restore_all() -> None:
    for path in (LOG, VIEWS, CHECKPOINT, "out", "sink.db"):
        put_back(path)()


@dataclass(frozen=True)
class Case:
    trouble: Callable[[], None]
    advice: list[str] = field(default_factory=lambda: [REPLAY])
    """The commands that are followed."""


CASES = {
    "log.db is deleted": Case(remove(LOG), ["topics create plays", REPLAY]),
    "an older log.db is put back": Case(put_back(LOG)),
    "an older log.db is put back, and records are sent": Case(
        put_back(LOG, lambda: send("zoe", "zoe", "ann", "ann", "ann"))
    ),
    "a block of log.db that was not read is damaged": Case(damage_block(4), [REPAIR]),
    "all blocks of log.db that were not read are damaged": Case(damage_block(4, 6), [REPAIR]),
    "a block of the micro-batch in progress is damaged": Case(uncommit(damage_block(2)), [REPAIR, REPLAY]),
    "retention removed records of the micro-batch in progress": Case(uncommit(retain)),
    "a topic is removed": Case(remove_a_topic, ["topics create plays", REPLAY]),
    "a topic is made again": Case(make_again("plays")),
    "views.db is deleted": Case(remove(VIEWS)),
    "an older views.db is put back": Case(put_back(VIEWS)),
    "views.db is damaged": Case(overwrite(VIEWS), [REPAIR, REPLAY]),
    "the checkpoint is deleted": Case(remove(CHECKPOINT)),
    "an older checkpoint is put back": Case(put_back(CHECKPOINT)),
    "millrace.json is damaged": Case(cut(CHECKPOINT, "millrace.json")),
    "millrace.json is deleted": Case(remove(CHECKPOINT / "millrace.json")),
    "the journal of a source is damaged": Case(cut(CHECKPOINT, "sources/*.json")),
    "Spark's part is deleted": Case(remove(CHECKPOINT / "spark")),
    "Spark's offsets are damaged": Case(cut(CHECKPOINT, "spark/offsets/1")),
    "Spark's offsets of a batch that has answers are damaged": Case(uncommit(cut(CHECKPOINT, "spark/offsets/1"))),
    "Spark's offsets of a batch that has not begun are empty": Case(empty(CHECKPOINT / "spark" / "offsets" / "2"), []),
    "Spark's last commit is empty": Case(empty(CHECKPOINT / "spark" / "commits" / "1"), []),
    "Spark's last commit is cut": Case(cut(CHECKPOINT, "spark/commits/1"), []),
    "Spark's state is damaged": Case(cut(CHECKPOINT, "spark/state/0/0/2.changelog")),
    "Spark's state is deleted": Case(remove(CHECKPOINT / "spark" / "state")),
    "the table sink is deleted": Case(remove("sink.db")),
    "the table sink is damaged": Case(overwrite(Path("sink.db")), [REPAIR, REPLAY]),
    "an older table sink is put back": Case(put_back("sink.db")),
    "the record of the file sink is damaged": Case(cut(Path("out"), ".millrace-charts")),
    "the file sink is deleted": Case(remove("out")),
    "a file of the file sink is deleted": Case(remove_one("out")),
    "a file of the file sink is cut": Case(cut(Path("out"), "charts-*-000000001.json")),
    "an older file sink is put back": Case(put_back("out")),
    "older copies of all parts are put back": Case(restore_all, []),
    "the project is moved": Case(lambda: None, []),
}


@pytest.mark.parametrize("name", CASES)
def test_the_advice_leads_to_exact_answers(project: Path, name: str) -> None:
    case = CASES[name]
    case.trouble()
    assert follow(RUN) == case.advice
    assert in_view() == in_files() == in_table() == in_log()
    assert succeed("repair charts.py --pipeline charts") == "nothing is wrong\n"


def test_a_damaged_block_that_was_read_concerns_only_a_replay(project: Path) -> None:
    before = in_log()
    damage_block(0)()
    assert follow(RUN) == []
    assert in_view() == before
    found = command("repair charts.py --pipeline charts")
    assert found.exit_code == 6
    assert "offsets 0 to 1 of plays/0 are damaged: its checksum does not match" in found.output
    assert "2 records are lost; the answers include them until the next replay" in found.output
    assert follow(REPLAY) == [REPAIR]
    assert in_view() == in_files() == in_table() == in_log() == before - Counter(["ann", "bob"])
    topics = [json.loads(line) for line in succeed("topics --format json").splitlines()]
    assert {each["topic"]: each["skipped"] for each in topics} == {"plays": 2, "sent": None}


def test_records_that_retention_removed_unread_are_skipped(project: Path) -> None:
    before = in_log()
    retain()
    found = command("repair charts.py --pipeline charts")
    assert (found.exit_code, Path(CHECKPOINT, "skipped.json").exists()) == (6, False)
    assert "retention removed offsets 4 to 5 of plays/0 unread\n" in found.output
    assert "2 records are lost; the answers keep all that was read before" in found.output
    assert follow(RUN) == [REPAIR]
    assert in_view() == in_files() == in_table() == before - Counter(["ann", "dan"])
    send("ann", "dan")
    assert follow(RUN) == []
    assert in_view() == in_files() == in_table() == before
    (status,) = [each for each in map(json.loads, succeed("status --format json").splitlines())
                 if each["pipeline"] == "charts"]  # fmt: skip
    assert status["skipped"] == 2
    assert succeed("repair charts.py --pipeline charts") == "nothing is wrong\n"
    assert follow(REPLAY) == []
    assert in_view() == in_files() == in_table() == in_log()


def test_a_log_that_sqlite_cannot_read_is_restored_from_a_copy(project: Path) -> None:
    overwrite(LOG)()
    refused = command(RUN)
    assert refused.exit_code in (5, 6)
    found = command("repair charts.py --pipeline charts")
    assert found.exit_code == 6
    assert "no topic in it can be read" in found.output
    assert "put a copy of the log in its place (records appended since the copy are lost)" in found.output
    put_back(LOG)()
    assert follow(RUN) == [REPLAY]
    assert in_view() == in_files() == in_table() == in_log()


@pytest.mark.parametrize("table", ["partitions", "sqlite_schema"])
def test_what_can_be_read_of_a_damaged_log_is_saved(project: Path, table: str) -> None:
    before = in_log()
    damage_page(LOG, table)()
    found = command("repair charts.py --pipeline charts")
    assert found.exit_code == 6
    save = "save the records of plays, sent that can be read in a new log, and move the damaged one aside"
    assert f"{save} (records in damaged pages are lost): millrace {REPAIR}" in found.output
    damaged = LOG.read_bytes()
    assert follow(RUN) == [REPAIR]
    assert in_view() == in_files() == in_table() == in_log() == before
    (aside,) = HOME.glob("log.db.damaged-*")
    assert aside.read_bytes() == damaged
    assert succeed("repair charts.py --pipeline charts") == "nothing is wrong\n"


def test_a_topic_sink_that_was_made_again_receives_all_answers_again(project: Path) -> None:
    make_again("sent")()
    run = RUN.replace("--pipeline charts", "--pipeline alerts")
    refused = command(run)
    assert refused.exit_code == 6
    replay = REPLAY.replace("--pipeline charts", "--pipeline alerts")
    assert refused.output.strip().endswith(f"millrace {replay}")
    choice = command(replay)
    assert choice.exit_code == 2
    assert f"send all answers to it again: millrace {replay} --resend;" in choice.output
    succeed(f"{replay} --resend")
    assert follow(run) == []
    assert in_view("others") == in_topic() == in_log()


@pytest.mark.parametrize("lost", ["commits/1", "offsets/2", "commits/1 offsets/2"])
def test_a_power_cut_in_a_micro_batch_is_no_trouble(project: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """Spark does not fsync its files: after a power cut, those that it wrote last may be empty."""

    def reach(point: str) -> None:
        if point == "sink before write":
            raise ValueError("a power cut")

    with monkeypatch.context() as patched:
        patched.setattr("millrace.spark.writers.reach", reach)
        command(RUN)
    state = CHECKPOINT / "spark" / "state" / "0" / "0"
    assert (state / "3.changelog").exists()
    if "offsets" in lost:
        (state / "3.changelog").rename(state / "3.zip")  # Spark would take it up as the state after the batch
    for name in lost.split():
        empty(CHECKPOINT / "spark" / name)()
    assert follow(RUN) == []
    assert in_view() == in_files() == in_table() == in_log()


def test_a_consumer_may_remove_files(project: Path) -> None:
    Path("charts.py").write_text(CHARTS.replace('"out", "json"', '"out", "json", consumed=True'))
    remove_one("out")()
    taken = in_log()
    assert follow(RUN) == []
    assert in_view() == in_table() == in_log()
    assert in_files() == taken - Counter(["ann", "bob"])


USER_SINKS = """
import json
from pathlib import Path

from millrace import Commit, CustomSink, Pipeline, agg, log, on, to_function, to_sink, window

users = log("plays", "user STRING").group_by("user").window(window.all_time()).trigger(on.each())
added = users.discarding().aggregate(plays=agg.count())

def call(rows, batch):
    with Path("called.json").open("a") as file:
        file.writelines(json.dumps(row) + "\\n" for row in rows)

class Stored(CustomSink):
    def write(self, rows, commit):
        texts = Path("stored.json").read_text().splitlines() if Path("stored.json").exists() else []
        key = [commit.pipeline, commit.checkpoint, commit.batch, commit.digest]
        if key not in [json.loads(text)["commit"] for text in texts]:
            texts.append(json.dumps({"commit": key, "rows": rows.to_pylist()}))
            Path("stored.json").write_text("\\n".join(texts))

class Telling(Stored):
    def last(self, pipeline, checkpoint):
        texts = Path("stored.json").read_text().splitlines() if Path("stored.json").exists() else []
        found = [Commit(*json.loads(text)["commit"]) for text in texts]
        return max((each for each in found if each.checkpoint == checkpoint), key=lambda each: each.batch, default=None)

charts = Pipeline("charts", sinks=[added.to(SINK)])
"""
SINKS = {
    "function": "to_function(call)",
    "custom": 'to_sink(Stored(), "stored")',
    "tells": 'to_sink(Telling(), "stored")',
}


def in_user_sink() -> Counter[str]:
    if Path("called.json").exists():
        rows = [json.loads(line) for line in Path("called.json").read_text().splitlines()]
    else:
        rows = [row for line in Path("stored.json").read_text().splitlines() for row in json.loads(line)["rows"]]
    return total((row["user"], row["plays"]) for row in rows)


@pytest.fixture(params=SINKS)
def user_sink(one_spark: None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A project with a sink in the user's code, whose pipeline has run twice; `older` is a copy after the first run."""
    monkeypatch.chdir(tmp_path)
    Path("charts.py").write_text(USER_SINKS.replace("SINK)", f"{SINKS[request.param]})"))
    succeed("topics create plays")
    for users in (["ann", "bob"], ["ann", "cal"]):
        send(*users)
        succeed(f"{RUN} --shards 1")
        if not Path("older").exists():
            shutil.copytree(tmp_path, tmp_path.with_name("older"))
            tmp_path.with_name("older").rename("older")
    send("ann", "dan")
    return str(request.param)


@pytest.mark.parametrize("trouble", [remove(CHECKPOINT), put_back(CHECKPOINT), remove(HOME / "charts.sent")])
def test_a_sink_in_the_users_code_is_not_sent_all_again_in_silence(user_sink: str, trouble: Callable[[], None]) -> None:
    sent = in_user_sink()
    trouble()
    for text in (RUN, "run charts.py --until-caught-up"):
        refused = command(text)
        assert refused.exit_code == 6, refused.output
        assert in_user_sink() == sent
    assert refused.output.strip().endswith("millrace replay charts.py")
    choice = command("replay charts.py")
    assert choice.exit_code == 2
    commands = [each[1].strip() for each in COMMAND.finditer(choice.output)]
    assert commands == ["replay charts.py --resend", "replay charts.py --no-resend"]
    unsent = Counter(["ann", "dan"])
    assert command(commands[0]).exit_code == 0
    assert in_user_sink() == sent + in_log()
    send("eve")
    assert follow(RUN) == []
    assert in_user_sink() == sent + in_log()
    assert unsent <= in_user_sink()
    assert succeed("repair charts.py") == "nothing is wrong\n"


def test_without_resend_a_sink_in_the_users_code_receives_only_what_comes_later(user_sink: str) -> None:
    assert follow(RUN) == []
    remove(CHECKPOINT)()
    sent = in_user_sink()
    assert sent == in_log()
    succeed("replay charts.py --no-resend")
    assert in_user_sink() == sent
    send("ann", "eve")
    assert follow(RUN) == []
    assert in_user_sink() == in_log()


def test_a_savepoint_in_another_place_goes_on_with_a_sink_in_the_users_code(user_sink: str) -> None:
    succeed("savepoint charts.py saved")
    started = f"--checkpoint other --from-savepoint {HOME / 'savepoints' / 'charts-saved'}"
    assert follow(f"{RUN} {started}") == []
    assert in_user_sink() == in_log()
    remove("other")()
    refused = command(f"{RUN} --checkpoint other")
    assert refused.exit_code == 6
    assert in_user_sink() == in_log()


@pytest.mark.parametrize("user_sink", ["tells"], indirect=True)
@pytest.mark.parametrize("trouble", [remove("stored.json"), put_back("stored.json")])
def test_a_custom_sink_that_tells_its_commits_is_compared(user_sink: str, trouble: Callable[[], None]) -> None:
    trouble()
    before = in_user_sink() if Path("stored.json").exists() else Counter[str]()
    assert command(RUN).exit_code == 6
    assert before == (in_user_sink() if Path("stored.json").exists() else Counter[str]())


def test_a_savepoint_goes_only_with_the_views_that_it_was_made_with(project: Path) -> None:
    saved = HOME / "savepoints" / "charts-saved"
    remove(CHECKPOINT)()
    assert follow(f"{RUN} --from-savepoint {saved}") == []
    assert in_view() == in_files() == in_table() == in_log()
    remove(CHECKPOINT)()
    kept = sorted(HOME.iterdir())
    refused = command(f"{RUN} --from-savepoint {saved}")
    assert refused.exit_code == 6
    assert sorted(HOME.iterdir()) == kept, "a refused run leaves nothing"
    assert follow(RUN) == [REPLAY]
    cut(saved, "millrace.json")()
    remove(HOME / "charts@2")()
    kept = sorted(HOME.iterdir())
    damaged = command(f"{RUN} --from-savepoint {saved}")
    assert damaged.exit_code == 5
    assert sorted(HOME.iterdir()) == kept
    assert follow(RUN) == [REPLAY]
    assert in_view() == in_files() == in_table() == in_log()


def test_a_stopped_replay_is_dropped_and_its_checkpoint_moved_aside(project: Path) -> None:
    stop_a_replay()
    found = command("repair charts.py --pipeline charts")
    assert found.exit_code == 6
    assert "a stopped replay has not filled generation 2" in found.output
    done = succeed(REPAIR)
    assert "dropped generation 2, which a replay had not filled; moved " in done
    assert done.endswith("nothing is wrong any more\n")
    assert not (HOME / "charts@2").exists()
    (aside,) = HOME.glob("charts@2.dropped-*")
    assert (aside / "millrace.json").exists()
    assert follow(RUN) == []
    assert in_view() == in_files() == in_table() == in_log()


def test_a_damaged_store_is_moved_aside_and_nothing_else_is_changed(project: Path) -> None:
    overwrite(VIEWS)()
    damaged = VIEWS.read_bytes()
    looked = command("repair charts.py --pipeline charts")
    assert (looked.exit_code, VIEWS.read_bytes()) == (6, damaged)
    with (HOME / "alerts" / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        busy = command(REPAIR)
    assert busy.exit_code == 4, "another pipeline may write to the store"
    assert VIEWS.exists()
    done = command(REPAIR)
    assert done.exit_code == 6
    assert done.output.splitlines()[-1] == f"millrace {REPLAY}"
    (aside,) = HOME.glob("views.db.damaged-*")
    assert (aside.read_bytes(), VIEWS.exists()) == (damaged, False)


LAYERED = """
from millrace import Pipeline, agg, files, layers, log, window

SCHEMA = "user STRING, at TIMESTAMP"
plays = layers(batch=files("archive", SCHEMA, "parquet"), speed=log("plays", SCHEMA))
minutes = plays.event_time("at", delay="0s").group_by("user").window(window.fixed("1m"))
charts = Pipeline("charts", {"counts": minutes.accumulating().aggregate(plays=agg.count())})
"""


def send_minute(*users: str) -> None:
    """Append records of one minute, and one of a later minute, by which that one is over."""
    rows = [{"user": user, "at": "2026-01-01T00:00:05Z"} for user in users]
    with closing(Log(LOG)) as log:
        log.append("plays", [json.dumps(row) for row in [*rows, {"user": "end", "at": "2026-01-01T01:00:00Z"}]])


def test_an_archive_of_another_log_is_refused_and_filled_again(
    one_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "archive")  # Spark's processes have another working folder
    Path("charts.py").write_text(LAYERED.replace('"archive"', repr(folder)))
    layer = "run charts.py --layer batch"
    succeed("topics create plays")
    send_minute("ann", "bob", "bob")
    succeed(layer)
    assert in_view() == Counter(["ann", "bob", "bob"])
    next(Path("archive").iterdir()).unlink()
    succeed("topics remove plays")
    succeed("topics create plays")
    send_minute("ann", "cal", "cal", "dan")
    succeed(layer)
    assert in_view() == Counter(["ann", "cal", "cal", "dan"]), "an empty archive is one of any log"
    succeed("topics remove plays")
    succeed("topics create plays")
    send_minute("eve", "eve")
    refused = command(layer)
    assert refused.exit_code == 6
    assert f"move {folder} aside, and fill another from the log" in refused.output
    (advised,) = (each[1].strip() for each in COMMAND.finditer(refused.output))
    assert advised == layer
    assert in_view() == Counter(["ann", "cal", "cal", "dan"])
    Path("archive").rename("aside")
    succeed(advised)
    assert in_view() == Counter(["eve", "eve"])


def test_a_running_pipeline_is_not_looked_at(project: Path) -> None:
    with (CHECKPOINT / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for text in ("repair charts.py --pipeline charts", REPAIR):
            refused = command(text)
            assert refused.exit_code == 4
            assert "stop that run first" in refused.output


@pytest.mark.parametrize("trouble", ["the database is emptied", "the checkpoint is deleted"])
def test_a_store_in_postgresql(
    one_spark: None, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.chdir(tmp_path)
    url = postgres.empty()
    monkeypatch.setenv("MILLRACE_STORE", url)
    Path("charts.py").write_text(ONLY_VIEWS)
    succeed("topics create plays")
    send("ann", "bob")
    succeed(RUN)
    send("ann", "cal")
    if trouble == "the checkpoint is deleted":
        remove(CHECKPOINT)()
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            (schema,) = connection.execute("SELECT current_schema()").fetchone() or ("",)
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
            connection.execute(f"CREATE SCHEMA {schema}".encode())
    (advised,) = follow(RUN)
    assert shlex.split(advised)[:4] == shlex.split(REPLAY)
    assert in_view(store=url) == in_log()
    assert succeed("repair charts.py --pipeline charts") == "nothing is wrong\n"
