"""Reads the files of a checkpoint. A damaged or missing one is a DamageError."""

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.eventlog.sealed import unsealed

_CRC_HEADER = struct.Struct(">4sI")
_VERSION = re.compile(r"v\d+")


class DamageError(Exception):
    """A file of a checkpoint that is damaged or missing."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(file, why)
        self.file, self.why = file, why


def positions_in(file: Path) -> list[dict[str, Any]]:
    """The offset of each Spark source, from the file in which Spark logged it."""
    _, *positions = json_lines(file)
    for each in positions:
        if "now" not in each or not isinstance(each.get("at"), dict) or not isinstance(each.get("tables", {}), dict):
            raise DamageError(file, "holds no offsets of Millrace")
    if not positions:
        raise DamageError(file, "holds no offsets of Millrace")
    return positions


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects in a file of Spark: a line with the version of its format, then one JSON object on each line."""
    text = read_bytes(file)
    version, *lines = text.decode(errors="replace").splitlines() or [""]
    if not _VERSION.fullmatch(version) or not lines or not is_whole(file):
        raise DamageError(file, "is damaged")
    return [json_object(file, line) for line in lines]


def sealed_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file of Millrace or Spark."""
    return json_object(file, read_bytes(file))


def json_object(file: Path, text: str | bytes) -> dict[str, Any]:
    """The JSON object in a part of a file."""
    try:
        return unsealed(text)
    except ValueError:
        raise DamageError(file, "is damaged") from None


def read_bytes(file: Path) -> bytes:
    """The content of a file."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise DamageError(file, "is missing") from None
    except IsADirectoryError:
        raise DamageError(file, "is a folder") from None


def batches_in(folder: Path) -> list[int]:
    """The batches that a folder of Spark has a file for, in order."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def is_whole(file: Path) -> bool:
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
