"""A process that matches rows with live queries: one cell of the grid, for each view that has queries.

It reads questions from a socket, which is its standard input, and writes answers to it. It holds only what the server
has sent, so the server can replace it at any time.
"""

import os
import pickle
import signal
import socket
import sys
from collections import defaultdict
from typing import assert_never

import pyarrow as pa

from millrace.live.index import Numbers
from millrace.live.matcher import Matcher
from millrace.live.query import LiveQuery, QueryShape
from millrace.server.cell_messages import (
    LENGTH,
    CellMessage,
    MatchRows,
    NewQuery,
    NewShape,
    NoGrid,
    NoQuery,
    NoShape,
    read_content,
)


def main() -> None:
    """Take messages until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all, and the server ends this process
    server = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    given, written = server.makefile("rb"), server.makefile("wb")
    matchers: dict[int, Matcher] = defaultdict(Matcher)
    shapes: dict[int, QueryShape] = {}
    while (content := read_content(given)) is not None:
        said: CellMessage = pickle.loads(content)
        match said:
            case NewShape(number, shape):
                shapes[number] = shape
            case NewQuery(grid, handle, number, constants, limit, offset):
                matchers[grid].add(handle, LiveQuery(shapes[number], constants, limit, offset))
            case NoQuery(grid, handle):
                matchers[grid].remove(handle)
            case NoShape(number):
                del shapes[number]
            case NoGrid(grid):
                matchers.pop(grid, None)
            case MatchRows(grid, rows):
                places, handles = matchers[grid].match(pa.ipc.open_stream(rows).read_all())
                for part in (as_bytes(places), as_bytes(handles)):
                    written.write(LENGTH.pack(len(part)) + part)
                written.flush()
            case _:
                assert_never(said)


def as_bytes(numbers: Numbers) -> bytes:
    """Numbers as bytes."""
    return numbers.astype("<i8").tobytes()


if __name__ == "__main__":
    main()
