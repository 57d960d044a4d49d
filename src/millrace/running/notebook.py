"""Output of a notebook cell that is updated in place. IPython is used if it is loaded, and is not a dependency."""

import sys
import threading
import time
from typing import Any, Protocol

_EVERY = 0.5
"""The minimum number of seconds between two updates, as notebooks render slowly."""


class Handle(Protocol):
    """The part of IPython's display handle that is used."""

    def update(self, bundle: Any, **options: Any) -> None:
        """Replace the output."""


class LiveDisplay:
    """One output of a cell."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._updated = 0.0
        self._over = False
        self._alone = threading.Lock()

    def update(self, html: str, text: str, last: bool) -> None:
        """Show the new state; states that come too fast are skipped, except the last one."""
        with self._alone:
            now = time.monotonic()
            if self._over or (now - self._updated < _EVERY and not last):
                return
            self._updated, self._over = now, last
            self._handle.update({"text/html": html, "text/plain": text}, raw=True)


def live_display() -> LiveDisplay | None:
    """A new output of the current cell; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if (
        ipython is None or shell is None or not hasattr(shell, "kernel")
    ):  # IPython in a terminal cannot update output in place
        return None
    handle = ipython.display.display({"text/plain": ""}, raw=True, display_id=True)
    return None if handle is None else LiveDisplay(handle)
