"""Sends dead letters again: their values are appended to their topics, each exactly once.

The letters of an append are noted with its sequence number before it is made, and marked when it is done. An append
that a crash interrupted is repeated with the same number, which the log recognises.
"""

from collections.abc import Sequence
from typing import Any

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


def resend(
    box: LetterBox, log: Log, chosen: Chosen, unchanged: bool = False, anyway: bool = False
) -> int:  # fmt: skip
    """Append the fixed ones of the chosen letters to their topics; returns how many records that were.

    With `unchanged`, also those that were not fixed, as they are. Nothing is sent if a letter is not from a topic, if
    its value does not fit the schema, or, unless `anyway`, if an output would read it twice.
    """
    sent = 0
    for sequence, letters in box.unfinished().items():
        sent += _append(box, log, letters, sequence, now())
    letters = [letter for letter in box.letters(chosen) if letter.state is not State.RESENT]
    if not unchanged:
        waiting = len(letters)
        letters = [letter for letter in letters if letter.state is State.FIXED]
        if waiting and not letters and not sent:
            raise PipelineError("no dead letter is fixed", "fix some first, or send them as they are: --unchanged")
    _check(box, letters, anyway)
    for topic in sorted({letter.rejected.source for letter in letters}):
        own = [letter for letter in letters if letter.rejected.source == topic]
        # Several outputs may have set the same record aside.
        records = list(
            {(letter.uid, letter.rejected.origin, letter.rejected.offset): letter for letter in own}.values()
        )
        for start in range(0, len(records), _TOGETHER):
            part = records[start : start + _TOGETHER]
            least = (log.last(topic, _producer(box)) or -1) + 1
            sequence = box.begin_sending(part, least)
            sent += _append(box, log, part, sequence, now())
    return sent


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
        if source.kind == "kafka":
            raise PipelineError(
                f"dead letter {letter.number} is from Kafka, to which millrace does not send again",
                "send its value to the topic with a Kafka producer: millrace dead show PIPELINE --values",
            )
        if source.kind != "log":
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


def _append(box: LetterBox, log: Log, letters: Sequence[Letter], sequence: int, at: int) -> int:
    """Make an append that was noted, or that may have been made, and mark its letters."""
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
