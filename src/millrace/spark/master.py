"""Where a Spark master runs its tasks: in this process's Java, on this machine, or on machines that may be others."""

from enum import Enum
from urllib.parse import urlsplit

_LOOPBACK = ("localhost", "::1")


class Reach(Enum):
    """How far away tasks may run."""

    LOCAL = "in the Java of this process"
    MACHINE = "in processes of this machine"
    CLUSTER = "on machines that may be others"


def reach_of(master: str) -> Reach:
    """How far away the tasks of a master run. A standalone master on a loopback address has workers only here.

    >>> [reach_of(each).name for each in ("local[2]", "spark://127.0.0.1:7077", "spark://head:7077", "yarn")]
    ['LOCAL', 'MACHINE', 'CLUSTER', 'CLUSTER']
    """
    if master == "local" or master.startswith("local["):
        return Reach.LOCAL
    if master.startswith("spark://"):
        hosts = [urlsplit(f"spark://{each}").hostname or "" for each in master.removeprefix("spark://").split(",")]
        if all(host in _LOOPBACK or host.startswith("127.") for host in hosts):
            return Reach.MACHINE
    return Reach.CLUSTER
