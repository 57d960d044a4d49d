"""Opens files, also compressed ones: gzip, bzip2 and Zstandard are recognised by the first bytes, whatever the name."""

import bz2
import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from millrace.model.errors import unreadable

SUFFIXES = (".gz", ".bz2", ".zst")
"""The usual endings of the names of compressed files."""
UNREADABLE = (OSError, EOFError, zlib.error, pa.ArrowInvalid)
"""What reading a file raises that is damaged, cut off or not there."""
_GZIP, _BZIP2, _ZSTANDARD = b"\x1f\x8b", re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), b"\x28\xb5\x2f\xfd"


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The content of a file; `-` is stdin. Refuses a file that cannot be read."""
    try:
        if path == "-":
            yield decompressed(path, sys.stdin.buffer)
            return
        with open(path, "rb") as file:
            yield decompressed(path, file)
    except UNREADABLE as error:
        raise unreadable("stdin" if path == "-" else path, error) from None


def decompressed(path: str, file: BinaryIO) -> BinaryIO:
    """The content of an open file. Raises OSError if the content does not fit the name of a compressed file."""
    ahead = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, file))
    begin = ahead.peek(10)
    if begin.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=ahead))
    if _BZIP2.match(begin):
        return cast(BinaryIO, bz2.BZ2File(ahead))
    if begin.startswith(_ZSTANDARD):
        return io.BufferedReader(pa.CompressedInputStream(ahead, "zstd"))
    if begin and path.endswith(SUFFIXES):
        raise OSError("its content is not compressed")
    return ahead


def plain_size(path: str) -> int | None:
    """The size of a file's content in bytes; None if it is not known: of stdin, and of a compressed file."""
    file = Path(path)
    return file.stat().st_size if file.is_file() and file.suffix not in SUFFIXES else None
