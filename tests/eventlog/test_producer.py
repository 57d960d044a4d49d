"""Producers: what was sent is on the disk after a flush, once and in order, and what goes wrong is said."""

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from millrace import ConflictError, MillraceError, NotFoundError, PipelineError
from millrace.eventlog.producer import Producer
from millrace.eventlog.topics import Appended, Log

anything: Any = object()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "log.db") as opened:
        opened.create("plays")
        yield opened


def values(log: Log) -> list[bytes | None]:
    found: list[bytes | None] = log.read("plays", 0, 0, log.ends("plays")[0])["value"].to_pylist()
    return found


def test_what_is_sent_is_there_after_a_flush(log: Log) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with Producer(log.path, "plays", linger="1h") as producer:
        producer.send({"é": 1, "at": at}, "ann", at, {"h": "x"})
        producer.send("text", timestamp=5)
        producer.send(b"\xff", headers=[("h", None)])
        producer.send(None, b"ann")
        assert log.ends("plays") == [0]
        producer.flush()
        assert producer.kept == 4
        first, *rest = log.read("plays", 0, 0, 4).to_pylist()
        assert json.loads(first["value"]) == {"é": 1, "at": "2026-01-01T00:00:00+00:00"}
        assert (first["key"], first["timestamp"], first["headers"]) == (b"ann", at, [{"key": "h", "value": b"x"}])
        assert [row["value"] for row in rest] == [b"text", b"\xff", None]
        producer.send("last")
    assert values(log)[-1] == b"last"


def test_what_is_sent_is_there_soon_without_a_flush(log: Log) -> None:
    with Producer(log, "plays", linger="10ms") as producer:
        producer.send("a")
        deadline = time.monotonic() + 20
        while log.ends("plays") == [0]:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert values(log) == [b"a"]


def test_a_full_batch_is_appended_at_once(log: Log) -> None:
    with Producer(log, "plays", linger="1h", batch=10) as producer:
        for number in range(25):
            producer.send(f"{number}")
        assert log.ends("plays") == [20]
    assert values(log) == [f"{number}".encode() for number in range(25)]


def test_threads_may_share_a_producer(log: Log) -> None:
    with Producer(log, "plays", id="p", linger="1ms", batch=50) as producer:

        def send(name: str) -> None:
            for number in range(200):
                producer.send(f"{name}:{number}")

        threads = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [value.decode().split(":") for value in values(log) if value is not None]
    assert log.last("plays", "p") == len(found) == 800
    for name in "abcd":
        assert [int(number) for whose, number in found if whose == name] == list(range(200))


def test_an_append_that_is_tried_again_is_there_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Log.append

    def lost(self: Log, *given: Any) -> list[Appended]:
        """Appends, but dies before it can say so."""
        append(self, *given)
        monkeypatch.setattr(Log, "append", append)
        raise PipelineError("the answer was lost")

    with Producer(log, "plays", id="p", linger="1h") as producer:
        producer.send("a")
        monkeypatch.setattr(Log, "append", lost)
        with pytest.raises(PipelineError, match="the answer was lost"):
            producer.flush()
        producer.send("b")
        producer.flush()
    assert values(log) == [b"a", b"b"]
    assert producer.kept == 2


def test_a_program_that_starts_again_goes_on_after_what_is_kept(log: Log) -> None:
    records = [f"{number}" for number in range(30)]
    for stop in (7, 20, 30):
        with Producer(log, "plays", id="import", batch=4) as producer:
            for record in records[producer.kept : stop]:
                producer.send(record)
    assert values(log) == [record.encode() for record in records]


def test_two_producers_of_one_id_are_told(log: Log) -> None:
    with Producer(log, "plays", id="p", linger="1h") as one:
        other = Producer(log, "plays", id="p", linger="1h")
        one.send("a")
        one.flush()
        other.send("b")
        with pytest.raises(ConflictError, match="two producers that append at the same time need two ids"):
            other.close()
    assert values(log) == [b"a"]


def test_a_failure_in_the_background_is_raised_by_the_next_send_and_nothing_is_lost(log: Log) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Producer(log, "plays", linger="1ms") as producer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
        try:
            producer.send(os.urandom(500_000))
            sent, said = 0, ""
            while not said:
                time.sleep(0.005)
                try:
                    producer.send(f"{sent}")
                    sent += 1
                except MillraceError as error:
                    said = error.message
            assert f"0 of the records are kept and {sent + 1} wait: fix the cause, then flush() appends them" in said
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        producer.send("after")
    large, *rest = values(log)
    assert len(large or b"") == 500_000
    assert rest == [*(f"{number}".encode() for number in range(sent)), b"after"]


MISTAKES: list[tuple[str, Callable[[Producer], Any], str]] = [
    ("a number", lambda producer: producer.send(anything), "a record is a dict, text or bytes"),
    ("what JSON has not", lambda producer: producer.send({"a": anything}), "a JSON value"),
    ("not a number", lambda producer: producer.send({"a": float("nan")}), "a JSON value"),
    ("a key that is none", lambda producer: producer.send("a", key=anything), "a key is text or bytes"),
    ("a time that is none", lambda producer: producer.send("a", timestamp=anything), "a timestamp must be a datetime"),
    ("a header that is none", lambda producer: producer.send("a", headers={"h": anything}), "a header is a name"),
]


@pytest.mark.parametrize(("send", "says"), [mistake[1:] for mistake in MISTAKES], ids=[name for name, *_ in MISTAKES])
def test_mistake(send: Callable[[Producer], Any], says: str, log: Log) -> None:
    with Producer(log, "plays") as producer:
        with pytest.raises(PipelineError) as caught:
            send(producer)
        assert says in caught.value.message
        producer.send("whole")
    assert values(log) == [b"whole"], "a record that is refused does not stand in the way of others"


def test_a_producer_of_nothing_is_refused(log: Log) -> None:
    with pytest.raises(NotFoundError, match="unknown topic 'play'; did you mean 'plays'"):
        Producer(log, "play")
    with pytest.raises(PipelineError, match=r"batch= is how many"):
        Producer(log, "plays", batch=0)
    producer = Producer(log, "plays")
    producer.close()
    with pytest.raises(PipelineError, match="is closed; make another"):
        producer.send("a")


def test_the_end_of_a_program_stores_what_it_has_sent(log: Log) -> None:
    program = (
        "import sys\n"
        "from millrace import Producer\n"
        "Producer(sys.argv[1], 'plays', linger='1h').send({'n': 1})\n"
    )  # fmt: skip
    command = [sys.executable, "-c", program, str(log.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stderr, values(log)) == ("", [b'{"n":1}'])


def test_a_producer_that_the_end_of_the_program_closes_says_in_a_line_what_is_lost(log: Log) -> None:
    program = (
        "import os, resource, sys\n"
        "from millrace import Producer\n"
        "producer = Producer(sys.argv[1], 'plays', linger='1h')\n"
        "for n in range(100):\n"
        "    producer.send(os.urandom(10_000).hex())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "if sys.argv[2:]:\n"
        "    try:\n"
        "        producer.close()\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
    )
    command = [sys.executable, "-c", program, str(log.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        ": 100 of the records sent to 'plays' are lost; close the producer in the program, and handle the error that "
        "close() raises"
    )
    assert log.ends("plays") == [0]
    followed = subprocess.run([*command, "close"], capture_output=True, text=True, timeout=60, check=True)
    assert (followed.stdout, followed.stderr) == ("MachineError\n", "")
