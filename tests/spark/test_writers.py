"""How often a micro-batch that is run again is written, by guarantee and by writer."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from millrace import ConflictError, CustomSink, MachineError
from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit
from millrace.model.pipeline import FileSink
from millrace.model.schema import parse_schema
from millrace.spark.filesink import FileWriter
from millrace.spark.sent import Sent
from millrace.spark.tablesink import TableWriter
from millrace.spark.topicsink import TopicWriter
from millrace.spark.usersink import FunctionWriter, ObjectWriter
from millrace.spark.writers import Answers, Delivery, Guarantee, Write, Writer

SCHEMA = parse_schema("k STRING")


def writer(kind: str, folder: Path, generation: int = 1, staged: bool = False) -> Writer:
    if kind == "table":
        return TableWriter(str(folder / "out.db"), "out", SCHEMA, "p", generation, staged)
    return FileWriter(FileSink(str(folder), "json"), "p", generation, staged)


def write_to(writer: Writer) -> Write:
    return lambda answers, commit, once: writer.write(answers["out"], commit, once)


def written(kind: str, folder: Path) -> list[str]:
    if kind == "file":
        return sorted(line for path in folder.glob("p-*.json") for line in path.read_text().splitlines())
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return sorted(k for (k,) in database.execute("SELECT k FROM out"))


@pytest.mark.parametrize("kind", ["table", "file"])
@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_batches_that_are_run_again(kind: str, guarantee: Guarantee, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    begun = tmp_path / "begun"
    for batch in (0, 1, 1, 2, 2, 3):
        delivery = Delivery("p", "here", guarantee, begun)
        answers = {"out": pa.table({"k": [f"batch {batch}"]})}
        delivery.deliver(batch, f"digest {batch}", answers, [write_to(writer(kind, tmp_path / "out"))])
    # A file of the same process and batch has the same name, so that at-least-once shows in tables only.
    twice = guarantee is Guarantee.AT_LEAST_ONCE and kind == "table"
    assert len(written(kind, tmp_path / "out")) == (6 if twice else 4)
    assert writer(kind, tmp_path / "out").last() == Commit("p", "here", 3, "digest 3")


def test_at_most_once_records_a_batch_that_it_does_not_write(tmp_path: Path) -> None:
    def fails(answers: Answers, commit: Commit, once: bool) -> None:
        raise MachineError("the disk is full", "make room")

    answers = {"out": pa.table({"k": ["lost"]})}
    delivery = Delivery("p", "here", Guarantee.AT_MOST_ONCE, tmp_path / "begun")
    with pytest.raises(MachineError):
        delivery.deliver(0, "digest", answers, [fails])
    delivery.deliver(0, "digest", answers, [write_to(writer("table", tmp_path))])
    assert (written("table", tmp_path), writer("table", tmp_path).last()) == ([], Commit("p", "here", 0, "digest"))


@pytest.mark.parametrize("kind", ["table", "file"])
@pytest.mark.parametrize("other", [Commit("p", "c", 0, "x"), Commit("p", "c", 1, "y"), Commit("p", "c", 3, "z")])
def test_a_batch_that_does_not_follow_is_refused(kind: str, other: Commit, tmp_path: Path) -> None:
    rows = pa.table({"k": ["a"]})
    for batch in (0, 1):
        writer(kind, tmp_path).write(rows, Commit("p", "c", batch, f"digest {batch}"), True)
    with pytest.raises(ConflictError, match="was last written by batch 1 of checkpoint c"):
        writer(kind, tmp_path).write(rows, other, True)
    assert len(written(kind, tmp_path)) == 2


@pytest.mark.parametrize("kind", ["table", "file"])
def test_generations_are_swapped_and_swapped_back(kind: str, tmp_path: Path) -> None:
    old, new = writer(kind, tmp_path), writer(kind, tmp_path, 2, staged=True)
    old.write(pa.table({"k": ["old"]}), Commit("p", "one", 7, "x"), True)
    new.write(pa.table({"k": ["new"]}), Commit("p", "two", 0, "y"), True)
    assert "new" not in str(written(kind, tmp_path))
    for _ in range(2):  # a second time does nothing
        new.serve()
        assert "new" in str(written(kind, tmp_path))
        assert "old" not in str(written(kind, tmp_path))
        assert writer(kind, tmp_path, 2).last() == Commit("p", "two", 0, "y")
    new.write(pa.table({"k": ["more"]}), Commit("p", "two", 1, "z"), True)
    assert len(written(kind, tmp_path)) == 2
    back = writer(kind, tmp_path, 1)
    back.serve()
    assert "old" in str(written(kind, tmp_path))
    assert len(written(kind, tmp_path)) == 1
    assert back.last() == Commit("p", "one", 7, "x")


def test_a_swap_of_files_that_was_cut_off_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of its renames in turn."""
    for cut in range(5):
        folder = tmp_path / str(cut)
        old, new = writer("file", folder), writer("file", folder, 2, staged=True)
        for batch, key in enumerate("ab"):
            old.write(pa.table({"k": [f"old {key}"]}), Commit("p", "one", batch, "x"), True)
            new.write(pa.table({"k": [f"new {key}"]}), Commit("p", "two", batch, "y"), True)
        moves = 0

        def replace(source: Path, to: Path) -> None:
            nonlocal moves
            if moves == cut:  # noqa: B023
                raise KeyboardInterrupt
            moves += 1
            os.rename(source, to)

        with monkeypatch.context() as patched:
            patched.setattr("millrace.spark.filesink.os.replace", replace)
            with pytest.raises(KeyboardInterrupt):
                new.serve()
        waiting = writer("file", folder, 2, staged=True)
        assert (waiting.last(), waiting.lost()) == (Commit("p", "two", 1, "y"), None), "its files are in two folders"
        writer("file", folder, 2).serve()
        assert writer("file", folder, 2).lost() is None
        assert [json.loads(line)["k"] for line in written("file", folder)] == ["new a", "new b"]
        writer("file", folder, 1).serve()
        assert [json.loads(line)["k"] for line in written("file", folder)] == ["old a", "old b"]


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    writer("table", tmp_path).write(pa.table({"k": ["a"]}), Commit("p", "c", 0), True)
    with pytest.raises(ConflictError, match=r"has the columns .* choose another table"):
        TableWriter(str(tmp_path / "out.db"), "out", parse_schema("other BIGINT"), "p").last()


@pytest.mark.parametrize("kind", ["table", "file"])
def test_a_sink_knows_the_generations_that_it_has_something_of(kind: str, tmp_path: Path) -> None:
    assert writer(kind, tmp_path).newest() == 0
    writer(kind, tmp_path, 3).write(pa.table({"k": ["a"]}), Commit("p", "c", 0), True)
    assert writer(kind, tmp_path).newest() == 3
    writer(kind, tmp_path, 7, staged=True).write(pa.table({"k": ["a"]}), Commit("p", "d", 0), True)
    assert writer(kind, tmp_path).newest() == 7


def test_a_topic_knows_the_generations_that_have_appended_to_it(tmp_path: Path) -> None:
    Log(tmp_path / "log.db").create("alerts")
    for generation, newest in ((1, 0), (4, 1), (2, 4)):
        writer = TopicWriter(str(tmp_path / "log.db"), "alerts", "p", generation)
        assert writer.newest() == newest
        writer.write(pa.table({"k": ["a"]}).slice(0, 0), Commit("p", "c", 0), True)
    assert TopicWriter(str(tmp_path / "log.db"), "alerts", "p").newest() == 4


def test_a_table_that_was_dropped_has_no_commit(tmp_path: Path) -> None:
    writer("table", tmp_path).write(pa.table({"k": ["a"]}), Commit("p", "c", 0), True)
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        database.execute("DROP TABLE out")
    assert writer("table", tmp_path).last() is None


def test_the_file_of_a_killed_attempt_is_replaced(tmp_path: Path) -> None:
    files = writer("file", tmp_path)
    (tmp_path / "p-c-000000000.json").write_text('{"k": "of other offsets"}')
    (tmp_path / "p-c-000000001.json").write_text('{"k": "of other offsets"}')
    files.write(pa.table({"k": ["a"]}), Commit("p", "c", 0), True)
    files.write(pa.table({"k": ["a"]}).slice(0, 0), Commit("p", "c", 1), True)
    assert [json.loads(line) for line in written("file", tmp_path)] == [{"k": "a"}]


@pytest.mark.parametrize("kind", ["table", "file"])
def test_the_next_batch_of_another_checkpoint_is_refused(kind: str, tmp_path: Path) -> None:
    writer(kind, tmp_path).write(pa.table({"k": ["a"]}), Commit("p", "c", 0), True)
    with pytest.raises(ConflictError, match="if a replay has replaced it, run the pipeline again"):
        writer(kind, tmp_path).write(pa.table({"k": ["a"]}), Commit("p", "other", 1), True)


def put(folder: Path, batches: range, once: bool = True, consumed: bool = False) -> FileWriter:
    files = FileWriter(FileSink(str(folder), "json", consumed), "p")
    for batch in batches:
        files.write(pa.table({"k": ["a" * (batch + 1)]}), Commit("p", "c", batch, f"digest {batch}"), once)
    return files


def test_a_file_that_is_missing_or_has_another_size_is_noticed(tmp_path: Path) -> None:
    files = put(tmp_path, range(4))
    assert files.lost() is None
    first, second = tmp_path / "p-c-000000000.json", tmp_path / "p-c-000000001.json"
    content = first.read_text()
    first.write_text(content[:-4])
    assert f"folder {tmp_path} holds 46 bytes in place of the 50 that were written to it" in str(files.lost())
    first.unlink()
    assert "lacks 1 of the 4 files that were written to it" in str(files.lost())
    second.rename(first)
    (tmp_path / "p-c-000000002.json").rename(second)
    first.write_text(content)
    put(tmp_path, range(4, 5))
    assert "lacks 1 of the 5 files" in str(files.lost()), "a file that is lost stays lost"
    assert put(tmp_path, range(0), consumed=True).lost() is None


def test_files_of_the_same_sizes_with_other_names_are_noticed(tmp_path: Path) -> None:
    files = put(tmp_path, range(2))
    first, second = tmp_path / "p-c-000000000.json", tmp_path / "p-c-000000001.json"
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert "holds other files than those that were written to it" in str(files.lost())


def test_files_of_others_and_of_a_killed_attempt_do_not_count(tmp_path: Path) -> None:
    files = put(tmp_path, range(2))
    for name in ("p-c-000000002.json", "p-other-000000000.json", "notes.json", "p-c-x.json"):
        (tmp_path / name).write_text("x")
    assert files.lost() is None
    put(tmp_path, range(2, 3))
    assert files.lost() is None


def test_files_that_may_be_written_twice_are_not_counted(tmp_path: Path) -> None:
    files = put(tmp_path, range(2), once=False)
    assert files.lost() is None
    next(tmp_path.glob("p-c-*")).unlink()
    put(tmp_path, range(2, 4))
    assert files.lost() is None


def test_a_commit_costs_the_same_however_many_files_there_are(tmp_path: Path) -> None:
    put(tmp_path, range(1))
    size = (tmp_path / ".millrace-p").stat().st_size
    put(tmp_path, range(1, 200))
    assert (tmp_path / ".millrace-p").stat().st_size < size + 12


def test_a_batch_that_replaces_the_files_is_no_loss(tmp_path: Path) -> None:
    files = put(tmp_path, range(2))
    files.replace(pa.table({"k": ["all"]}))
    assert files.lost() is None


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_commits_to_the_users_code_are_recorded_beside_the_checkpoint(kind: str, tmp_path: Path) -> None:
    called: list[int] = []

    class Custom(CustomSink):
        def write(self, rows: pa.Table, commit: Commit) -> None:
            called.append(commit.batch)

    def opened() -> Writer:
        sent = Sent.beside(tmp_path / "charts@2")
        if kind == "custom":
            return ObjectWriter(Custom(), "sink x", sent)
        return FunctionWriter(lambda rows, batch: called.append(batch), "sink x", sent)

    rows = pa.table({"k": ["a"]})
    assert opened().last() is None
    for batch in (0, 0, 1):
        opened().write(rows, Commit("p", "c", batch, f"digest {batch}"), True)
    opened().write(rows.slice(0, 0), Commit("p", "c", 2), True)
    assert (called, opened().last()) == ([0, 1], Commit("p", "c", 2))
    opened().write(rows, Commit("p", "c", 2), False)
    assert called == [0, 1, 2], "at least once"
    with pytest.raises(ConflictError, match="sink x was last written by batch 2 of checkpoint c"):
        opened().write(rows, Commit("p", "other", 0), True)
    file = tmp_path / "charts@2.sent"
    file.write_text(file.read_text().replace('"p"', '"q"'))
    with pytest.raises(ConflictError, match=r"charts@2\.sent is damaged"):
        opened().last()


def test_a_custom_sink_that_tells_its_commits_receives_all(tmp_path: Path) -> None:
    stored: list[Commit] = []

    class Custom(CustomSink):
        def write(self, rows: pa.Table, commit: Commit) -> None:
            stored.append(commit)

        def last(self, pipeline: str, checkpoint: str) -> Commit | None:
            mine = [each for each in stored if (each.pipeline, each.checkpoint) == (pipeline, checkpoint)]
            return mine[-1] if mine else None

    writer = ObjectWriter(Custom(), "sink x", Sent.beside(tmp_path / "charts"))
    writer.write(pa.table({"k": ["a"]}), Commit("p", "c", 0), True)
    writer.write(pa.table({"k": ["a"]}).slice(0, 0), Commit("p", "c", 1), True)
    assert (len(stored), writer.last()) == (2, Commit("p", "c", 1))
    stored.pop()
    assert writer.last() == Commit("p", "c", 0), "an older copy was put back"
    stored.append(Commit("p", "of another replay", 7))
    assert writer.last() == Commit("p", "c", 0)
    stored.clear()
    assert writer.last() is None
