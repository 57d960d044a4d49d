"""Named points at which a test can kill the engine.

With MILLRACE_HOLD_AT=point:count:file in the environment, a process that reaches that point for the count-th time
creates the file and sleeps, so that the test can send SIGKILL at that point. Otherwise the points do nothing.
"""

import os
import time
from pathlib import Path

VARIABLE = "MILLRACE_HOLD_AT"
POINTS = (
    "offsets planned",
    "bundle read",
    "state read",
    "state written",
    "sink before write",
    "sink during write",
    "sink after write",
    "offsets committed",
)
_reached = 0


def reach(point: str) -> None:
    """Mark a point as reached, and hold the process there if the environment says so."""
    global _reached
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, count, file = wanted.split(":", 2)
    if name != point:
        return
    _reached += 1
    if _reached == int(count):
        Path(file).touch()
        while True:
            time.sleep(60)
