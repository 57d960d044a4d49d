"""Files as a source: lines and where they start, splits that lose no line, a journal that survives a crash."""

import gzip
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import CorruptError, NotFoundError, PipelineError, files
from millrace.model.schema import parse_schema
from millrace.sources import files as module
from millrace.sources.files import Files, FileSplit, lines

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


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch()
    with pytest.raises(PipelineError, match="is a file, not a folder"):
        Files(files(str(path), SCHEMA), tmp_path / "journal")
