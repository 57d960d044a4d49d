"""Files as a source: lines and where they start, splits that lose no line, a journal that survives a crash."""

import bz2
import gzip
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import CorruptError, NotFoundError, PipelineError, files
from millrace.model.schema import parse_schema
from millrace.sources import files as module
from millrace.sources.files import Files, FileSplit, lines
from millrace.sources.skipped import Skipped, read_skipped, write_skipped

SCHEMA = parse_schema("k STRING")


def texts(data: bytes) -> list[tuple[int, str | None]]:
    bundle = lines("a file", data)
    assert bundle.texts is not None
    return [(int(offset), text) for offset, text in zip(bundle.offsets, bundle.texts.to_pylist(), strict=True)]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"a", [(0, "a")]),
        (b"a\n", [(0, "a\n")]),
        (b"a\n\nb\r\n \nc", [(0, "a\n"), (3, "b\r\n"), (8, "c")]),
        (b"\xef\xbb\xbfa\nb", [(3, "a\n"), (5, "b")]),
        (b"a\n\xff\nb", [(0, "a\n"), (2, None), (4, "b")]),
    ],
)
def test_lines(data: bytes, found: list[tuple[int, str | None]]) -> None:
    assert texts(data) == found


@given(st.lists(st.text("ab", max_size=6), max_size=12), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_every_line_is_in_one_split(given: list[str], cuts: list[int], ends: bool) -> None:
    data = ("\n".join(given) + ("\n" if ends else "")).encode()
    path = Path("/tmp") / f"millrace-lines-{os.getpid()}"
    path.write_bytes(data)
    try:
        bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        found = []
        for start, end in pairwise(bounds):
            bundle = FileSplit(str(path), "json", SCHEMA, start, end, end - start).read()
            assert bundle.texts is not None
            found += list(zip(bundle.offsets.tolist(), bundle.texts.to_pylist(), strict=True))
        assert found == texts(data)
    finally:
        path.unlink()


def test_files_keep_their_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source, journal = files(str(folder), SCHEMA), tmp_path / "journal"
    (folder / "b.json").write_text("1\n")
    os.utime(folder / "b.json", (1, 1))
    assert Files(source, journal).latest(0) == 1
    (folder / "a.json").write_text("2\n")
    os.utime(folder / "a.json", (0, 0))  # older, but found later
    with journal.open("ab") as file:
        file.write(b'{"path": "cut o')  # a crash while a file was noted
    again = Files(source, journal)
    assert again.latest(1) == 2
    assert [Path(split.path).name for split in again.splits(0, 2)] == ["b.json", "a.json"]
    monkeypatch.setattr(module, "SPLIT", 1)
    assert [(split.start, split.end) for split in again.splits(1, 2)] == [(0, 1), (1, 2)]


def test_compressed_files_and_files_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"1\n2\n"))
    split = FileSplit(str(path), "json", SCHEMA, 0, path.stat().st_size, 0)
    assert len(split.read()) == 2
    path.write_bytes(b"not gzip")
    with pytest.raises(CorruptError, match="cannot be read"):
        split.read()
    path.unlink()
    with pytest.raises(NotFoundError, match="no longer exists, but the pipeline still needs it; restore the file"):
        split.read()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_a_file_is_read_whatever_it_is_compressed_with(suffix: str, tmp_path: Path) -> None:
    path, data = tmp_path / f"a.json{suffix}", b"1\n2\n"
    ways: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    }
    path.write_bytes(ways[suffix](data))
    split = FileSplit(str(path), "json", SCHEMA, 0, path.stat().st_size, 0)
    assert len(split.read()) == 2
    path.write_bytes(path.read_bytes()[:10] + bytes(5) + path.read_bytes()[15:])
    with pytest.raises(CorruptError, match=r"cannot be read: .*; mend the file, or move it away and go on without it"):
        split.read()


def test_files_that_are_skipped_are_not_read_and_those_that_cannot_be_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source, journal = files(str(folder), SCHEMA), tmp_path / "journal"
    for number, name in enumerate(("a.json", "b.json.gz", "c.json", "d.json")):
        (folder / name).write_text("1\n")
        os.utime(folder / name, (number, number))
    assert Files(source, journal).end() == 4
    (folder / "c.json").unlink()
    (folder / "a.json").unlink()
    bad = {str(folder / name) for name in ("b.json.gz", "c.json")}
    assert [(position, path) for position, path, _ in Files(source, journal).unreadable(1)] == [
        (1, str(folder / "b.json.gz")), (2, str(folder / "c.json"))
    ]  # fmt: skip
    skipping = Files(source, journal, bad)
    assert list(skipping.unreadable(1)) == []
    assert [Path(split.path).name for split in skipping.splits(1, 4)] == ["d.json"]
    assert skipping.end() == 4, "positions stay what they were"


def test_skipped_files_are_recorded_beside_skipped_records(tmp_path: Path) -> None:
    skipped = Skipped().adding("uid", "plays", 0, 10, 12).adding_file("/in/a.json")
    write_skipped(tmp_path, skipped)
    assert read_skipped(tmp_path) == skipped


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch()
    with pytest.raises(PipelineError, match="is a file, not a folder"):
        Files(files(str(path), SCHEMA), tmp_path / "journal")
