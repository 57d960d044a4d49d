"""Finds damaged and missing files of a checkpoint, and says how to go on.

Most files are read here before Spark is started. Only Spark can read the state: if it cannot, `state_damage` names the
file by its checksum. The way on is always to compute the answers again from the log. Another checkpoint would be wrong:
the views would keep rows of the old one, and sinks would receive everything twice.
"""

import hashlib
import re
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import unsealed
from millrace.model.errors import AGAIN, CorruptError
from millrace.sources.skipped import FILE as SKIPPED
from millrace.sources.skipped import read_skipped
from millrace.spark.checkpoint import FUSED, Checkpoint, journal_of, state_schemas
from millrace.spark.history import FORMAT
from millrace.spark.trouble import machine_trouble
from millrace.spark.writers import begun_batch

_LATEST = 2
"""The number of the latest batches whose offsets Spark reads when it starts."""
_PATIENCE = 5.0
"""The seconds for which state is searched for the damaged file."""
_CRC_HEADER = struct.Struct(">4sI")
_VERSION = re.compile(r"v\d+")


class _DamageError(Exception):
    def __init__(self, file: Path, why: str) -> None:
        super().__init__(file, why)
        self.file, self.why = file, why


def damage_of(checkpoint: Checkpoint) -> CorruptError | None:
    """The first problem with the files of a checkpoint; None if there is none, or no checkpoint yet.

    It only reads, and takes milliseconds. Raises MachineError if the system refuses to read a file.
    """
    try:
        _check(checkpoint)
    except _DamageError as found:
        file = found.file.relative_to(checkpoint.folder)
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
        if not file.exists() or not _is_whole(file):
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
    offsets, commits = (_batches(checkpoint.spark / name) for name in ("offsets", "commits"))
    last, done = max(offsets, default=-1), max(commits, default=-1)
    delivered = max(done, _delivered(checkpoint))
    if delivered > last:
        raise _DamageError(checkpoint.offsets(delivered), "is missing")
    if done >= 0:
        _json_lines(checkpoint.commits(done))
        _check_state(checkpoint)
    if last >= 0 or (checkpoint.spark / "metadata").exists():
        _check_metadata(checkpoint.spark / "metadata")
    for batch in range(max(last - _LATEST + 1, 0), last + 1):
        if batch not in offsets:
            raise _DamageError(checkpoint.offsets(batch), "is missing")
        positions = _positions(checkpoint.offsets(batch))
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
            raise _DamageError(file, "is missing")
        return None
    known = _sealed(file)
    shape = {"format": int, "id": str, "labels": list, "pipeline": str, "spark_sources": list, "stages": dict,
             "words": dict, "left": list, "generation": int, "outputs": dict}  # fmt: skip
    is_older = isinstance(known.get("format"), int) and known["format"] != FORMAT
    if not is_older and any(not isinstance(known.get(name), kind) for name, kind in shape.items()):
        raise _DamageError(file, "does not describe a checkpoint")
    return known


def _delivered(checkpoint: Checkpoint) -> int:
    """The last batch that status.json reports; -1 if it reports none. The file is only a report: damage is no harm."""
    try:
        batch = unsealed((checkpoint.folder / "status.json").read_bytes())["progress"]["batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return -1
    return batch if isinstance(batch, int) else -1


def _check_metadata(file: Path) -> None:
    about = _sealed(file)
    if not isinstance(about.get("id"), str) or not _is_whole(file):
        raise _DamageError(file, "is damaged")


def _check_state(checkpoint: Checkpoint) -> None:
    operators = list((checkpoint.spark / "state").glob("*"))
    if not operators:
        raise _DamageError(checkpoint.spark / "state", "is missing")
    for operator in operators:
        described = operator / "_metadata" / "v2"
        if batches := _batches(described):
            last = described / str(max(batches))
            try:
                schemas = state_schemas(operator, _json_lines(last)[-1])
            except (KeyError, TypeError):
                raise _DamageError(last, "does not describe state") from None
            for schema in schemas:
                if not schema.exists() or not _is_whole(schema):
                    raise _DamageError(schema, "is damaged" if schema.exists() else "is missing")


def _check_skipped(checkpoint: Checkpoint) -> None:
    try:
        read_skipped(checkpoint.folder)
    except ValueError:
        raise _DamageError(checkpoint.folder / SKIPPED, "is damaged") from None


def _check_begun(file: Path, last: int) -> None:
    if not file.exists():
        return
    try:
        begun = begun_batch(file)
    except ValueError:
        raise _DamageError(file, "is damaged") from None
    if begun > last:
        raise _DamageError(file, f"names batch {begun}, but the last batch is {last}")


def _check_journals(checkpoint: Checkpoint, spark_sources: list[str], positions: list[dict[str, Any]]) -> None:
    """Check the journals of the sources that an offset holds positions of."""
    native = [name for name in spark_sources if name != FUSED]
    for number, offset in enumerate(positions):
        names = [FUSED] if number == 0 and FUSED in spark_sources else native
        for source, position in offset["at"].items():
            kind, _, name = source.partition(" ")
            if kind == "log":
                _check_feed([journal_of(checkpoint.folder, each, name, "json") for each in names])
            elif kind == "files" and isinstance(position, int) and position:
                files = [journal_of(checkpoint.folder, each, name, "jsonl") for each in names]
                _check_files(files, position)


def _check_feed(journals: list[Path]) -> None:
    for file in _existing(journals):
        content = _sealed(file)
        if "topic" not in content or not isinstance(content.get("start"), list):
            raise _DamageError(file, "does not describe a topic")


def _check_files(journals: list[Path], position: int) -> None:
    for file in _existing(journals):
        data = _read(file)
        whole = data[: data.rfind(b"\n") + 1].splitlines()  # a crash may have cut off a last line, which was not used
        for line in whole:
            if not {"name", "size"} <= set(_object(file, line)):
                raise _DamageError(file, "does not list files")
        if len(whole) < position:
            raise _DamageError(file, f"lists {len(whole)} files, but {position} were read")


def _existing(journals: list[Path]) -> list[Path]:
    """The journals that exist; native stages that read a source have one each. Refuses if none exists."""
    found = [file for file in journals if file.exists()]
    if not found:
        raise _DamageError(journals[0], "is missing")
    return found


def _check_tables(checkpoint: Checkpoint, positions: list[dict[str, Any]]) -> None:
    for name in {name for offset in positions for name in offset.get("tables", {}).values()}:
        file = checkpoint.folder / "tables" / name
        if hashlib.sha256(_read(file)).hexdigest()[:16] != file.stem.partition("-")[2]:
            raise _DamageError(file, "is damaged")


def _positions(file: Path) -> list[dict[str, Any]]:
    """The offset of each Spark source, from the file in which Spark logged it."""
    _, *positions = _json_lines(file)
    for each in positions:
        if "now" not in each or not isinstance(each.get("at"), dict) or not isinstance(each.get("tables", {}), dict):
            raise _DamageError(file, "holds no offsets of Millrace")
    if not positions:
        raise _DamageError(file, "holds no offsets of Millrace")
    return positions


def _json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects in a file of Spark: a line with the version of its format, then one JSON object on each line."""
    text = _read(file)
    version, *lines = text.decode(errors="replace").splitlines() or [""]
    if not _VERSION.fullmatch(version) or not lines or not _is_whole(file):
        raise _DamageError(file, "is damaged")
    return [_object(file, line) for line in lines]


def _sealed(file: Path) -> dict[str, Any]:
    return _object(file, _read(file))


def _object(file: Path, text: str | bytes) -> dict[str, Any]:
    try:
        return unsealed(text)
    except ValueError:
        raise _DamageError(file, "is damaged") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise _DamageError(file, "is missing") from None
    except IsADirectoryError:
        raise _DamageError(file, "is a folder") from None


def _batches(folder: Path) -> set[int]:
    """The batches that a folder of Spark has a file for."""
    return {int(path.name) for path in folder.glob("*") if path.name.isdigit()}


def _is_whole(file: Path) -> bool:
    """Whether a file has the checksums that Hadoop stored beside it; True if it stored none."""
    try:
        sums = file.with_name(f".{file.name}.crc").read_bytes()
    except FileNotFoundError:
        return True
    if len(sums) < _CRC_HEADER.size:  # Hadoop ignores a file of checksums without a header, too
        return True
    magic, step = _CRC_HEADER.unpack_from(sums)
    if magic != b"crc\0" or not step:
        return True
    expected = struct.iter_unpack(">I", sums[_CRC_HEADER.size : len(sums) // 4 * 4])
    return list(_sums(file, step)) == [each for (each,) in expected]


def _sums(file: Path, step: int) -> Iterator[int]:
    with file.open("rb") as opened:
        while piece := opened.read(step):
            yield zlib.crc32(piece)
