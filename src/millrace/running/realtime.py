"""A pipeline in real-time mode: its Spark queries, the applier of their changelogs, and what restarts them.

Spark does not retry a task of a real-time query: any failure ends the query. It is started again from its checkpoint,
and repeats what came since. Views are exact nevertheless (`running.applier`).
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from millrace.broker.jars import CONNECTOR, fetched, given
from millrace.letters.box import box_of
from millrace.model.connectors import Commit
from millrace.model.duration import SECOND, format_duration, parse_duration
from millrace.model.errors import ConflictError, MachineError, MillraceError, PipelineError
from millrace.model.kafka import SERVERS
from millrace.model.kafka_sink import KafkaSink
from millrace.model.pipeline import Pipeline
from millrace.model.stream import Source
from millrace.plan.compile import PlanSettings, compile, view_id
from millrace.plan.plan import Plan
from millrace.plan.realtime import check_real_time
from millrace.running.applier import AppliedView, Applier, digest_of
from millrace.running.handle import PATIENCE
from millrace.running.lease import Lease
from millrace.running.preflight import serving
from millrace.running.realtime_checkpoint import IN_MICRO_BATCHES, RealTimeCheckpoint
from millrace.running.realtime_telling import Teller
from millrace.running.settings import Locations, StreamOptions
from millrace.running.status import is_locked
from millrace.running.streaming import Listener
from millrace.running.views import KeptViews
from millrace.running.waiting import LONGEST, Waiting, backoff, may_pass
from millrace.sources.changelog import Changelogs
from millrace.sources.kafka import KafkaFeed
from millrace.sources.kafka_cluster import opened, remember
from millrace.spark.checkpoint import Checkpoint, in_use
from millrace.spark.java import java_in
from millrace.views.shape import shape_of
from millrace.views.store import NoViewsError, Store, open_store

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark.realtime import RealTimeOutput

CHECKPOINT_EVERY = "2m"
"""How often Spark makes a checkpoint, unless `interval` says otherwise. Its output pauses meanwhile."""
LEAST = 5 * SECOND
"""The least time between two checkpoints that Spark accepts."""
_LOST = ("KAFKA_DATA_LOSS", "Some data may have been lost")


@dataclass(frozen=True, slots=True)
class Context:
    """What Spark must be started with."""

    master: str
    config: Mapping[str, str]


def check_run(pipeline: Pipeline, how: StreamOptions) -> None:
    """Refuse what real-time mode cannot run, before anything starts."""
    check_real_time(pipeline, how.guarantee)
    every = CHECKPOINT_EVERY if how.interval is None else how.interval
    if parse_duration(every, "interval") < LEAST:
        raise PipelineError(
            f"interval is {every}, and real-time mode makes checkpoints every 5s at most", "pass 5s or more"
        )


def context_for(pipeline: Pipeline, home: Locations, how: StreamOptions, jars: Path | None) -> Context:
    """The Spark that a pipeline needs: its jars, and a slot for each partition of each stage.

    Real-time tasks run side by side, so Spark refuses a query for which it has too few slots.
    """
    from millrace.spark.realtime import CONTEXT

    files = fetched(java_in(os.environ), of=CONNECTOR) if jars is None else given(jars, CONNECTOR)
    config = {"spark.jars": ",".join(map(str, files)), **CONTEXT}
    if not home.master.startswith("local"):
        return Context(home.master, config)
    plan = compile(pipeline)
    partitions = {each.id: _partitions(each.source) for each in plan.sources}
    shards = how.shards or _shards()
    slots = 0
    for stage in plan.stages:
        read = sum(partitions[id] for id in stage.inputs)
        slots += 2 * read + (shards if stage.query is not None else 0)
    return Context(f"local[{slots + 2}]", config)


def _partitions(source: Source) -> int:
    return sum(topic.partitions for topic in opened(remember(source)).topics().values())


def _shards() -> int:
    return max(1, min(os.cpu_count() or 1, 8))


class ViewCommits:
    """Commits to a store. The first one creates the views, so that a run that fails before leaves none."""

    def __init__(self, store: Store, pipeline: Pipeline, generation: int) -> None:
        """Refuse views that exist with another shape."""
        self._store, self._views = store, KeptViews(store, pipeline, generation)

    def commit(
        self, commit: Commit, answers: Mapping[str, pa.Table], once: bool, generation: int | None, newer: bool
    ) -> object:
        """Store a commit with its answers."""
        self._views.open()
        return self._store.commit(commit, answers, once, generation, newer)


class RealTimeStream:
    """The queries and the applier of a pipeline, which are started again after trouble."""

    def __init__(
        self,
        pipeline: Pipeline,
        home: Locations,
        how: StreamOptions,
        lease: Lease,
        on_batch: Listener,
        on_wait: Callable[[Waiting | None], None],
    ) -> None:
        """Start Spark, if it does not run, the queries and the applier. Trouble until then is raised.

        `on_batch` is called about once a second, with what was applied since.
        """
        self._pipeline, self._home, self._how, self._lease = pipeline, home, how, lease
        self._on_wait = on_wait
        self._patience = parse_duration(how.retry, "retry") / SECOND
        self._held = ExitStack()
        self._over = threading.Event()
        self._queries: list[StreamingQuery] = []
        self._applier: Applier | None = None
        self._folder = home.checkpoint
        self._teller = Teller(pipeline, on_batch)
        self._trouble: tuple[float, float] | None = None
        self._tries = 0
        self._due = self._started = 0.0
        try:
            self._start()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> "RealTimeStream":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._over.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait at most about `timeout` seconds; whether it was stopped. Raises the error that ended it for good."""
        if self._over.wait(min(timeout, 0.5)):
            return True
        self._teller.tell_in_time()
        if self._applier is None:
            if time.monotonic() >= self._due:
                self._try_again()
            return False
        error = self._applier.error or self._failure()
        if error is not None:
            self._wait_out(error)
        return False

    def stop(self, patience: float = PATIENCE) -> None:
        """End the queries, then the applier. May be called from any thread."""
        self._over.set()
        self._end()

    def _end(self) -> None:
        queries, self._queries = self._queries, []
        for query in queries:
            with suppress(Exception):
                query.stop()
        applier, self._applier = self._applier, None
        if applier is not None:
            applier.stop()
        self._teller.tell()
        self._held.close()

    def _start(self) -> None:
        from millrace.running.realtime_letters import Asides
        from millrace.spark import realtime
        from millrace.spark.failure import plain_error

        store = self._held.enter_context(closing(open_store(self._home.store)))
        generation = serving(store, self._pipeline.name)
        self._folder = folder = self._home.generation(generation)
        checkpoint = RealTimeCheckpoint(folder)
        if is_locked(folder):
            raise in_use(folder)
        self._held.enter_context(Checkpoint(folder).lock())
        plan = compile(self._pipeline, PlanSettings(fuse=False))
        opened_ = checkpoint.open(plan, self._how.shards or _shards())
        last = checkpoint.last()
        if self._pipeline.views:
            with suppress(NoViewsError):
                last = store.last_commit(self._pipeline.name, generation)
            if last is not None and last.checkpoint != opened_.id:
                raise ConflictError(
                    f"the views of {self._pipeline.name} were written from another checkpoint than {folder}",
                    f"start with a store of its own: --store URL; or {IN_MICRO_BATCHES}",
                )
            self._held.enter_context(store.claim(self._pipeline.name, generation))
        starts = self._starts(plan, checkpoint)
        outputs = self._outputs(plan, opened_.id)
        partitions = {each.topic: opened_.shards for each in outputs if each.stage.query is not None}
        partitions |= {outputs[0].aside: 1}
        views = {
            each.topic: AppliedView(name, each.stage.query, shape_of(name, each.stage.query))
            for each in outputs
            for name in self._pipeline.views
            if each.stage.query is not None and each.stage.id == view_id(name)
        }
        changelogs = Changelogs(outputs[0].aside_servers)
        self._held.callback(changelogs.close)
        changelogs.make(partitions)
        if last is None:
            last = Commit(self._pipeline.name, opened_.id, -1, digest_of(partitions, {}))
        asides = Asides(box_of(self._home.checkpoint.parent, self._pipeline.name), plan)
        self._teller.into(folder)
        commits = ViewCommits(store, self._pipeline, generation) if self._pipeline.views else checkpoint
        applier = Applier(
            changelogs, views, partitions, asides, commits, last, generation, self._teller.applied
        )  # fmt: skip
        every = parse_duration(self._how.interval or CHECKPOINT_EVERY, "interval") // 1000
        own = realtime.session_for(self._lease.session(folder / "spark.log"), opened_.shards)
        try:
            for output in outputs:
                self._queries += realtime.start(own, plan, output, starts, folder, f"{every} milliseconds", uuid4().hex)
        except Exception as error:
            raise plain_error(error) from error
        applier.start()
        self._applier, self._started = applier, time.monotonic()

    def _starts(self, plan: Plan, checkpoint: RealTimeCheckpoint) -> dict[str, str]:
        """The offsets at which each source began, as Spark reads them. Refuses a topic that was made again."""
        found = {}
        for planned in plan.sources:
            feed = KafkaFeed(planned.source, checkpoint.journal(planned.source.name), 1.0, time.monotonic)
            began = feed.start()
            feed.splits(began, began)
            offsets = {topic: {str(n): at for n, at in enumerate(own["at"])} for topic, own in began.items()}
            found[planned.source.name] = json.dumps(offsets)
        return found

    def _outputs(self, plan: Plan, id: str) -> list["RealTimeOutput"]:
        from millrace.spark.realtime import RealTimeOutput

        made = []
        first = dict(plan.sources[0].source.options)[SERVERS]
        aside = f"millrace.{plan.pipeline}.{id}.aside"
        for output in plan.outputs:
            stage = plan.stage(output.stage)
            if isinstance(output.sink, KafkaSink):
                key = output.sink.key[0] if output.sink.key else None
                made.append(RealTimeOutput(stage, output.sink.servers, output.sink.topic, first, aside, key))
            else:
                topic = f"millrace.{plan.pipeline}.{id}.{output.name}"
                made.append(RealTimeOutput(stage, first, topic, first, aside))
        return made

    def _failure(self) -> Exception | None:
        """The error for a query that has ended."""
        for query in self._queries:
            if not query.isActive:
                text = str(query.exception() or "it has ended")
                line = next((line for line in text.splitlines() if line.strip()), text)
                if any(each in text for each in _LOST):
                    return ConflictError(
                        f"records of {query.name} are gone from Kafka: {line:.200}",
                        "give the topic a longer retention, and " + IN_MICRO_BATCHES,
                    )
                return MachineError(
                    f"the query {query.name} has ended: {line:.300}", f"see {self._folder / 'spark.log'}"
                )
        return None

    def _try_again(self) -> None:
        try:
            self._start()
        except Exception as error:
            self._wait_out(error)
        else:
            self._teller.waits(None)
            self._on_wait(None)

    def _wait_out(self, error: Exception) -> None:
        """Plan the next start after an error. Raises the error if it cannot pass, or has not for too long."""
        ran = time.monotonic() - self._started if self._applier is not None else 0.0
        self._end()
        if self._over.is_set() or not may_pass(error):
            raise error
        now = time.monotonic()
        if self._trouble is None or ran > LONGEST:
            self._trouble, self._tries = (now, time.time()), 0
        began, since = self._trouble
        seconds = backoff(self._tries, now - began, self._patience)
        if seconds is None:
            if not self._patience or not isinstance(error, MillraceError):
                raise error
            tried = format_duration(round(self._patience * SECOND))
            raise MachineError(f"{error.problem}, and retries for {tried} did not help", str(error.advice))
        self._tries += 1
        self._due = now + seconds
        assert isinstance(error, MachineError)
        waiting = Waiting(error.problem, str(error.advice), since, time.time() + seconds)
        self._teller.waits(waiting)
        self._on_wait(waiting)
