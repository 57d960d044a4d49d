"""What a pipeline reads and keeps, and whether executors on other machines can reach it.

The driver writes views, sinks and dead letters, so a store or a sink may be a file of the driver's machine. Executors
read sources, and read and write the checkpoint.
"""

from collections.abc import Iterator
from pathlib import Path

from millrace.model.errors import ConflictError, MillraceError, PipelineError
from millrace.model.kafka import KIND as KAFKA
from millrace.model.kafka import SERVERS
from millrace.model.pipeline import Pipeline
from millrace.model.stream import Source
from millrace.running.settings import Locations
from millrace.spark.master import Reach, reach_of

_DOCS = "docs/cluster.md"


def check_placement(pipeline: Pipeline, home: Locations) -> None:
    """Refuse, before Spark starts, what executors of the master cannot reach."""
    for error in misplaced(pipeline, home):
        raise error


def misplaced(pipeline: Pipeline, home: Locations) -> Iterator[MillraceError]:
    """The errors for what executors cannot reach; none if they run on this machine."""
    if reach_of(home.master) is not Reach.CLUSTER:
        return
    for source in pipeline.sources:
        yield from _misplaced(source, home)
    if not is_shared(home.checkpoint, home.shared):
        yield ConflictError(
            f"executors of {home.master} may run on other machines, and read and write the checkpoint "
            f"{home.checkpoint.absolute()}",
            "choose a folder that all machines have at the same path, and say so: --checkpoint /shared/charts --shared "
            f"/shared ({_DOCS})",
        )


def is_shared(path: str | Path, shared: tuple[Path, ...]) -> bool:
    """Whether a path is in one of the folders that all machines have."""
    whole = Path(path).absolute().resolve()
    return any(whole.is_relative_to(folder.absolute().resolve()) for folder in shared)


def _misplaced(source: Source, home: Locations) -> Iterator[MillraceError]:
    if source.kind == "log":
        yield PipelineError(
            f"executors of {home.master} may run on other machines, and cannot read topic {source.name!r} of the "
            f"embedded log {home.log}",
            f'read it from Kafka: kafka("kafka://host:9092/{source.name}", ...); or run on a master of this machine, '
            "such as --master 'local[*]'",
            source.place,
        )
    elif source.kind == "files" and not is_shared(source.name, home.shared):
        yield PipelineError(
            f"executors of {home.master} may run on other machines, and read the files in {source.name}",
            "put them in a folder that all machines have at the same path, and say so: --shared FOLDER",
            source.place,
        )
    elif source.kind == KAFKA and _is_here(dict(source.options)[SERVERS]):
        yield PipelineError(
            f"executors of {home.master} may run on other machines, and cannot reach a Kafka at "
            f"{dict(source.options)[SERVERS]}",
            "name the brokers by addresses that all machines reach",
            source.place,
        )


def _is_here(servers: str) -> bool:
    """Whether all brokers have addresses that only their own machine reaches."""
    return all(reach_of(f"spark://{server.strip()}") is Reach.MACHINE for server in servers.split(","))
