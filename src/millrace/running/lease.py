"""The Spark session that runs of a process share; it is reference-counted, and the last run stops it."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.model.errors import PipelineError, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class _Shared:
    """The session that Millrace started in this process, and how many leases hold it."""

    session: "SparkSession | None" = None
    master: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    holders: int = 0


_shared = _Shared()
_change = threading.Lock()


class Lease:
    """One run's hold on a Spark session.

    The session is started on the first call of `session`, in the calling thread, or taken from another run of this
    process. The last lease to be released stops it. A session that the user passed is never stopped.
    """

    def __init__(
        self, pipeline: str, master: str, given: "SparkSession | None" = None, conf: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Start nothing yet. Refuses a session that pipelines cannot run on."""
        self._name, self._master, self._conf = f"millrace {pipeline}", master, dict(conf)
        self._given = None if given is None else _beside(given)
        self._held: SparkSession | None = None

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def session(self, log: Path) -> "SparkSession":
        """The session; if this call starts it, Spark's output goes to the file `log`."""
        if self._given is not None:
            return self._given
        if self._held is None:
            self._held = _acquire(self._name, self._master, log, self._conf)
        return self._held

    def release(self) -> None:
        """Release the session. A second call does nothing."""
        if self._held is not None:
            held, self._held = self._held, None
            _release(held)


def check_unclaimed() -> None:
    """Refuse to start Spark if the user has a session already, which must then be passed."""
    from millrace.spark import session

    with _change:
        if _shared.session is None and session.is_active():
            raise PipelineError("a Spark session is active in this process; pass it, as in charts.run(spark=spark)")


def _acquire(name: str, master: str, log: Path, conf: Mapping[str, str]) -> "SparkSession":
    from millrace.spark import session

    with _change:
        if _shared.session is None or session.is_stopped(_shared.session):
            if threading.current_thread() is not threading.main_thread():  # the fork may crash the process
                raise PipelineError("Spark must be started in the main thread; start the run there, or pass spark=")
            _shared.session, _shared.master, _shared.conf = session.start(name, master, log, conf), master, conf
            _shared.holders = 0
        elif _shared.master != master:
            raise PipelineError(
                f"another pipeline of this process runs on master {_shared.master}; use the same, not {master}"
            )
        elif _shared.conf != conf:
            advice = "use the same conf; a pipeline in real-time mode needs a process of its own"
            raise PipelineError("another pipeline of this process runs on a Spark with other settings", advice)
        _shared.holders += 1
        return _shared.session


def _release(held: "SparkSession") -> None:
    from millrace.spark import session

    with _change:
        if held is not _shared.session:  # the user stopped it, and another was started meanwhile
            return
        _shared.holders -= 1
        if _shared.holders == 0:
            _shared.session = None
            session.stop(held)


def master_of(given: object) -> str | None:
    """The master of a session that a user passes. Refuses what pipelines cannot run on."""
    return _checked(given).sparkContext.master


def _beside(given: object) -> "SparkSession":
    from millrace.spark import session

    return session.separate(_checked(given))


def _checked(given: object) -> "SparkSession":
    from pyspark.sql import SparkSession

    from millrace.spark import session

    if not isinstance(given, SparkSession):
        raise PipelineError(f"spark= takes a SparkSession of this process, not Spark Connect nor {shown(given)}")
    if session.is_stopped(given):
        raise PipelineError("the Spark session that was passed is stopped; pass one that runs, or none")
    return given
