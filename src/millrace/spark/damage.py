"""Finds damaged and missing files of a checkpoint, and says how to go on.

Most files are read here before Spark is started. Only Spark can read the state: if it cannot, `state_damage` names the
file by its checksum. The way on is always to compute the answers again from the log. Another checkpoint would be wrong:
the views would keep rows of the old one, and sinks would receive everything twice.
"""

import hashlib
import time
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import unsealed
from millrace.model.errors import AGAIN, CorruptError
from millrace.model.kafka import KIND as KAFKA
from millrace.sources.skipped import FILE as SKIPPED
from millrace.sources.skipped import read_skipped
from millrace.spark.checkpoint import FUSED, Checkpoint, journal_of, state_schemas
from millrace.spark.handed import HANDOVER, is_unfinished
from millrace.spark.history import FORMAT
from millrace.spark.logfiles import (
    DamageError,
    batches_in,
    is_whole,
    json_lines,
    json_object,
    positions_in,
    read_bytes,
    sealed_object,
)
from millrace.spark.logged import batches_of
from millrace.spark.trouble import machine_trouble
from millrace.spark.writers import begun_batch

_LATEST = 2
"""The number of the latest batches whose offsets Spark reads when it starts."""
_PATIENCE = 5.0
"""The seconds for which state is searched for the damaged file."""


def damage_of(checkpoint: Checkpoint) -> CorruptError | None:
    """The first problem with the files of a checkpoint; None if there is none, or no checkpoint yet.

    It only reads, and takes milliseconds. Raises MachineError if the system refuses to read a file.
    """
    try:
        _check(checkpoint)
    except DamageError as found:
        file = found.file.relative_to(checkpoint.folder)
        if file.name == HANDOVER:
            return CorruptError(
                f"checkpoint {checkpoint.folder} is incomplete: its start from a savepoint was interrupted",
                "remove its folder, and start from the savepoint again",
            )
        return damaged(checkpoint, f"{file} {found.why}")
    except OSError as error:
        raise machine_trouble(error) or error from None
    return None


def state_damage(checkpoint: Checkpoint) -> CorruptError:
    """The error for state that Spark cannot load. It names the damaged file if a checksum identifies it."""
    return damaged_state(checkpoint) or damaged(checkpoint, "Spark cannot load the state in spark/state")


def damaged_state(checkpoint: Checkpoint) -> CorruptError | None:
    """The error for the first file of the state whose checksum does not match; None if none is found in seconds."""
    deadline = time.monotonic() + _PATIENCE
    for sums in sorted((checkpoint.spark / "state").rglob(".*.crc")):
        file = sums.with_name(sums.name[1 : -len(".crc")])
        if file.suffix == ".tmp":  # a writer was killed before it renamed the file
            continue
        if not file.exists() or not is_whole(file):
            why = "is damaged" if file.exists() else "is missing"
            return damaged(checkpoint, f"{file.relative_to(checkpoint.folder)} {why}")
        if time.monotonic() > deadline:
            break
    return None


def damaged(checkpoint: Checkpoint, why: str) -> CorruptError:
    """The error for a damaged checkpoint: one line, with the way on."""
    return CorruptError(f"checkpoint {checkpoint.folder} is damaged: {why}", AGAIN)


def _check(checkpoint: Checkpoint) -> None:
    known = _known(checkpoint)
    if known is None or known["format"] != FORMAT:  # opening the checkpoint refuses another format
        return
    _check_skipped(checkpoint)
    if is_unfinished(checkpoint.folder):
        raise DamageError(checkpoint.folder / HANDOVER, "is unfinished")
    first = checkpoint.first
    logged = batches_of(checkpoint.spark, first)
    last, done = max(logged.planned, default=first - 1), max(logged.committed, default=first - 1)
    delivered = max(done, _delivered(checkpoint))
    if delivered > last:
        file = checkpoint.offsets(delivered)
        raise DamageError(file, "is damaged" if file.exists() else "is missing")
    if done >= first:
        _check_state(checkpoint)
    if last >= 0 or (checkpoint.spark / "metadata").exists():
        _check_metadata(checkpoint.spark / "metadata")
    for batch in range(max(last - _LATEST + 1, first - 1, 0), last + 1):
        if batch >= first and batch not in logged.planned:
            raise DamageError(checkpoint.offsets(batch), "is missing")
        positions = positions_in(checkpoint.offsets(batch))
        if batch == last:
            _check_journals(checkpoint, known["spark_sources"], positions)
            _check_begun(checkpoint.begun, last)
            if done < last:  # the batch is run again, with the tables that it joined
                _check_tables(checkpoint, positions)


def _known(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The content of millrace.json; None if there is no checkpoint yet."""
    file = checkpoint.folder / "millrace.json"
    if not file.exists():
        later = ("spark", "sources", "tables", "begun", "status.json")
        if any((checkpoint.folder / name).exists() for name in later):
            raise DamageError(file, "is missing")
        return None
    known = sealed_object(file)
    shape = {"format": int, "id": str, "labels": list, "pipeline": str, "spark_sources": list, "stages": dict,
             "words": dict, "left": list, "generation": int, "outputs": dict}  # fmt: skip
    is_older = isinstance(known.get("format"), int) and known["format"] != FORMAT
    if not is_older and any(not isinstance(known.get(name), kind) for name, kind in shape.items()):
        raise DamageError(file, "does not describe a checkpoint")
    return known


def _delivered(checkpoint: Checkpoint) -> int:
    """The last batch that status.json reports; -1 if it reports none. The file is only a report: damage is no harm."""
    try:
        batch = unsealed((checkpoint.folder / "status.json").read_bytes())["progress"]["batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return -1
    return batch if isinstance(batch, int) else -1


def _check_metadata(file: Path) -> None:
    about = sealed_object(file)
    if not isinstance(about.get("id"), str) or not is_whole(file):
        raise DamageError(file, "is damaged")


def _check_state(checkpoint: Checkpoint) -> None:
    operators = list((checkpoint.spark / "state").glob("*"))
    if not operators:
        raise DamageError(checkpoint.spark / "state", "is missing")
    for operator in operators:
        described = operator / "_metadata" / "v2"
        if batches := batches_in(described):
            last = described / str(max(batches))
            try:
                schemas = state_schemas(operator, json_lines(last)[-1])
            except (KeyError, TypeError):
                raise DamageError(last, "does not describe state") from None
            for schema in schemas:
                if not schema.exists() or not is_whole(schema):
                    raise DamageError(schema, "is damaged" if schema.exists() else "is missing")


def _check_skipped(checkpoint: Checkpoint) -> None:
    try:
        read_skipped(checkpoint.folder)
    except ValueError:
        raise DamageError(checkpoint.folder / SKIPPED, "is damaged") from None


def _check_begun(file: Path, last: int) -> None:
    if not file.exists():
        return
    try:
        begun = begun_batch(file)
    except ValueError:
        raise DamageError(file, "is damaged") from None
    if begun > last:
        raise DamageError(file, f"names batch {begun}, but the last batch is {last}")


def _check_journals(checkpoint: Checkpoint, spark_sources: list[str], positions: list[dict[str, Any]]) -> None:
    """Check the journals of the sources that an offset holds positions of."""
    native = [name for name in spark_sources if name != FUSED]
    for number, offset in enumerate(positions):
        names = [FUSED] if number == 0 and FUSED in spark_sources else native
        for source, position in offset["at"].items():
            kind, _, name = source.partition(" ")
            if kind == "log":
                _check_feed([journal_of(checkpoint.folder, each, name, "json") for each in names])
            elif kind == KAFKA:
                _check_kafka([journal_of(checkpoint.folder, each, name, KAFKA) for each in names])
            elif kind == "files" and isinstance(position, int) and position:
                files = [journal_of(checkpoint.folder, each, name, "jsonl") for each in names]
                _check_files(files, position)


def _check_feed(journals: list[Path]) -> None:
    for file in _existing(journals):
        content = sealed_object(file)
        if "topic" not in content or not isinstance(content.get("start"), list):
            raise DamageError(file, "does not describe a topic")


def _check_kafka(journals: list[Path]) -> None:
    for file in _existing(journals):
        if not isinstance(sealed_object(file).get("start"), dict):
            raise DamageError(file, "does not describe topics of Kafka")


def _check_files(journals: list[Path], position: int) -> None:
    for file in _existing(journals):
        data = read_bytes(file)
        whole = data[: data.rfind(b"\n") + 1].splitlines()  # a crash may have cut off a last line, which was not used
        for line in whole:
            if not {"name", "size"} <= set(json_object(file, line)):
                raise DamageError(file, "does not list files")
        if len(whole) < position:
            raise DamageError(file, f"lists {len(whole)} files, but {position} were read")


def _existing(journals: list[Path]) -> list[Path]:
    """The journals that exist; native stages that read a source have one each. Refuses if none exists."""
    found = [file for file in journals if file.exists()]
    if not found:
        raise DamageError(journals[0], "is missing")
    return found


def _check_tables(checkpoint: Checkpoint, positions: list[dict[str, Any]]) -> None:
    for name in {name for offset in positions for name in offset.get("tables", {}).values()}:
        file = checkpoint.folder / "tables" / name
        if hashlib.sha256(read_bytes(file)).hexdigest()[:16] != file.stem.partition("-")[2]:
            raise DamageError(file, "is damaged")
