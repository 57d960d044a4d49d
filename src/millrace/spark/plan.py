"""What of a pipeline travels to the workers: its outputs, its sources, and how many shards there are."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pyspark import cloudpickle

from millrace.edge.fused import how
from millrace.model.duration import SECOND
from millrace.model.query import Query
from millrace.model.stream import Source, Stream, sources
from millrace.sources.memory import Script
from millrace.spark.snapshots import Lookup

DEFAULT_LOG = ".millrace/log.db"
DEFAULT_LATENCY = "1s"


@dataclass(frozen=True, slots=True)
class Part:
    """One output of a pipeline: a view, or what goes to a sink."""

    name: str
    """By which its state and its answers are known."""
    of: Query | Stream

    @property
    def stream(self) -> Stream:
        """The stream that it reads."""
        return self.of.stream if isinstance(self.of, Query) else self.of

    @property
    def is_fused(self) -> bool:
        """Whether its edge can be fused, for every source."""
        return all(how(self.of, source).startswith("fused") for source in sources(self.stream))


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline as it runs."""

    parts: tuple[Part, ...]
    labels: tuple[int, ...]
    """What Spark knows each shard by; chosen so that each is in a partition of its own."""
    folder: str | None = None
    """Where sources keep their journals."""
    log: str = DEFAULT_LOG
    """Where the log is that topics are read from."""
    reader: str | None = None
    """As whom it tells the log how far it has come; nobody, if it is only computing something again."""
    latency: int = SECOND
    """How long a micro-batch over topics should last, in microseconds."""
    scripts: Mapping[str, Script] = field(default_factory=dict)
    """What happens to sources in memory, by name."""
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    """Tables that are neither given nor in files, by name."""
    fuse: bool = True
    """Whether what can be fused is; if not, everything runs natively."""

    @property
    def fused(self) -> tuple[int, ...]:
        """The numbers of the outputs whose edge is one DuckDB statement a source."""
        if not self.fuse:
            return ()
        return tuple(number for number, part in enumerate(self.parts) if part.is_fused)

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self.labels)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source, once, in the order in which they were written."""
        return self.read_by(range(len(self.parts)))

    def read_by(self, parts: Iterable[int]) -> tuple[Source, ...]:
        """The sources of some outputs, by number."""
        return tuple(dict.fromkeys(source for number in parts for source in sources(self.parts[number].stream)))

    def pack(self) -> "Packed":
        """The plan as bytes, for workers. They cannot import the user's file, so functions in it travel whole."""
        files = {part.of.place.file for part in self.parts}
        written = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) in files]
        theirs = [module for module in written if module.__name__ != "__main__"]
        for module in theirs:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            return Packed(cloudpickle.dumps(self))  # type: ignore[no-untyped-call]
        finally:
            for module in theirs:
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Packed:
    """A plan as bytes, which a worker opens once, however often it is sent them."""

    data: bytes = field(repr=False)

    @property
    def plan(self) -> Plan:
        """The plan."""
        plan: Plan = _opened(self)
        return plan


_OPEN = 8
"""How many plans a worker keeps open: one, but for tests."""


@lru_cache(_OPEN)
def _opened(packed: Packed) -> Any:
    return cloudpickle.loads(packed.data)
