"""Being told to end: by Ctrl-C, by a service manager, or by a terminal that is closed."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def told_to_end() -> Iterator[list[int]]:
    """A list that is empty until a signal says to end; what is under way may then be brought to its end.

    A second signal ends the process at once. What it started ends with it.
    """
    told: list[int] = []
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def end(number: int, frame: FrameType | None) -> None:
        if told:
            console = Console(stderr=True)
            console.show_cursor()
            console.out("ended at once; what was under way is done again the next time", highlight=False)
            os._exit(128 + number)
        told.append(number)
        if number == signal.SIGHUP:  # there is no terminal any more, and to write to it would fail
            for stream in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)

    # One that was ignored from the start, as with nohup, stays so.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
