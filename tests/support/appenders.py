"""Processes that use a log and are killed. Run as a program, so that it may fork: it has one thread and no Spark."""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from millrace.eventlog.topics import Log
from millrace.model.errors import MillraceError

WRITERS = ("ann", "bob", "cid")
KILLS = 25


def numbers_of(values: list[bytes], name: str) -> list[int]:
    """What one writer has written, in the order of the log."""
    return [int(value.partition(b":")[2]) for value in values if value.startswith(name.encode() + b":")]


def write(path: Path, name: str) -> None:
    """Append for ever, going on after what is there, and note each append when it has returned."""
    log, chance = Log(path), random.Random(os.getpid())
    acknowledged = os.open(path.with_name("acknowledged"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    after = log.last("plays", name) or 0
    while True:
        many = chance.choice([1, 1, 5, 50, 3000])
        values = [f"{name}:{number}" for number in range(after, after + many)]
        log.append("plays", values, [name] * many, producer=name, sequence=after + many)
        after += many
        os.write(acknowledged, f"{name} {after}\n".encode())


def follow(path: Path) -> None:
    """Read what is there again and again: it only grows, in order, without gaps."""
    log = Log(path)
    before = [0] * log.topic("plays").partitions
    while not path.with_name("stop").exists():
        ends = log.ends("plays")
        for partition, (start, end) in enumerate(zip(before, ends, strict=True)):
            assert end >= start
            records = log.read("plays", partition, max(0, start - 10), end)
            assert records["offset"].to_pylist() == list(range(max(0, start - 10), end))
            for name in WRITERS:
                found = numbers_of(records["value"].to_pylist(), name)
                assert found == list(range(found[0], found[0] + len(found))) if found else True
        before = ends


def forked(work: Callable[[], None]) -> int:
    """Do something in a process of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def killed(path: Path) -> None:
    """Writers that are killed at random moments and start again, beside a reader."""
    chance = random.Random(7)
    log = Log(path)
    log.create("plays", partitions=2)
    log.append("plays", ["warm"])  # which loads what is loaded late, before there is anyone to kill
    writers = {name: forked(lambda name=name: write(path, name)) for name in WRITERS}  # type: ignore[misc]
    reader = forked(lambda: follow(path))
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.0, 0.08))
        name = chance.choice(WRITERS)
        os.kill(writers[name], signal.SIGKILL)
        _, status = os.waitpid(writers[name], 0)
        assert os.WIFSIGNALED(status), f"{name} ended by itself"
        writers[name] = forked(lambda name=name: write(path, name))  # type: ignore[misc]
    for child in writers.values():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    path.with_name("stop").touch()
    assert os.waitpid(reader, 0)[1] == 0, "the reader failed"


def shared(path: Path) -> None:
    """A log that is used before a fork, and after it by both."""
    log = Log(path)
    log.create("plays")
    log.append("plays", ["before"])
    begin, go_on = os.pipe(), os.pipe()

    def child() -> None:
        log.append("plays", ["child, early"])
        os.write(begin[1], b".")
        os.read(go_on[0], 1)
        log.append("plays", ["child, late"])

    started = forked(child)
    os.read(begin[0], 1)
    log.append("plays", ["parent"])
    log.close()  # if this were taken for the last to close, what the child writes next would be lost
    os.write(go_on[1], b".")
    assert os.waitpid(started, 0)[1] == 0, "the child failed"
    assert log.read("plays", 0, 0, 4)["value"].to_pylist() == [b"before", b"child, early", b"parent", b"child, late"]


def made(path: Path) -> None:
    """Many that open a log at once which is not there yet."""
    for number in range(5):
        wait, start = os.pipe()

        def open_(number: int = number, wait: int = wait, start: int = start) -> None:
            os.close(start)
            os.read(wait, 1)
            Log(path.with_name(f"log{number}.db")).topics()

        started = [forked(open_) for _ in range(6)]
        os.close(start)
        assert [os.waitpid(child, 0)[1] for child in started] == [0] * 6
        os.close(wait)


def forbidden(path: Path) -> None:
    """Someone who may not write."""
    log = Log(path)
    log.create("plays")
    log.append("plays", ["a"])
    log.close()
    for each in (path, *path.parent.glob("*-wal"), *path.parent.glob("*-shm")):
        each.chmod(0o444)
    path.parent.chmod(0o555)
    if os.getuid() == 0:
        os.setuid(65534)
    for work in (
        lambda: log.append("plays", ["b"]),
        lambda: Log(path.with_name("other")),
        lambda: Log(path / "x" / "y"),
    ):
        try:
            work()
        except MillraceError as error:
            sys.stdout.write(f"{error.message}\n")


if __name__ == "__main__":
    {"killed": killed, "shared": shared, "made": made, "forbidden": forbidden}[sys.argv[1]](Path(sys.argv[2]))
