"""Signals that end a run: from Ctrl-C, a service manager, or a terminal that is closed."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = b"\x1b[?25h"
"""The escape sequence that shows the cursor, which a live table hides."""


@contextmanager
def told_to_end() -> Iterator[list[int]]:
    """A list that is empty until a signal arrives; the caller may then finish its work.

    A second signal ends the process at once, and its child processes with it.
    """
    told: list[int] = []
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]
    own = os.dup(2)  # file descriptor 2 may be redirected for a while

    def end(number: int, frame: FrameType | None) -> None:
        if told:
            shown = _SHOW_CURSOR if 2 in terminals else b""
            with suppress(OSError):
                os.write(own, shown + b"ended at once: what was under way is done again the next time\n")
            os._exit(128 + number)
        told.append(number)
        if number == signal.SIGHUP:  # the terminal is gone, and writes to it would fail
            for stream in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)

    # A signal that was ignored from the start, as with nohup, stays ignored.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(own)
