"""Files that are sent: compressed ones, CSV with long rows and quotes, and lines that hold only control characters."""

import bz2
import csv
import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.formats import csvfile
from millrace.formats.compressed import opened
from millrace.formats.csvfile import read_csv
from millrace.model.errors import CorruptError, PipelineError
from millrace.sources.collect import chunks, format_of

LINES = "".join(f'{{"n": {n}}}\n' for n in range(50_000)).encode()
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def sent(path: Path | str, format: str | None = None) -> list[str]:
    found = chunks(str(path), format or format_of(str(path)))
    return [text.rstrip("\n") for chunk in found for text in chunk.values.to_pylist()]


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_files_are_sent_as_what_they_hold(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"plays.json{suffix}"
    path.write_bytes(COMPRESSED[suffix](LINES))
    assert sent(path) == LINES.decode().splitlines()
    path = tmp_path / f"plays.csv{suffix}"
    path.write_bytes(COMPRESSED[suffix](b"user,note\nann,hi\n"))
    assert list(map(json.loads, sent(path))) == [{"user": "ann", "note": "hi"}]


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_is_recognised_by_its_content(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plays"
    path.write_bytes(COMPRESSED[suffix](LINES))
    assert len(sent(path)) == 50_000
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        assert len(sent("-")) == 50_000


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_that_is_cut_off_or_none_is_damaged(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"plays.json{suffix}"
    whole = COMPRESSED[suffix](os.urandom(100_000).hex().encode())
    for content in (whole[: len(whole) // 2], whole[:20] + bytes(20) + whole[40:], LINES):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=r"plays\.json\.\w+ cannot be read: "):
            sent(path)
    path.write_bytes(b"")
    assert sent(path) == []


def rows(data: bytes) -> list[tuple[str | None, ...]]:
    batches = list(read_csv("a file", io.BytesIO(data)))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_a_csv_field_may_be_longer_than_what_is_read_at_once() -> None:
    long = 'x"\n,' * 3_000_000
    written = io.StringIO()
    csv.writer(written).writerows([["a", "b"], ["1", long], ["2", "short"]])
    assert rows(written.getvalue().encode()) == [("1", long), ("2", "short")]


FIELDS = st.text('a",;\n\r ', max_size=6)


@given(st.lists(st.tuples(FIELDS, FIELDS), max_size=8), st.integers(1, 12), st.sampled_from(["\n", "\r\n"]))
def test_every_row_of_a_csv_file_is_read_wherever_it_is_cut(
    given: list[tuple[str, str]], piece: int, ends: str
) -> None:
    """Python's own writer is the judge."""
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator=ends).writerows([("a", "b"), *given])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(csvfile, "_PIECE", piece)
        assert rows(written.getvalue().encode()) == given


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_a_quote_within_a_field_is_text(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "_PIECE", piece)
    assert rows(b'size,what\n5" wide,pipe\n6",tube\n') == [('5" wide', "pipe"), ('6"', "tube")]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'a,b\n1,2\n3,"4\n5,6\n', "a file: a quote is opened and never closed"),
        (b"a,b\n1,2\n3,4\n5\n", "a file: row 4: Expected 2 columns, got 1: 5"),
        (b'a,b\n1,"' + b"x" * 3_000, "a file: a quote is opened and not closed within 0 MB"),
        (b"a,b\n" + b"x" * 3_000, "a file: a row does not end within 0 MB"),
    ],
    ids=["open quote", "short row", "long quote", "long row"],
)
@pytest.mark.parametrize("piece", [4, 4096])
def test_what_is_wrong_with_a_csv_file_is_said(
    data: bytes, said: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csvfile, "_PIECE", piece)
    monkeypatch.setattr(csvfile, "_LONGEST_ROW", 2_000)
    with pytest.raises(PipelineError) as refused:
        rows(data)
    assert refused.value.problem == said


@pytest.mark.parametrize("content", [b"a,b\n", b"a,b\n" + b"1,2\n" * 1_000])
def test_a_csv_file_is_read_in_the_thread_that_asks(content: bytes) -> None:
    """A thread of Arrow that read a Python file at the exit of the process ended it with a message of C++."""
    threads = set()

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            threads.add(threading.get_ident())
            return super().read(size)

    list(read_csv("a file", Watched(content)))
    assert threads == {threading.get_ident()}


def test_a_file_of_a_csv_header_has_no_rows(tmp_path: Path) -> None:
    for content in (b"a,b\n", b"a,b", b"a,b\n\n\r\n"):
        (tmp_path / "empty.csv").write_bytes(content)
        with opened(str(tmp_path / "empty.csv")) as file:
            assert list(read_csv("empty.csv", file)) == []


def test_a_line_of_a_control_character_is_no_blank_line(tmp_path: Path) -> None:
    path = tmp_path / "plays.json"
    path.write_bytes(b'{"n": 1}\n\x1f\n\x0c\n \n\r\n\xc2\x85\n')
    assert sent(path) == ['{"n": 1}', "\x1f", "\x0c", "\x85"]
