"""Tables on a terminal that is too narrow for all their columns."""

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len


def width_of(columns: Mapping[str, Iterable[str]], most: int | None = None) -> int:
    """The width of a table with borders, from the texts of each column; long ones count as `most`, if given.

    >>> width_of({"n": ["1", "22"], "text": ["a long one"]}, most=8)
    17
    """
    widths = [max(map(cell_len, [name, *texts])) for name, texts in columns.items()]
    return 1 + sum(3 + (each if most is None else min(each, most)) for each in widths)


def fitting(
    columns: Mapping[str, Sequence[str]], width: int, unneeded: Iterable[str]
) -> dict[str, Sequence[str]]:  # fmt: skip
    """The columns of a table, without as many of the `unneeded` ones as needed to fit the width, in their order."""
    kept = dict(columns)
    for name in unneeded:
        if width_of(kept) <= width:
            break
        kept.pop(name, None)
    return kept
