"""A checkpoint's record of its pipeline, and the changes of a pipeline that it accepts.

State and offsets are valid only for the computation that wrote them. These changes keep a checkpoint valid: views and
sinks that are removed, or added with the user's consent to start them from the current position; columns of a source
that the view or sink does not read; the numbers in a trigger; how long to wait for late events. Every other change
needs a new checkpoint.
"""

import fcntl
import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from millrace.eventlog.durable import write_whole
from millrace.eventlog.sealed import sealed, unsealed
from millrace.model.errors import AGAIN, FILE, NOTHING_LOST, ConflictError, CorruptError, MachineError, gone
from millrace.model.explain import flow_as_text
from millrace.plan.fingerprint import sources_in
from millrace.plan.plan import OutputKind, Plan, Stage
from millrace.spark.clock import wall_clock
from millrace.spark.handed import first_batch, offsets_before
from millrace.spark.history import FORMAT, VIEWS, History, check_format, history_of
from millrace.spark.logged import discard_unusable

FROM_HERE = f"start it with the records that come next: millrace run {FILE} --from-here"
"""The advice for an output that a checkpoint does not know."""
FUSED = "fused"
"""The name under which the sources of all fused outputs are journaled."""


def journal_of(folder: Path, journal: str, source: str, suffix: str) -> Path:
    """The journal of a source in a checkpoint; `journal` is FUSED or the id of the native stage that reads it."""
    name = hashlib.sha256(f"{journal} {source}".encode()).hexdigest()[:16]
    return folder / "sources" / f"{name}.{suffix}"


@dataclass(frozen=True, slots=True)
class Opened:
    """The shard labels and the id of an open checkpoint."""

    labels: tuple[int, ...]
    """The labels of the shards."""
    id: str
    """Unique to this checkpoint, because each checkpoint numbers its batches from 0."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with everything that a pipeline needs to resume."""

    folder: Path

    @property
    def file(self) -> Path:
        """Its record of the pipeline."""
        return self.folder / "millrace.json"

    @property
    def spark(self) -> Path:
        """Spark's own part: offsets, commits, state."""
        return self.folder / "spark"

    @property
    def first(self) -> int:
        """The number of the batch that is Spark's batch 0; not 0 after the state was handed over to other shards."""
        return first_batch(self.folder)

    def offsets(self, batch: int) -> Path:
        """The file in which Spark logs the offsets of a batch."""
        return offsets_before(self.folder, batch) or self.spark / "offsets" / str(batch - self.first)

    def commits(self, batch: int) -> Path:
        """The file that Spark writes when a batch is done."""
        return self.spark / "commits" / str(batch - self.first)

    @property
    def begun(self) -> Path:
        """The file with the last batch whose write was started, for at-most-once."""
        return self.folder / "begun"

    @property
    def timers(self) -> Path:
        """The file with the next instant at which a trigger is due, for the process that plans micro-batches."""
        return self.folder / "timers"

    @property
    def watermarks(self) -> Path:
        """The file with the watermarks after the last batch, for the process that plans micro-batches."""
        return self.folder / "watermarks"

    def open(self, plan: Plan, labels: tuple[int, ...], generation: int = 1, from_here: bool = False) -> "Opened":
        """Resume from this checkpoint, or create it for a generation. Refuses a plan that cannot resume from it.

        An output that would miss records is refused too, unless it may start `from_here`.
        Files that a power cut left damaged, and that Spark writes again, are removed.
        """
        about = _about(plan)
        fingerprint = about["stages"]
        try:
            known = unsealed(self.file.read_bytes())
        except FileNotFoundError:
            if self.spark.exists():
                raise CorruptError(f"{self.file} of the checkpoint is missing", AGAIN) from None
            opened = Opened(labels, uuid.uuid4().hex[:8])
            made = {"format": FORMAT, "id": opened.id, "generation": generation, "labels": labels}
            self._write({**made, **about, "outputs": dict.fromkeys(outputs_of(plan), 0), "left": [], "began": {}})
            return opened
        except ValueError:
            raise CorruptError(f"{self.file} of the checkpoint is damaged", AGAIN) from None
        check_format(known, self.folder)
        new = self._check(known, about, from_here)
        left = sorted({*known["left"], *(id for id in known["stages"] if id not in fingerprint)})
        kept = {name: {**known[name], **about[name]} for name in ("stages", "words")}
        outputs = {**dict.fromkeys(outputs_of(plan), self._next_batch()), **known["outputs"]}
        began = {**dict.fromkeys(new, wall_clock()), **known.get("began", {})}
        self._write({**known, **kept, "outputs": outputs, "left": left, "began": began})
        discard_unusable(self.spark)
        self._relocate()
        return Opened(tuple(known["labels"]), known["id"])

    def relabel(self, labels: tuple[int, ...]) -> None:
        """Record other shards, to which the state was handed over."""
        self._write({**unsealed(self.file.read_bytes()), "labels": labels})

    def check(self, plan: Plan, from_here: bool = False, is_typed: bool = True) -> None:
        """Refuse what `open` refuses, if there is a checkpoint, but no damaged files.

        Of a plan that is not typed yet, only differences in what the user wrote are refused.
        """
        try:
            known = unsealed(self.file.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        check_format(known, self.folder)
        self._check(known, _about(plan), from_here, is_typed)

    def began(self) -> dict[str, int]:
        """When the outputs that missed earlier records were added, by id, in microseconds since 1970."""
        try:
            return dict(unsealed(self.file.read_bytes()).get("began", {}))
        except (FileNotFoundError, ValueError):
            return {}

    def _next_batch(self) -> int:
        """The batch that is run next."""
        history = self.history()
        return 0 if history is None else history.done + 1

    def discard(self) -> None:
        """Remove everything but Spark's output, so that a run begins anew. Nothing was delivered from it."""
        with self.lock():
            for path in self.folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name not in ("lock", "spark.log"):
                    path.unlink()

    def history(self) -> History | None:
        """How far it has come; None if there is no checkpoint. Raises CorruptError if a file of it is damaged."""
        return history_of(self.folder, self.spark)

    def _relocate(self) -> None:
        """Correct the absolute paths that Spark keeps in a checkpoint, in case the folder was moved or copied."""
        for file in [path for path in self.spark.glob("state/*/_metadata/v2/*") if path.name.isdecimal()]:
            *head, line = file.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
            with suppress(ValueError, KeyError, TypeError):  # a damaged file is one that Spark does not need
                about = json.loads(line)
                schemas = [f"file:{path}" for path in state_schemas(file.parents[2], about)]
                if schemas == [path for store in about["stateStoreInfo"] for path in store["stateSchemaFilePaths"]]:
                    continue
                for store in about["stateStoreInfo"]:
                    many = len(store["stateSchemaFilePaths"])
                    store["stateSchemaFilePaths"], schemas = schemas[:many], schemas[many:]
                text = "\n".join([*head, json.dumps(about, separators=(",", ":"))])
                (file.parent / f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the file before
                write_whole(file, lambda path, text=text: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]

    def is_of(self, plan: Plan, shards: int | None = None) -> bool:
        """Whether a plan with the same fingerprint, and with so many shards, if given, can resume from it."""
        try:
            known = unsealed(self.file.read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        has_shards = shards is None or shards == len(known.get("labels", ()))
        return has_shards and known.get("format") == FORMAT and known.get("stages") == plan.fingerprint()

    def check_there(self) -> None:
        """Raise MachineError if the checkpoint has gone away since it was opened.

        If its file system is not mounted, Spark would go on in a new folder of the same name.
        """
        if not self.file.exists():
            raise gone(f"checkpoint {self.folder}")

    def lock(self) -> IO[bytes]:
        """Lock out other runs for as long as the returned file is open."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / "lock").open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise in_use(self.folder) from None
        return file

    def _write(self, content: dict[str, Any]) -> None:
        text = json.dumps(sealed(content), indent=1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, lambda path: path.write_text(text, encoding="utf-8"))
        except OSError as error:
            raise MachineError(f"cannot write the checkpoint {self.folder}: {error.strerror}", NOTHING_LOST) from None

    def _check(
        self, known: dict[str, Any], now: Mapping[str, Any], from_here: bool, is_typed: bool = True
    ) -> list[str]:
        """Refuse a plan that cannot resume; returns the stages that are new and have missed records."""
        if known["pipeline"] != now["pipeline"]:
            raise ConflictError(
                f"checkpoint {self.folder} is of pipeline {known['pipeline']!r}, not of {now['pipeline']!r}",
                "give this pipeline a checkpoint of its own: --checkpoint FOLDER",
            )
        for stage, fingerprint in now["stages"].items():
            if stage in known["left"]:
                raise ConflictError(
                    f"{stage} was removed from checkpoint {self.folder}, and has missed the records since then",
                    f"{AGAIN}; or give it another name, and {FROM_HERE}",
                )
            before = known["stages"].get(stage, fingerprint)
            changed = [what for what in sorted({*before, *fingerprint}) if before.get(what) != fingerprint.get(what)]
            old, written = known["words"].get(stage, {}), now["words"][stage]
            if not is_typed:  # a type may be the only difference; Spark is asked for it later
                changed = [what for what in changed if old.get(what) != written.get(what)]
            if changed:
                raise self._changed(stage, changed[0], old, written)
        if is_typed:
            self._check_spark_sources(known["spark_sources"], now["spark_sources"])
        if is_typed and known.get("levels", 1) != now["levels"]:
            raise ConflictError(
                f"checkpoint {self.folder} was made with another number of stages one after the other: "
                f"{known.get('levels', 1)}, and it is now {now['levels']}",
                AGAIN,
            )
        read = {source for fingerprint in known["stages"].values() for source in sources_in(fingerprint)}
        new = [id for id, each in now["stages"].items() if id not in known["stages"] and read & sources_in(each)]
        if not new or not self._next_batch():
            return []
        if not from_here:
            raise ConflictError(
                f"{new[0]} is new, and checkpoint {self.folder} has already read records of its sources",
                f"{AGAIN}; or {FROM_HERE}",
            )
        return new

    def _changed(self, stage: str, what: str, before: Mapping[str, str], now: Mapping[str, str]) -> ConflictError:
        old, new = before.get(what), now.get(what)
        difference = f"its {what} was\n    {old}\nand is now\n    {new}"
        if old == new:
            difference = (
                f"the code of a function in its {what} has changed; give the function a version= if it still computes "
                f"the same\n    {new}"
            )
        return ConflictError(
            f"{stage} cannot go on from checkpoint {self.folder}: {difference}",
            f"{AGAIN}; or go back to what it was; or give it another name, and {FROM_HERE}",
        )

    def _check_spark_sources(self, before: list[str], now: list[str]) -> None:
        """Refuse changed sources: Spark identifies them by number, and each native stage has its own."""
        if before != now:
            changed = sorted(set(before) ^ set(now)) or now
            raise ConflictError(
                f"checkpoint {self.folder} was made with other sources: {', '.join(changed)} were added or removed, "
                "which a native edge does not support",
                f"{AGAIN} (millrace explain says why an edge is native)",
            )


def _about(plan: Plan) -> dict[str, Any]:
    """What a checkpoint stores of a plan, to compare it with the plan of a later run."""
    return {
        "pipeline": plan.pipeline,
        "spark_sources": _spark_sources(plan),
        "levels": plan.levels,
        "stages": plan.fingerprint(),
        "words": {stage.id: _words(stage) for stage in plan.stages},
    }


def state_schemas(operator: Path, about: Mapping[str, Any]) -> list[Path]:
    """The files of state schemas that Spark's metadata of a stateful operator names, in the folder of the operator."""
    named = [Path(path) for store in about["stateStoreInfo"] for path in store["stateSchemaFilePaths"]]
    return [operator / "_stateSchema" / path.parent.name / path.name for path in named]


def in_use(folder: Path) -> MachineError:
    """The error for a checkpoint that another run uses."""
    return MachineError(f"another run uses the checkpoint {folder}", "stop that run first")


def outputs_of(plan: Plan) -> list[str]:
    """The outputs whose commits are recorded: all views as one, and each sink."""
    views = [VIEWS] if any(output.kind is OutputKind.VIEW for output in plan.outputs) else []
    return [*views, *(output.id for output in plan.outputs if output.kind is OutputKind.SINK)]


def _spark_sources(plan: Plan) -> list[str]:
    """The Spark sources of a plan in order: one for all fused stages, then those of each native stage."""
    return [*([FUSED] if plan.fused else []), *(plan.stages[number].id for number in plan.native)]


def _words(stage: Stage) -> dict[str, str]:
    """The aspects of a fingerprint as text, to name a difference in messages; no decision depends on them."""
    query = stage.query
    if query is None:
        return {"stream": flow_as_text(stage.stream)}
    return {
        "stream": flow_as_text(query.stream),
        "keys": ", ".join(query.keys),
        "window": str(query.windowing),
        "trigger": str(query.when),
        "mode": str(query.mode),
        "aggregates": ", ".join(f"{computed.name}={computed.aggregate}" for computed in query.computed),
    }
