"""Dead letters of real-time mode: what Spark has set aside, judged by Millrace's own decoder.

So a record has the same reason as in micro-batches. A record that Millrace can read, but that Spark might read in
another way, ends the run: an answer without it would be wrong.
"""

import json
import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.edge.decode import JsonDecoder
from millrace.formats.texts import SPACES, as_texts
from millrace.letters.box import LetterBox
from millrace.letters.letter import LetterSource, Rejected
from millrace.model.errors import PipelineError
from millrace.model.stream import Source, event_times
from millrace.plan.plan import Plan
from millrace.running.realtime_checkpoint import IN_MICRO_BATCHES
from millrace.spark.realtime import UNTIMELY
from millrace.spark.sure_json import UNSURE

if TYPE_CHECKING:
    from confluent_kafka import Message


class Asides:
    """Makes dead letters of what the queries of a pipeline have set aside."""

    def __init__(self, box: LetterBox, plan: Plan) -> None:
        """Open nothing yet."""
        self._box, self._plan = box, plan
        self._topics: dict[str, Source] = {
            topic: planned.source for planned in plan.sources for topic in planned.source.name.split(",")
        }
        self._decoders: dict[str, JsonDecoder] = {}
        self._is_served = False

    def keep(self, messages: "Sequence[Message]", checkpoint: str, batch: int) -> int:
        """Store records as dead letters; returns how many are listed for the first time in this commit.

        Idempotent: a record that was set aside before stays one letter.
        """
        rejected = [self._rejected(json.loads(message.value() or b"{}")) for message in messages]
        many = self._box.put(rejected, self._sources(), checkpoint, batch, time.time_ns() // 1000)
        if not self._is_served:
            self._box.serve(checkpoint, self._sources(), lambda *_: False)
            self._is_served = True
        return many

    def _rejected(self, about: Mapping[str, Any]) -> Rejected:
        topic, _, partition = str(about["origin"]).rpartition("/")
        source, given = self._topics[topic], about.get("value")
        value = None if given is None else b64decode(given)
        text = _text(value)
        where = (source.name, about["origin"], int(partition), int(about["offset"]))
        shown = None if text is None else text.strip(SPACES)
        if about["bad"] == UNSURE:
            problem, reason, hint = self._misfit(source, value, str(about["origin"]), int(about["offset"]))
            return Rejected(*where, None, problem, reason, hint, shown)
        if about["bad"] == UNTIMELY:
            stage = self._plan.stage(about["output"])
            node = event_times(stage.stream)[int(about["node"])]
            why = node.untimely((about.get("time"),), about["logged"])
            assert why is not None, "Spark and the model agree on which times are too far ahead"
            return Rejected(*where, about["output"], why.problem, why.reason, why.hint, shown)
        return Rejected(*where, about["output"], about["bad"], about["bad"], None, shown)

    def _misfit(self, source: Source, value: bytes | None, origin: str, offset: int) -> tuple[str, str, str | None]:
        decoder = self._decoders.get(source.name)
        if decoder is None:
            decoder = self._decoders[source.name] = JsonDecoder(source.value_schema, strict=source.is_strict)
        _, misfits = decoder.decode(as_texts(pa.array([value], pa.large_binary())))
        if not misfits:
            raise PipelineError(
                f"the record at offset {offset} of {origin} is one that micro-batches read, but Spark may read in "
                f"another way: {_text(value)!r:.120}",
                "real-time mode needs plain JSON: times such as 2026-01-01T12:00:00Z, and texts in quotes; to go on, "
                f"{IN_MICRO_BATCHES}",
                source.place,
            )
        return misfits[0].problem, misfits[0].reason, misfits[0].hint

    def _sources(self) -> dict[str, LetterSource]:
        found = {}
        for planned in self._plan.sources:
            source = planned.source
            outputs = tuple(stage.id for stage in self._plan.stages if planned.id in stage.inputs)
            found[source.name] = LetterSource(
                source.name, source.kind, source.value_schema, outputs, "", source.is_strict
            )
        return found


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
