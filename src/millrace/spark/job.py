"""A plan with the inputs and folders of one run, as it travels to Spark's workers."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pyspark import cloudpickle

from millrace.eventlog.topics import DEFAULT_LOG
from millrace.model.duration import SECOND
from millrace.model.kafka import KIND as KAFKA
from millrace.model.stream import Source
from millrace.plan.plan import Plan, Stage
from millrace.sources.memory import MemoryScript
from millrace.spark.snapshots import Lookup

DEFAULT_LATENCY = "1s"


@dataclass(frozen=True, slots=True)
class Job:
    """A plan with the inputs and folders of one run."""

    plan: Plan
    labels: tuple[int, ...]
    """Spark's grouping key of each shard, chosen so that each shard has a partition of its own."""
    folder: str | None = None
    """The folder for the journals of sources and the snapshots of tables."""
    log: str = str(DEFAULT_LOG)
    """The path of the log that holds the topics."""
    group: str | None = None
    """The consumer group that reports its offsets to the log; None for a run that reports nothing."""
    latency: int = SECOND
    """The target duration of a micro-batch over topics, in microseconds."""
    scripts: Mapping[str, MemoryScript] = field(default_factory=dict)
    """The rows of sources in memory, by name."""
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    """The joined tables that have neither rows nor a file, by name."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the plan."""
        return self.plan.stages

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.labels)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the plan; tasks refer to them by number."""
        return tuple(each.source for each in self.plan.sources)

    def read_by(self, stages: Iterable[int]) -> list[int]:
        """The numbers of the sources that some stages read."""
        ids = {id for number in stages for id in self.stages[number].inputs}
        return [number for number, each in enumerate(self.plan.sources) if each.id in ids]

    def pack(self) -> "PackedJob":
        """The job as bytes, for workers. They cannot import the user's file, so its functions are pickled by value."""
        files = {stage.of.place.file for stage in self.stages}
        written = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) in files]
        theirs = [module for module in written if module.__name__ != "__main__"]
        for module in theirs:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            # Sinks stay on the driver: a user's function may hold objects that cannot be pickled.
            sent = replace(self, plan=replace(self.plan, outputs=()))
            return PackedJob(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]
        finally:
            for module in theirs:
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class PackedJob:
    """A job as bytes. A worker unpickles it once and caches it."""

    data: bytes = field(repr=False)

    @property
    def job(self) -> Job:
        """The job."""
        job: Job = _unpickled(self)
        return job


_CACHED = 8
"""The number of jobs that a worker caches; only tests need more than one."""


@lru_cache(_CACHED)
def _unpickled(packed: PackedJob) -> Any:
    job = cloudpickle.loads(packed.data)
    for source in job.sources:
        if source.kind == KAFKA:
            from millrace.sources.kafka_cluster import remember  # its packages are optional

            remember(source)  # its splits do not hold the properties of the client
    return job
