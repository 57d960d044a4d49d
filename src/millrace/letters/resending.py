"""Sends dead letters again: their values are appended to their topics, each exactly once.

The letters of an append are noted with its sequence number before it is made, and marked when it is done. An append
that a crash interrupted is repeated with the same number, which the log recognises.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from millrace.eventlog.sequences import PIPELINES
from millrace.eventlog.topics import Log, now
from millrace.letters.box import SUFFIX, LetterBox
from millrace.letters.fixing import misfits
from millrace.letters.letter import Chosen, Letter, State
from millrace.model.errors import NotFoundError, PipelineError

HEADER = "millrace-dead-letter"
"""The header of a record that was sent again: the place of the record that was set aside."""
_TOGETHER = 10_000
"""How many letters an append has, and how many offsets are read at a time."""


class Topics(Protocol):
    """The topics of Kafka that a pipeline reads."""

    def check(self, letter: Letter) -> None:
        """Refuse a letter that cannot be sent."""

    def prepare(self, letter: Letter) -> None:
        """Prepare to send letters to the topic of this one."""

    def append(self, letters: Sequence[Letter], sequence: int) -> None:
        """Send letters of one topic, unless they were sent under this number."""


def resend(
    box: LetterBox, log: Log | None, chosen: Chosen, unchanged: bool = False, anyway: bool = False,
    kafka: Topics | None = None,
) -> int:  # fmt: skip
    """Append the fixed ones of the chosen letters to their topics; returns how many records that were.

    With `unchanged`, also those that were not fixed, as they are. Nothing is sent if a letter is not from a topic, if
    its value does not fit the schema, or, unless `anyway`, if an output would read it twice. Letters from Kafka need
    `kafka`, the others the log.
    """
    sent = 0
    for sequence, letters in box.unfinished().items():
        _check_places(box, letters, log, kafka)
        sent += _append(box, log, letters, sequence, now(), kafka)
    letters = [letter for letter in box.letters(chosen) if letter.state is not State.RESENT]
    if not unchanged:
        waiting = len(letters)
        letters = [letter for letter in letters if letter.state is State.FIXED]
        if waiting and not letters and not sent:
            raise PipelineError("no dead letter is fixed", "fix some first, or send them as they are: --unchanged")
    _check(box, letters, anyway)
    _check_places(box, letters, log, kafka)
    for topic in sorted({_topic(letter) for letter in letters}):
        own = [letter for letter in letters if _topic(letter) == topic]
        # Several outputs may have set the same record aside.
        records = list(
            {(letter.uid, letter.rejected.origin, letter.rejected.offset): letter for letter in own}.values()
        )
        for start in range(0, len(records), _TOGETHER):
            part = records[start : start + _TOGETHER]
            least = 0
            if _is_kafka(box, part):
                assert kafka is not None
                kafka.prepare(part[0])
            else:
                assert log is not None
                least = (log.last(topic[0], _producer(box)) or -1) + 1
            sequence = box.begin_sending(part, least)
            sent += _append(box, log, part, sequence, now(), kafka)
    return sent


def _topic(letter: Letter) -> tuple[str, str]:
    """The source of a letter and the topic that it is sent to; a source of Kafka may read several."""
    return letter.rejected.source, letter.rejected.origin.rpartition("/")[0]


def _is_kafka(box: LetterBox, letters: Sequence[Letter]) -> bool:
    source = box.sources().get(letters[0].rejected.source)
    return source is not None and source.kind == "kafka"


def _check_places(box: LetterBox, letters: Sequence[Letter], log: Log | None, kafka: Topics | None) -> None:
    """Refuse letters for whose topics nothing is known."""
    sources = box.sources()
    for letter in letters:
        is_kafka = letter.rejected.source in sources and sources[letter.rejected.source].kind == "kafka"
        if is_kafka and kafka is None:
            raise PipelineError(
                f"dead letter {letter.number} is from Kafka, whose address and properties only the pipeline has",
                "name its file: millrace dead resend PIPELINE --file FILE",
            )
        if is_kafka and kafka is not None:
            kafka.check(letter)
        if not is_kafka and log is None:
            raise NotFoundError(f"there is no log to send dead letter {letter.number} to", "name it: --log FILE")


def _check(box: LetterBox, letters: Sequence[Letter], anyway: bool) -> None:
    sources = box.sources()
    failed = _failed(box) if any(letter.rejected.output for letter in letters) else {}
    for letter in letters:
        about = letter.rejected
        source = sources.get(about.source)
        if about.offset is None or source is None:
            raise PipelineError(
                f"dead letter {letter.number} is not a record but a value of {about.output}",
                "change the pipeline, and compute it again: millrace replay FILE",
            )
        if source.kind not in ("log", "kafka"):
            raise PipelineError(
                f"dead letter {letter.number} is from {about.origin}, not from a topic",
                "write its value to a new file of the source: millrace dead show PIPELINE --values",
            )
        others = [output for output in source.outputs if output not in failed.get(_place(letter), ())]
        if about.output is not None and others and not anyway:
            raise PipelineError(
                f"{others[0]} has read the record of dead letter {letter.number}, and would read it twice",
                "change the expression, and compute it again: millrace replay FILE; or send it anyway: --anyway",
            )
    for source in sources.values():
        own = {letter.number: letter.text for letter in letters if letter.rejected.source == source.name}
        for number, reason in misfits(source, own).items():
            raise PipelineError(f"dead letter {number} does not fit: {reason}", "fix it first; nothing was sent")


def _failed(box: LetterBox) -> dict[tuple[object, ...], set[str | None]]:
    """The outputs that have no value for a record, by the place of the record."""
    failed: dict[tuple[object, ...], set[str | None]] = {}
    for letter in box.letters():
        failed.setdefault(_place(letter), set()).add(letter.rejected.output)
    return failed


def _place(letter: Letter) -> tuple[object, ...]:
    return letter.uid, letter.rejected.origin, letter.rejected.offset


def _append(
    box: LetterBox, log: Log | None, letters: Sequence[Letter], sequence: int, at: int, kafka: Topics | None
) -> int:
    """Make an append that was noted, or that may have been made, and mark its letters."""
    if _is_kafka(box, letters):
        assert kafka is not None
        kafka.append(letters, sequence)
        box.finish_sending(sequence, at)
        return len(letters)
    assert log is not None
    topic = letters[0].rejected.source
    marks = [{HEADER: f"{letter.rejected.origin}:{letter.rejected.offset}"} for letter in letters]
    values = [letter.text for letter in letters]
    log.append(topic, values, _keys(log, topic, letters), headers=marks, producer=_producer(box), sequence=sequence)
    box.finish_sending(sequence, at)
    return len(letters)


def _keys(log: Log, topic: str, letters: Sequence[Letter]) -> list[bytes | None]:
    """The keys of the records that were set aside, so that those with one key stay in one partition.

    A record that the log no longer holds has none.
    """
    found: dict[tuple[int, int], Any] = {}
    uid = log.uid_of(topic)
    places = sorted(
        (letter.rejected.partition, letter.rejected.offset)
        for letter in letters
        if letter.uid == uid and letter.rejected.partition is not None and letter.rejected.offset is not None
    )
    starts, ends = log.starts(topic), log.ends(topic)
    for partition, offset in places:
        if (partition, offset) in found or not starts[partition] <= offset < ends[partition]:
            continue
        try:
            read = log.read(topic, partition, offset, min(offset + _TOGETHER, ends[partition]))
        except NotFoundError:  # retention has just removed it
            continue
        found |= {
            (partition, at): key for at, key in zip(read["offset"].to_pylist(), read["key"].to_pylist(), strict=True)
        }
    return [found.get((letter.rejected.partition, letter.rejected.offset)) for letter in letters]  # type: ignore[arg-type]


def _producer(box: LetterBox) -> str:
    """The producer of a box; a box that was made again is another producer, and the log never forgets it."""
    return f"{PIPELINES}{box.file.name.removesuffix(SUFFIX)} dead letters {box.id}"
