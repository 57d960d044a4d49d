"""State handed over to a checkpoint with another number of shards.

The state of a savepoint is read with Spark, divided anew by key, and stored in the folder `handover` of the checkpoint,
one file for each stage and shard. Spark then begins its own part of the checkpoint anew, at its batch 0, without state.
A shard that finds none takes what was handed over to it. Offsets and the numbers of micro-batches go on where the
savepoint was, so views and sinks notice nothing: the number of Spark's batch 0 is stored here as `first`.

A micro-batch that the savepoint had planned, but not committed, is run again with the same offsets. It keeps its
digest, by which outputs recognise it.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.eventlog.durable import sync, write_whole
from millrace.eventlog.sealed import sealed
from millrace.model.errors import AGAIN, CorruptError
from millrace.panes import blobs
from millrace.panes.advance import PaneState
from millrace.panes.dividing import divided_joins, divided_panes
from millrace.panes.joining import JoinState
from millrace.plan.placing import placed_by
from millrace.plan.plan import Plan, Stage
from millrace.spark.handed import (
    DONE,
    FIRST,
    HANDOVER,
    PENDING,
    TIME,
    Blobs,
    blobs_for,
    first_batch,
    name_of,
    offsets_before,
    unfinished,
)

_PARTITIONS = "spark.sql.shuffle.partitions"


def hand_over(spark: SparkSession, folder: Path, plan: Plan, before: Sequence[int], shards: int, done: int) -> None:
    """Divide the state of a checkpoint over another number of shards, and begin Spark's part anew.

    Nobody may use the checkpoint, and `done` is its last committed micro-batch. `before` are the labels of its shards
    so far. If this is interrupted, `is_unfinished` tells.
    """
    unfinished(folder).touch()
    sync(folder)
    part, anew = folder / f".{HANDOVER}.part", folder / ".spark.part"
    for left in (part, anew):
        shutil.rmtree(left, ignore_errors=True)
        left.mkdir()
    raw = done - first_batch(folder)  # as Spark numbers it
    stored = state_of(spark, folder / "spark", raw) if raw >= 0 else {}
    for stage in plan.stages:
        if stage.is_stateful:
            own = [_stage_blobs(stored.get(label, {}), stage.id) for label in before]
            own = [each or blobs_for(folder, stage.id, shard) for shard, each in enumerate(own)]
            for shard, made in enumerate(_divided(plan, stage, [each for each in own if each], shards)):
                _write(part / name_of(stage.id, shard), made)
    logged = folder / "spark" / "offsets"
    shutil.copyfile(offsets_before(folder, done) or logged / str(raw), part / DONE)
    shutil.copyfile(folder / "spark" / "metadata", anew / "metadata")
    pending = offsets_before(folder, done + 1) or logged / str(raw + 1)
    if pending.exists():
        shutil.copyfile(pending, part / PENDING)
        (anew / "offsets").mkdir()
        (anew / "offsets" / "0").write_text(_with_partitions(pending.read_text(encoding="utf-8"), shards), "utf-8")
    text = json.dumps(sealed({"first": done + 1, "shards": shards}))
    write_whole(part / FIRST, lambda path: path.write_text(text, encoding="utf-8"))
    for made_file in (*part.rglob("*"), *anew.rglob("*"), part, anew):
        sync(made_file)
    _swap(folder, HANDOVER, part)
    _swap(folder, "spark", anew)
    unfinished(folder).unlink()
    sync(folder)


def state_of(spark: SparkSession, checkpoint: Path, batch: int) -> dict[int, Blobs]:
    """The blobs in Spark's part of a checkpoint after a batch, by the label of their shard."""
    found: dict[int, Blobs] = {}
    for operator in sorted((checkpoint / "state").iterdir()):
        if operator.name.isdecimal():
            rows = (
                spark.read.format("statestore")
                .option("operatorId", operator.name)
                .option("batchId", batch)
                .option("stateVarName", "blobs")
                .load(str(checkpoint))
                .selectExpr("key.shard AS shard", "user_map_key.name AS name", "user_map_value.data AS data")
            )
            table = rows.toArrow()
            for label, name, data in zip(*(table[each].to_pylist() for each in ("shard", "name", "data")), strict=True):
                found.setdefault(int(label), {})[name] = data
    return found


def _stage_blobs(stored: Mapping[str, bytes], stage: str) -> Blobs:
    """The blobs of one stage, by their names in it."""
    return {name.removeprefix(f"{stage}/"): data for name, data in stored.items() if name.startswith(f"{stage}/")}


def _divided(plan: Plan, stage: Stage, stored: Sequence[Blobs], shards: int) -> list[Blobs]:
    """The blobs of a stage for each of its new shards, from those of its old ones; no list if there are none."""
    if not stored:
        return []
    times = {each[TIME] for each in stored}
    keys = placed_by(plan, stage)
    made: Sequence[PaneState | JoinState]
    if stage.join is not None:
        assert keys is not None
        made = divided_joins([_state(JoinState, each) for each in stored], keys, shards)
    else:
        made = divided_panes([_state(PaneState, each) for each in stored], keys, shards)
    if len(times) > 1:  # all shards of a stage observe the same event times
        raise CorruptError("the shards of the state are not from the same micro-batch", AGAIN)
    (time,) = times
    kept = made[:1] if keys is None else made  # a dedup and what follows it run in the first shard
    return [{**blobs.write(None, state, HANDOVER)[1].put, TIME: time} for state in kept]


def _state(kind: type[Any], stored: Blobs) -> Any:
    found = blobs.read_as(kind, stored.get)
    assert found is not None
    return found.state


def _write(path: Path, made: Blobs) -> None:
    table = pa.table({"name": pa.array(list(made)), "data": pa.array(list(made.values()), pa.large_binary())})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def _with_partitions(offsets: str, shards: int) -> str:
    """Spark's offsets of a batch with another number of partitions, which Spark would else restore from them."""
    version, about, *lines = offsets.splitlines()
    known = json.loads(about)
    known["conf"][_PARTITIONS] = str(shards)
    return "\n".join([version, json.dumps(known, separators=(",", ":")), *lines])


def _swap(folder: Path, name: str, made: Path) -> None:
    old = folder / f".{name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if (folder / name).exists():
        (folder / name).rename(old)
    made.rename(folder / name)
    sync(folder)
    shutil.rmtree(old, ignore_errors=True)
