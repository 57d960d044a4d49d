"""A process that commits batches to a store, and is killed at random times until all are committed.

`python committing.py URL BATCHES SEED`. As Spark does, it runs the batch again that it does not know to be done.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

from millrace.model.connectors import Commit
from millrace.model.schema import parse_schema
from millrace.views.shape import ViewShape
from millrace.views.store import open_store
from stores import Answer, answers

SHAPE = ViewShape(
    "counts", parse_schema("k STRING, n BIGINT, note STRING, timing STRING, index BIGINT, last BOOLEAN"), ("k",)
)


def batch_of(number: int) -> list[Answer]:
    """The answers of a batch, always the same."""
    chance = random.Random(number)
    return [
        (chance.choice([1, 1, 1, -1]), (f"key {chance.randrange(200)}", number, "x" * 50, "early", number, False))
        for _ in range(100)
    ]


def known(done: Path) -> int:
    """The last batch that is known to be done."""
    return int((done.read_text() if done.exists() else "") or 0)


def wait_until(child: int, done: Path, batch: int) -> tuple[int, int]:
    """Wait until a batch is done, or until the process ends: then its id, and how."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or known(done) >= batch:
            return ended, status
        time.sleep(0.001)


def commit_all(url: str, batches: list[pa.Table], done: Path) -> None:
    """Commit what is left."""
    store = open_store(url)
    store.open("p", [SHAPE])
    # PostgreSQL may still be committing the next batch for the process that was killed: then it is found to be done.
    last = store.last_commit("p", 1)
    for number in range(last.batch + 1 if last else 0, len(batches)):
        for _ in range(2):  # the second time does nothing
            store.commit(Commit("p", "checkpoint", number), {"counts": batches[number]}, once=True)
        done.write_text(str(number))
    store.close()


def main(url: str, many: int, done: Path, seed: int) -> int:
    """Kill until all is done; gives how often."""
    batches = [answers(SHAPE, batch_of(number)) for number in range(many)]
    open_store(url).close()  # loads what is needed, once
    chance, kills = random.Random(seed), 0
    while True:
        child = os.fork()
        if not child:
            commit_all(url, batches, done)
            os._exit(0)
        ended, status = wait_until(child, done, known(done) + chance.randrange(8))
        time.sleep(chance.uniform(0, 0.02))
        if ended:
            assert status == 0
            return kills
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))  # noqa: T201
