"""Retention: selects the blocks of a topic to remove."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Block:
    """The metadata of a block."""

    partition: int
    first: int
    records: int
    bytes: int
    latest: int
    """The latest timestamp of its records."""
    begun: int
    """When the first of its records was appended."""
    ended: int
    """When the last of its records was appended."""
    content: int | None
    """The id of its content; None for a gap."""

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.first + self.records


def stale(blocks: Sequence[Block], max_age: int | None, max_bytes: int | None, now: int) -> list[Block]:
    """The blocks to remove; `blocks` are all blocks of a topic, by partition and offset.

    A block expires when all its records were appended more than `max_age` ago; their timestamps do not matter. Then the
    oldest blocks expire until the topic holds at most `max_bytes`, but never the last block of a partition, which may
    be new. Blocks are removed from the start of a partition only, even if the clock was turned back.
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
    """Blocks with the time of their last append, made non-decreasing in case the clock was turned back."""
    ended, aged = 0, []
    for block in partition:
        ended = max(ended, block.ended)
        aged.append((ended, block))
    return aged
