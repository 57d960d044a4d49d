"""One hierarchy of errors: its text, the way from a worker to the driver, exit codes and HTTP statuses."""

import errno
import os
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import typer
from fastapi.testclient import TestClient
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from disks import small_disk
from millrace import (
    ConflictError,
    CorruptError,
    MachineError,
    MillraceError,
    NotFoundError,
    Pipeline,
    PipelineError,
    agg,
    files,
    memory,
    window,
)
from millrace.cli import app
from millrace.cli.options import EXIT_CODES, plain_mistakes
from millrace.eventlog.topics import Log
from millrace.model.errors import AGAIN, FILE, Kind, Place, at_place, not_found
from millrace.server.app import make_app
from millrace.server.refusals import STATUSES
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import batch, session, stream
from millrace.spark.envelope import WorkerError, opened, reported, reporting
from millrace.spark.failure import plain_error
from millrace.spark.trouble import machine_trouble
from millrace.views.store import open_store

ROW_NUMBER = Place("charts.py", 14)
CLASSES: list[tuple[type[MillraceError], int, int]] = [
    (MillraceError, 1, 500),
    (PipelineError, 2, 400),
    (NotFoundError, 3, 404),
    (MachineError, 4, 503),
    (CorruptError, 5, 500),
    (ConflictError, 6, 409),
]
EVERY = [each for each, _, _ in CLASSES]


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_is_its_place_its_problem_and_its_advice(kind: type[MillraceError]) -> None:
    error = kind("it broke", "mend it", ROW_NUMBER)
    assert (str(error), error.message) == ("charts.py:14: it broke; mend it", "it broke; mend it")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.problem, copy.advice, copy.place) == (kind, "it broke", "mend it", ROW_NUMBER)


@pytest.mark.parametrize("kind", [NotFoundError, MachineError, CorruptError, ConflictError])
def test_all_but_a_mistake_need_advice(kind: type[MillraceError]) -> None:
    with pytest.raises(TypeError, match="advice"):
        kind("it broke")


def test_a_place_that_is_added_keeps_the_class_and_the_advice() -> None:
    with pytest.raises(NotFoundError) as caught, at_place(ROW_NUMBER):
        raise not_found("topic", "play", ["plays"], "make it")
    assert str(caught.value) == "charts.py:14: unknown topic 'play'; did you mean 'plays'? (known: plays); make it"
    assert caught.value.problem == "unknown topic 'play'"


@pytest.mark.parametrize("kind", [MachineError, CorruptError])
def test_a_line_of_the_user_is_not_named_for_trouble_of_the_machine(kind: type[MillraceError]) -> None:
    with pytest.raises(kind) as caught, at_place(ROW_NUMBER):
        raise kind("the disk is full", "make room")
    assert str(caught.value) == "the disk is full; make room"


@pytest.mark.parametrize(
    ("advice", "named"),
    [
        (AGAIN, "compute it again from the log: millrace replay my.py --log 'a b.db'"),
        (
            "move it aside: millrace repair FILE --yes; then millrace replay FILE --shards 5 (or not)",
            "move it aside: millrace repair my.py --log 'a b.db' --yes; then millrace replay my.py --log 'a b.db' "
            "--shards 5 (or not)",
        ),
        ("name it: --log FILE", "name it: --log FILE"),
        ("millrace backup FOLDER", "millrace backup FOLDER"),
        (None, None),
    ],
)
def test_the_advice_names_the_pipeline_where_its_file_is_known(advice: str | None, named: str | None) -> None:
    place = Place("my.py", 3)
    error = PipelineError("it is damaged", advice, place).naming("my.py --log 'a b.db'")
    assert (error.problem, error.advice, error.place) == ("it is damaged", named, place)
    assert PipelineError("it is damaged", advice).naming(FILE).advice == advice


def test_every_kind_has_one_class_an_exit_code_and_a_status() -> None:
    assert {each.kind for each in EVERY} == set(Kind) == set(EXIT_CODES) == set(STATUSES)


@pytest.mark.parametrize(("kind", "code", "status"), CLASSES)
def test_the_exit_code_says_the_class(kind: type[MillraceError], code: int, status: int) -> None:
    command = typer.Typer()

    @command.command()
    def fail() -> None:
        with plain_mistakes():
            raise kind("it broke", "mend it", ROW_NUMBER)

    result = CliRunner().invoke(command)
    assert (result.exit_code, result.output) == (code, "charts.py:14: it broke; mend it\n")


def test_trouble_of_the_machine_outside_of_spark_is_one_line_too() -> None:
    command = typer.Typer()

    @command.command()
    def fail() -> None:
        with plain_mistakes():
            raise OSError(errno.ENOSPC, "whatever the system says", "a.db")

    result = CliRunner().invoke(command)
    assert (result.exit_code, result.output.count("\n")) == (4, 1)
    assert "the disk is full: a.db" in result.output


def test_help_names_the_exit_codes() -> None:
    told = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert all(f" {code} " in told.partition("Exit codes:")[2] for code in EXIT_CODES.values())


@pytest.mark.parametrize(("kind", "code", "status"), CLASSES)
def test_the_status_says_the_class(kind: type[MillraceError], code: int, status: int, tmp_path: Path) -> None:
    served = make_app(Log(tmp_path / "log.db"), open_store(tmp_path / "views.db"))

    @served.get("/fail")
    def fail() -> None:
        raise kind("it broke", "mend it", ROW_NUMBER)

    with TestClient(served, "http://localhost") as client:
        answer = client.get("/fail")
    assert answer.status_code == status
    assert answer.json() == {
        "error": "it broke; mend it", "problem": "it broke", "advice": "mend it", "kind": kind.kind,
    }  # fmt: skip
    assert ("Retry-After" in answer.headers) == (kind is MachineError)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("place", [None, ROW_NUMBER])
def test_a_workers_error_arrives_whole(kind: type[MillraceError], place: Place | None) -> None:
    sent = kind('a "quoted" \\ line\nand another, 40 °C', "mend\nit", place)
    text = f"Traceback (most recent call last):\n  x: {WorkerError(sent)}\n\n\tat org.apache.spark.Some.java(1)"
    found = opened(text)
    assert found is not None
    assert (type(found), found.problem, found.advice, found.place) == (kind, sent.problem, sent.advice, place)


def test_text_that_only_looks_like_an_error_is_none() -> None:
    assert opened("millrace.model.errors.PipelineError: No space left on device") is None
    assert opened("") is None


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("whatever it says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "?", "/data/x"), "the disk is full: /data/x"),
        (OSError(errno.EIO, "?"), "the disk cannot be read or written"),
        (PermissionError(errno.EACCES, "?"), "access is denied"),
        (OSError(errno.EMFILE, "?"), "too many files are open"),
        (MemoryError(), "there is not enough memory"),
        (sqlite_error(sqlite3.SQLITE_FULL), "the disk is full"),
        (sqlite_error(sqlite3.SQLITE_BUSY), "a resource is busy"),
        (sqlite_error(sqlite3.SQLITE_IOERR | 3 << 8), "the disk cannot be read or written"),
        (psycopg.OperationalError("?"), "a server refuses the connection"),
        (psycopg.errors.DiskFull("?"), "the disk is full"),
        (ConnectionResetError(errno.ECONNRESET, "?"), "a server closed the connection"),
    ],
)
def test_trouble_of_the_machine_is_told_by_numbers_and_classes(error: Exception, says: str) -> None:
    found = machine_trouble(error)
    assert found is not None
    assert found.problem == says
    raised = RuntimeError("it failed")
    raised.__cause__ = error
    assert str(machine_trouble(raised)) == str(found)


@pytest.mark.parametrize(
    "error", [ValueError("No space left on device"), FileNotFoundError(errno.ENOENT, "?"), KeyError()]
)
def test_other_errors_are_no_trouble_of_the_machine(error: Exception) -> None:
    assert machine_trouble(error) is None


def test_a_generator_reports_what_it_raises_after_its_first_value() -> None:
    @reported
    def numbers() -> Iterator[int]:
        yield 1
        raise NotFoundError("there is no two", "count to one")

    given = numbers()
    assert next(given) == 1
    with pytest.raises(WorkerError) as caught:
        next(given)
    assert isinstance(opened(f"\n{caught.value}"), NotFoundError)


def test_an_error_that_is_reported_twice_is_reported_once() -> None:
    with pytest.raises(WorkerError) as caught, reporting(), reporting():
        raise ConflictError("two", "take one")
    assert str(caught.value).count("two; take one") == 1


def failing(spark: SparkSession, work: Callable[[], None]) -> BaseException:
    """What the driver makes of a failure in a worker."""

    @reported
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work()
        yield from batches

    with pytest.raises((PySparkException, Py4JError)) as caught:
        spark.range(1).mapInArrow(fail, "id BIGINT").toArrow()
    return plain_error(caught.value)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 KB."""
    with small_disk(tmp_path / "small", "300k") as folder:
        yield folder


@pytest.mark.spark
def test_a_worker_on_a_full_disk_is_one_line(spark: SparkSession, disk: Path) -> None:
    target = str(disk / "out")

    def fill() -> None:
        Path(target).write_bytes(b"0" * 1_000_000)

    found = failing(spark, fill)
    assert isinstance(found, MachineError)
    assert str(found) == "the disk is full; nothing was lost: make room, and run again"


@pytest.mark.spark
def test_a_checkpoint_on_a_full_disk_is_one_line(spark: SparkSession, disk: Path) -> None:
    rows = [{"k": f"a key that is quite long, number {number}", "v": number} for number in range(20_000)]
    source = memory("events", "k STRING, v BIGINT")
    asked = source.group_by("k").window(window.all_time()).aggregate(total=agg.sum("v"))
    started = stream.start(
        spark, Pipeline("p", {"sums": asked}), disk / "checkpoint", until_caught_up=True,
        scripts={"events": MemoryScript([Happening(rows)])},
    )  # fmt: skip
    try:
        with pytest.raises(MachineError) as caught:
            started.wait()
    finally:
        started.stop()
    assert "the disk is full" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.spark
def test_a_worker_that_dies_is_one_line(spark: SparkSession) -> None:
    found = failing(spark, lambda: os._exit(3))
    assert isinstance(found, MachineError)
    assert "a worker process was lost" in found.problem


@pytest.mark.spark
def test_a_failure_without_an_explanation_is_one_line_and_the_rest_is_in_the_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "spark.log"
    monkeypatch.setattr(session, "printed_to", lambda: log)

    def fail() -> None:
        raise KeyError("what is\nnot there")

    found = failing(spark, fail)
    assert type(found) is MillraceError
    assert str(found) == f"a worker failed: KeyError: 'what is\\nnot there'; see {log}"
    assert "Traceback" in log.read_text()


@pytest.mark.spark
def test_a_workers_mistake_arrives_with_its_class_and_place(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = files(str(folder), "k BIGINT", format="parquet")
    asked = source.window(window.all_time()).aggregate(n=agg.count())
    (folder / "1.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(CorruptError, match=r"1\.parquet cannot be read"):
        batch.collect(spark, Pipeline("p", {"n": asked}))
    (folder / "1.parquet").unlink()
    folder.rmdir()
    with pytest.raises(NotFoundError, match="create the folder, or correct the path") as caught:
        batch.collect(spark, Pipeline("p", {"n": asked}))
    assert caught.value.place == source.place

    def refuse() -> None:
        raise PipelineError("this does not compute", "write something else", ROW_NUMBER)

    found = failing(spark, refuse)
    assert isinstance(found, PipelineError)
    assert (found.problem, found.advice, found.place) == ("this does not compute", "write something else", ROW_NUMBER)
    assert not isinstance(found, PySparkException)
