"""Files as a sink, and dead letters.

A replay fills a new generation of the files in a folder below the one in use; `serve` then swaps the two.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.eventlog.durable import remove_parts, sync, write_whole
from millrace.model.connectors import Commit, is_stored
from millrace.model.errors import AGAIN, ConflictError
from millrace.model.pipeline import FileSink
from millrace.spark.answers import json_lines
from millrace.spark.crash import reach
from millrace.spark.inventory import Inventory
from millrace.spark.trouble import clear

_MOVING = "_moving"
"""The marker in the folder of a generation whose files are being moved to their place."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What a folder knows of its files."""

    last: Commit | None = None
    generation: int = 0
    files: Inventory | None = field(default_factory=Inventory)
    """The files up to the last commit; None if they are not known, because batches may have been written twice."""


class FileWriter:
    """Files in a folder, one for each micro-batch that has answers. A visible file is complete.

    The hidden file `.millrace-PIPELINE` holds the last commit and an inventory of the files. Readers ignore names that
    start with `.` or `_`.
    """

    def __init__(self, sink: FileSink, pipeline: str, generation: int = 1, staged: bool = False) -> None:
        """The first commit creates the folder. Incomplete files are removed."""
        self._root, self._format, self._consumed = Path(sink.path), sink.format, sink.consumed
        self._pipeline, self._generation = pipeline, generation
        self._folder = self._stage(generation) if staged else self._root
        _remove_parts(self._folder)

    def last(self) -> Commit | None:
        """The commit in the file."""
        return self._read(self._folder).last

    def lost(self) -> str | None:
        """Whether files up to the last commit are missing, or have another size; those of a consumed sink may be."""
        record = self._read(self._folder)
        if self._consumed or record.last is None or record.files is None:
            return None
        folders = [self._folder, self._root] if (self._folder / _MOVING).exists() else [self._folder]
        with clear(f"cannot read {self._folder}", self._folder):
            found = Inventory.of(path for folder in folders for path in _written(folder, record.last))
        difference = record.files.difference(found)
        if difference is None:
            return None
        return f"folder {self._root} {difference} (a consumer that removes files needs to_files(..., consumed=True))"

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write a file named by the commit, then the commit; unless `once`, the name also holds the process id."""
        record = self._read(self._folder)
        if is_stored(record.last, commit, f"folder {self._folder}") and once:
            return
        path, files = self._folder / _name(commit, once, self._format), record.files if once else None
        if len(answers):
            _put(answers, path, self._format)
            files = None if files is None else files.adding(path.name, path.stat().st_size)
        elif once:  # a killed attempt, with other offsets, may have written it
            path.unlink(missing_ok=True)
        self._note(_Record(commit, self._generation, files))

    def replace(self, answers: pa.Table) -> None:
        """Write one file, then remove the others."""
        _replace(answers, self._folder, self._format)
        record = self._read(self._folder)
        if record.last is not None:
            self._note(replace(record, files=None))

    def newest(self) -> int:
        """The newest generation in the folder, by its record and by the folders below."""
        stages = [path.name.split("-")[1] for path in self._root.glob(f"_generation-*-{self._pipeline}")]
        return max([self._served_generation(), *(int(number) for number in stages if number.isdecimal())])

    def serve(self) -> None:
        """Move the files in use into a folder below, and those of this generation to their place.

        A crash in between is completed by the next call: the marker tells whether the old files were moved.
        """
        stage = self._stage(self._generation)
        marker = stage / _MOVING
        if stage.is_dir():
            with clear(f"cannot move files in {self._root}", self._root):
                if not marker.exists():
                    _move(self._own(self._root), self._stage(self._served_generation()))
                    marker.touch()
                    sync(stage)
                _move(self._own(stage), self._root)
                marker.unlink()
                stage.rmdir()
        self._folder = self._root

    def _served_generation(self) -> int:
        """The generation of the files in use; 0 if their record is missing or damaged, which a replay mends."""
        try:
            return self._read(self._root).generation
        except ConflictError:
            return 0

    def _stage(self, generation: int) -> Path:
        return self._root / f"_generation-{generation}-{self._pipeline}"

    def _own(self, folder: Path) -> list[Path]:
        files = [*folder.glob(f"{self._pipeline}-*.{self._format}"), folder / f"answers.{self._format}"]
        return [path for path in [*files, record_of(folder, self._pipeline)] if path.exists()]

    def _read(self, folder: Path) -> _Record:
        try:
            about = json.loads(record_of(folder, self._pipeline).read_text(encoding="utf-8"))
            files = None if about["files"] is None else Inventory(*about["files"])
            return _Record(Commit(self._pipeline, *about["last"]), int(about["generation"]), files)
        except FileNotFoundError:
            return _Record()
        except (ValueError, KeyError, TypeError):
            raise ConflictError(f"{record_of(folder, self._pipeline)} is damaged", AGAIN) from None

    def _note(self, record: _Record) -> None:
        assert record.last is not None
        last = [record.last.checkpoint, record.last.batch, record.last.digest]
        files = None if record.files is None else astuple(record.files)
        text = json.dumps({"generation": record.generation, "last": last, "files": files})
        with clear(f"cannot write to {self._folder}", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(record_of(self._folder, self._pipeline), lambda part: part.write_text(text, encoding="utf-8"))


def _remove_parts(folder: Path) -> None:
    with clear(f"cannot write to the folder {folder}", folder):
        remove_parts(folder)


def _name(commit: Commit, once: bool, format: str) -> str:
    attempt = "" if once else f"-{os.getpid()}"
    return f"{commit.pipeline}-{commit.checkpoint}-{commit.batch:09}{attempt}.{format}"


def _written(folder: Path, last: Commit) -> Iterator[Path]:
    """The files of a checkpoint up to a commit. A killed attempt may have left one of the batch after it."""
    head = f"{last.pipeline}-{last.checkpoint}-"
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            batch = entry.name.removeprefix(head).partition(".")[0]
            if entry.name.startswith(head) and batch.isdecimal() and int(batch) <= last.batch:
                yield folder / entry.name


def _put(answers: pa.Table, path: Path, format: str) -> None:
    def write(whole: Path) -> None:
        if format == "parquet":
            pq.write_table(answers, whole)
        else:
            with whole.open("w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in json_lines(answers))
        reach("sink during write")

    with clear(f"cannot write {path}", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, write)


def _replace(answers: pa.Table, folder: Path, format: str) -> None:
    path = folder / f"answers.{format}"
    _put(answers, path, format)
    for other in folder.glob(f"*.{format}"):
        if other != path and not other.name.startswith("_"):
            other.unlink()


def _move(files: list[Path], to: Path) -> None:
    """Move files into a folder, which replaces those of the same name."""
    to.mkdir(parents=True, exist_ok=True)
    for path in files:
        os.replace(path, to / path.name)
    sync(to)


def record_of(folder: Path, pipeline: str) -> Path:
    """The file with the last commit of a pipeline to the files in a folder."""
    return folder / f".millrace-{pipeline}"
