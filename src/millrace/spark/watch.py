"""Waits for input between two looks at the sources, so that a stream without input costs almost nothing."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

_SHARE = 0.05
"""A wait lasts this share of the time without input, so that a busy stream does not wait."""
_LONGEST = 1.0
"""The longest wait in seconds. Spark cannot stop the stream during a wait."""
_BLIND = 0.05
"""The longest wait if a source cannot tell cheaply whether it has input."""
_STEP, _LONGEST_STEP = 0.01, 0.025
"""The least and the most time in seconds between two checks of the stamps; Spark looks as often as the least.

In long waits there is more between them, because each takes a tenth of a millisecond of CPU.
"""


@dataclass(slots=True)
class Watch:
    """The time without input, and the waits in it."""

    stamps: Sequence[Callable[[], Hashable]]
    """Each returns a value that changes with the input of a source; None if it has no such value."""
    _before: list[Hashable] = field(default_factory=list)
    _idle_since: float | None = None

    def look(self) -> None:
        """Remember the stamps, before the sources are asked for input."""
        self._before = self._now()

    def reset(self) -> None:
        """There was something to do."""
        self._idle_since = None

    def wait(self, until_due: float | None = None) -> None:
        """Wait until there may be input since the last look, but not long, nor beyond `until_due` seconds, if given."""
        now = time.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        longest = _BLIND if None in self._before else _LONGEST
        length = min((now - self._idle_since) * _SHARE, longest, *([] if until_due is None else [until_due]))
        step = min(max(length * _SHARE, _STEP), _LONGEST_STEP)
        while self._now() == self._before and (left := now + length - time.monotonic()) > 0:
            time.sleep(min(left, step))

    def _now(self) -> list[Hashable]:
        return [stamp() for stamp in self.stamps]
