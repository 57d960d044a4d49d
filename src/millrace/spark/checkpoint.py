"""What a checkpoint remembers of the pipeline that made it, and which changes of it may go on.

State and offsets mean something only to the computation that wrote them. What may change without that: views and
sinks that come or go (a new one starts from where the pipeline is), the numbers in a trigger, how long to wait for
late events. Everything else starts over, in another checkpoint.
"""

import fcntl
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from millrace.eventlog.durable import write_whole
from millrace.model.errors import NOTHING_LOST, ConflictError, CorruptError, MachineError
from millrace.model.explain import stream_as_text
from millrace.model.query import Query
from millrace.spark.plan import Part

FORMAT = 3
"""Of what is kept. Since 3 the sums in a state are wider than what they are of."""
_NUMBERS = re.compile(r"\d+(\.\d+)?(us|ms|s|m|h|d)?")


@dataclass(frozen=True, slots=True)
class Opened:
    """What a checkpoint keeps of its own."""

    labels: tuple[int, ...]
    """Of the shards."""
    id: str
    """Which no other checkpoint has: batches are counted from 0 in each."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with all that a pipeline needs to go on."""

    folder: Path

    @property
    def spark(self) -> Path:
        """Spark's own part: offsets, commits, state."""
        return self.folder / "spark"

    @property
    def dead_letters(self) -> Path:
        """Where dead letters go, if nobody says otherwise."""
        return self.folder / "dead_letters"

    def offsets(self, batch: int) -> Path:
        """Where Spark logs what a batch reads."""
        return self.spark / "offsets" / str(batch)

    def commits(self, batch: int) -> Path:
        """Where Spark notes that a batch is done."""
        return self.spark / "commits" / str(batch)

    @property
    def begun(self) -> Path:
        """The last batch whose answers were begun to be written, for at-most-once."""
        return self.folder / "begun"

    def open(self, pipeline: str, parts: Mapping[str, Part], labels: tuple[int, ...], fuse: bool = True) -> "Opened":
        """Go on with what is there, or begin. Refuses what cannot go on."""
        described = {name: _described(part) for name, part in parts.items()}
        native = [name for name, part in parts.items() if not (fuse and part.is_fused)]
        reads = [*(["fused"] if len(native) < len(parts) else []), *native]
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self.spark.exists():
                raise ConflictError(f"{self.folder} is not a checkpoint of Millrace", "choose another") from None
            opened = Opened(labels, uuid.uuid4().hex[:8])
            about = {"format": FORMAT, "id": opened.id, "pipeline": pipeline, "labels": labels, "reads": reads}
            self._write({**about, "parts": described, "left": []})
            return opened
        except ValueError:
            raise CorruptError(f"{self._file} cannot be read", "choose another checkpoint") from None
        known = self._of_this_format(known, parts)
        self._check(known, pipeline, described)
        self._check_reads(known["reads"], reads)
        left = sorted({*known["left"], *(name for name in known["parts"] if name not in described)})
        self._write({**known, "parts": {**known["parts"], **described}, "left": left})
        return Opened(tuple(known["labels"]), known["id"])

    def is_of(self, parts: Mapping[str, Part]) -> bool:
        """Whether it was made by outputs just like these, and they can go on with it."""
        try:
            known = self._of_this_format(json.loads(self._file.read_text(encoding="utf-8")), parts)
        except (FileNotFoundError, ValueError, ConflictError):
            return False
        return bool(known["parts"] == {name: _described(part) for name, part in parts.items()})

    def lock(self) -> IO[bytes]:
        """Keep others out for as long as the file that this gives is open."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / "lock").open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise MachineError(f"another run uses the checkpoint {self.folder}", "stop it, or choose another") from None
        return file

    def _of_this_format(self, known: dict[str, Any], parts: Mapping[str, Part]) -> dict[str, Any]:
        """What was kept, as this format has it. Refuses what it cannot read, with what to do."""
        if known["format"] == FORMAT:
            return known
        # Before its first batch is committed a checkpoint holds no state; that of format 2 is like this one otherwise.
        if known["format"] == FORMAT - 1 and not self._has_committed():
            return {**known, "format": FORMAT}
        older = known["format"] < FORMAT
        again = any(name.startswith("view ") for name in parts)
        advice = (
            "run the Millrace that made it"
            if not older
            else "compute its views again from all that the log keeps: millrace replay"
            if again
            else "choose another with --checkpoint to start all over"
        )
        told = f"checkpoint {self.folder} is of format {known['format']}, and this Millrace reads format {FORMAT}"
        raise ConflictError(told, advice)

    def _has_committed(self) -> bool:
        commits = self.spark / "commits"
        return commits.is_dir() and any(not file.name.startswith(".") for file in commits.iterdir())

    @property
    def _file(self) -> Path:
        return self.folder / "millrace.json"

    def _write(self, content: dict[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, lambda path: path.write_text(json.dumps(content, indent=1), encoding="utf-8"))
        except OSError as error:
            raise MachineError(f"cannot write the checkpoint {self.folder}: {error.strerror}", NOTHING_LOST) from None

    def _check(self, known: dict[str, Any], pipeline: str, described: Mapping[str, dict[str, str]]) -> None:
        if known["pipeline"] != pipeline:
            raise ConflictError(
                f"checkpoint {self.folder} is of pipeline {known['pipeline']!r}, not of {pipeline!r}", "choose another"
            )
        for name, now in described.items():
            if name in known["left"]:
                raise ConflictError(
                    f"{name} left checkpoint {self.folder}, and has missed what came since",
                    "give it another name to start it from here, or choose another checkpoint to start all over",
                )
            before = known["parts"].get(name, now)
            changed = [what for what in sorted({*before, *now}) if before.get(what) != now.get(what)]
            if changed:
                what = changed[0]
                raise ConflictError(
                    f"{name} cannot go on from checkpoint {self.folder}: its {what} was\n    {before.get(what)}\n"
                    f"and is now\n    {now.get(what)}",
                    "compute it again from all that the log keeps: millrace replay; or give it another name to start "
                    "it from here, choose another checkpoint to start all over, or go back to what it was",
                )

    def _check_reads(self, before: list[str], now: list[str]) -> None:
        """Spark knows the sources of a stream by their number; each output that is not fused has its own."""
        if before != now:
            changed = sorted(set(before) ^ set(now)) or now
            raise ConflictError(
                f"checkpoint {self.folder} was made with other sources: {', '.join(changed)} came or went, and "
                "an output whose edge is native can do neither",
                "choose another checkpoint (millrace explain says why an edge is native)",
            )


def _described(part: Part) -> dict[str, str]:
    """What must stay, in words."""
    if not isinstance(part.of, Query):
        return {"stream": stream_as_text(part.of)}
    query = part.of
    return {
        "stream": _without_waiting(stream_as_text(query.stream)),
        "keys": ", ".join(query.keys),
        "window": str(query.windowing),
        "trigger": _NUMBERS.sub("n", str(query.trigger)),
        "mode": str(query.mode),
        "aggregates": ", ".join(f"{computed.name}={computed.aggregate}" for computed in query.computed),
    }


def _without_waiting(stream: str) -> str:
    """How long an event time waits may change; which column it is may not."""
    return re.sub(r"^(\s*event time\s+[^,\n]+).*$", r"\1", stream, flags=re.MULTILINE)
