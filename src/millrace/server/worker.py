"""A query process: reads questions from a socket, which is its standard input, and writes answers to it.

The server ends it when an answer takes too long or nobody waits for it any more. Its memory is limited, and it yields
to the server where both want the processor. The server does not trust what it writes: kind, length and bytes, never
objects. Its first question is the store and the limits, which arguments would show to other users of the machine.
"""

import json
import os
import pickle
import resource
import signal
import socket
import sqlite3
import struct
import sys
from typing import BinaryIO

from millrace.model.errors import MachineError, MillraceError
from millrace.server.answering import answer
from millrace.server.asks import Head, Limits
from millrace.views.store import Store, open_store

LENGTH = struct.Struct("<cI")
"""The start of a frame: its kind, and the length of its content."""
READY, HEAD, BODY, END, ERROR = b"R", b"H", b"B", b"E", b"X"
_GENTLE = 10
"""By how much a query process yields to the server."""
_OF_SQLITE = 0.75
"""The part of the memory that SQLite may have."""


def main() -> None:
    """Answer questions until the input ends."""
    server = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    given, written = server.makefile("rb"), server.makefile("wb")
    os.nice(_GENTLE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all, and the server ends this process
    url, limits = pickle.loads(_question(given))
    store = open_store(url)
    _limit_memory(limits.memory)
    _frame(written, READY)
    while question := _question(given):
        _answer(store, question, limits, written)


def _question(given: BinaryIO) -> bytes:
    """The next question; empty at the end."""
    return given.read(int.from_bytes(given.read(4), "little"))


def _answer(store: Store, question: bytes, limits: Limits, to: BinaryIO) -> None:
    try:
        for part in answer(store, pickle.loads(question), limits):
            if isinstance(part, Head):
                _frame(to, HEAD, json.dumps({"etag": part.etag, "is_known": part.is_known}).encode())
            else:
                _frame(to, BODY, part)
        _frame(to, END)
    except MillraceError as error:
        _error(to, error)
    except MemoryError:
        problem = f"the query needs more than {limits.memory >> 20} MB of memory"
        _error(to, MachineError(problem, "select less, or sort and group fewer rows"))


def _error(to: BinaryIO, error: MillraceError) -> None:
    about = {"class": type(error).__name__, "kind": error.kind, "problem": error.problem, "advice": error.advice}
    _frame(to, ERROR, json.dumps(about).encode())


def _frame(to: BinaryIO, kind: bytes, content: bytes = b"") -> None:
    to.write(LENGTH.pack(kind, len(content)))
    to.write(content)
    to.flush()


def _limit_memory(most: int) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + most, now + most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = sqlite3.connect(":memory:")
    connection.execute(f"PRAGMA hard_heap_limit = {round(most * _OF_SQLITE)}")  # of the process, not of the connection
    connection.close()


if __name__ == "__main__":
    main()
