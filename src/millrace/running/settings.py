"""The settings of a run; `millrace run` and `Pipeline.run` share their names and defaults."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from millrace.eventlog.topics import DEFAULT_LOG
from millrace.model.duration import Duration
from millrace.model.errors import FILE, MillraceError, PipelineError, shown, unknown

MODES = ("micro-batch", "real-time", "batch")
LAYERS = ("speed", "batch")
_GUARANTEE = "exactly-once"
_LATENCY = "1s"
_RETRY = "10m"
_MASTER = "local[*,4]"


@dataclass(frozen=True, slots=True)
class Locations:
    """The log, store and checkpoint of a pipeline, and its Spark master."""

    log: Path
    store: str
    checkpoint: Path
    """The checkpoint of the first generation; replays create theirs beside it."""
    master: str = _MASTER
    conf: tuple[tuple[str, str], ...] = ()
    """Settings of Spark, by name."""
    shared: tuple[Path, ...] = ()
    """Folders that the user says all machines of the cluster have at the same path."""
    arguments: str = FILE
    """The arguments of a command about the pipeline: its file, and the options that name these locations."""

    def command(self, name: str) -> str:
        """A command about the pipeline, to be typed as it is."""
        return f"millrace {name} {self.arguments}"

    @contextmanager
    def named(self) -> Iterator[None]:
        """Fill in these arguments in the advice of errors from other packages, which know the pipeline as FILE."""
        try:
            yield
        except MillraceError as error:
            raise error.naming(self.arguments) from error.__cause__

    @property
    def boundary(self) -> Path:
        """The file with the boundary up to which windows belong to the batch layer."""
        return self.checkpoint.with_name(f"{self.checkpoint.name}.boundary")

    def generation(self, number: int) -> Path:
        """The checkpoint of a generation of its views."""
        return self.checkpoint if number == 1 else self.checkpoint.with_name(f"{self.checkpoint.name}@{number}")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream runs; the options of `millrace.spark.stream.start`."""

    guarantee: str = _GUARANTEE
    interval: Duration | None = None
    until_caught_up: bool = False
    shards: int | None = None
    latency: Duration = _LATENCY
    retry: Duration = "0s"
    """For how long trouble of the machine is waited out."""
    from_here: bool = False
    """Whether new outputs start with the records that come next."""
    rescales: bool = False
    """Whether the checkpoint, a copy of a savepoint, may get another number of shards."""
    is_real_time: bool = False
    """Whether it runs in real-time mode."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, checked against each other.

    A setting that the chosen mode or layer does not use is refused unless it has its default value, so that no setting
    is silently ignored.
    """

    mode: str = "micro-batch"
    layer: str = "speed"
    checkpoint: str | Path | None = None
    """A folder; `.millrace/NAME` if none is given."""
    log: str | Path = DEFAULT_LOG
    store: str | Path = ".millrace/views.db"
    guarantee: str = _GUARANTEE
    interval: Duration | None = None
    latency: Duration = _LATENCY
    until_caught_up: bool = False
    retry: Duration | None = None
    """For how long a stream waits out trouble of the machine; by default 10 minutes, or not if `until_caught_up`."""
    from_savepoint: str | Path | None = None
    from_here: bool = False
    """Whether a view or sink that is new to the checkpoint starts with the records that come next."""
    shards: int | None = None
    master: str = _MASTER
    conf: Mapping[str, str] | None = None
    """Settings of Spark, such as spark.executor.memory."""
    shared: Sequence[str | Path] | None = None
    """Folders that all machines of the cluster have at the same path."""
    jars: str | Path | None = None
    """The folder with the jars of Spark's Kafka connector, for real-time mode; by default they are fetched."""

    def __post_init__(self) -> None:
        """Refuse values and combinations that no run accepts."""
        if self.mode not in MODES:
            raise PipelineError(unknown("mode", self.mode, MODES))
        if self.layer not in LAYERS:
            raise PipelineError(unknown("layer", self.layer, LAYERS))
        if self.shards is not None and (
            isinstance(self.shards, bool) or not isinstance(self.shards, int) or self.shards < 1
        ):
            raise PipelineError(f"shards is a whole number of at least 1, not {shown(self.shards)}")
        for name, value in (self.conf or {}).items():
            if not isinstance(name, str) or not name.startswith("spark.") or not isinstance(value, str):
                raise PipelineError(
                    f"conf has settings of Spark as text, such as spark.executor.memory, not {shown(name)}"
                )
        if self.until_caught_up and self.interval is not None:
            raise PipelineError("until_caught_up reads all records as fast as it can; leave the interval out")
        if self.mode == "real-time":
            self._check_real_time()
        elif self.jars is not None:
            raise PipelineError(f"jars has no effect with mode {self.mode}; leave it out")
        once = "layer" if self.layer == "batch" else "mode" if self.mode == "batch" else None
        if once is None:
            return
        unused = {"guarantee", "interval", "latency", "until_caught_up", "retry", "from_savepoint", "from_here"}
        if once == "layer":
            unused |= {"mode", "shards"}
        for each in fields(self):
            if each.name in unused and getattr(self, each.name) != each.default:
                raise PipelineError(f"{each.name} has no effect with {once} batch; leave it out")

    def _check_real_time(self) -> None:
        """Refuse settings that real-time mode does not know."""
        if self.until_caught_up:
            advice = "use --mode micro-batch or --mode batch"
            raise PipelineError(
                "until_caught_up does not run in real-time mode, which never has read everything", advice
            )
        if self.layer != "speed":
            raise PipelineError("layer batch does not run in real-time mode", "leave --mode out")
        for name in ("latency", "from_savepoint", "from_here"):
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise PipelineError(f"{name} has no effect with mode real-time; leave it out")
        if self.guarantee == "at-most-once":
            raise PipelineError("at-most-once does not run in real-time mode", "use --mode micro-batch")

    def home(self, pipeline: str, called: Sequence[str] = (FILE,)) -> Locations:
        """The locations of a pipeline with this name; `called` are the arguments that name it in a command.

        Refuses a checkpoint where there is a file.
        """
        checkpoint = Path(".millrace", pipeline) if self.checkpoint is None else Path(self.checkpoint)
        for folder in (checkpoint, *checkpoint.parents):
            if folder.exists() and not folder.is_dir():
                raise PipelineError(f"checkpoint {checkpoint}: {folder} is not a folder", "choose another folder")
        arguments = list(called)
        for each in fields(self):
            if each.name in ("checkpoint", "log", "store") and getattr(self, each.name) != each.default:
                arguments += [f"--{each.name}", str(getattr(self, each.name))]
        conf = tuple(sorted((self.conf or {}).items()))
        shared = tuple(Path(each).absolute() for each in self.shared or ())
        return Locations(Path(self.log), str(self.store), checkpoint, self.master, conf, shared, shlex.join(arguments))

    @property
    def how(self) -> StreamOptions:
        """The options of the stream."""
        retry = self.retry if self.retry is not None else "0s" if self.until_caught_up else _RETRY
        return StreamOptions(
            self.guarantee, self.interval, self.until_caught_up, self.shards, self.latency, retry, self.from_here,
            rescales=self.from_savepoint is not None, is_real_time=self.mode == "real-time",
        )  # fmt: skip
