"""Retention: which blocks of a topic have been kept long enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Block:
    """What is known of a block without reading it."""

    partition: int
    first: int
    records: int
    bytes: int
    latest: int
    """The latest timestamp of its records."""
    begun: int
    """When the first of its records was appended."""
    ended: int
    """When the last was."""
    content: int
    """Where what it holds is."""

    @property
    def end(self) -> int:
        """The offset after its last."""
        return self.first + self.records


def stale(blocks: Sequence[Block], max_age: int | None, max_bytes: int | None, now: int) -> list[Block]:
    """The blocks to remove; `blocks` are all of a topic, by partition and offset.

    A block goes when all its records were appended more than `max_age` ago, whatever their timestamps say. Then the
    oldest go until the topic holds at most `max_bytes`, but never the last block of a partition, which may be new. A
    partition loses its beginning only, even if the clock was turned back.
    """
    old: list[Block] = []
    rest: list[tuple[int, Block]] = []
    total = 0
    for _, found in groupby(blocks, lambda block: block.partition):
        partition = list(found)
        ages = [-1 if max_age is None else now - max_age - block.ended for block in partition]
        kept = next((place for place, age in enumerate(ages) if age <= 0), len(partition))
        old += partition[:kept]
        rest += _by_age(partition[kept:-1])
        total += sum(block.bytes for block in partition[kept:])
    for _, block in sorted(rest, key=lambda each: (each[0], each[1].first)):
        if max_bytes is None or total <= max_bytes:
            break
        old.append(block)
        total -= block.bytes
    return old


def _by_age(partition: Sequence[Block]) -> list[tuple[int, Block]]:
    """Blocks with when they ended, none before the one that it follows."""
    ended, aged = 0, []
    for block in partition:
        ended = max(ended, block.ended)
        aged.append((ended, block))
    return aged
