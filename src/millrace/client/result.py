"""The rows of a result: an Arrow table that converts to pandas, polars or dicts."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.model.plain import visible

if TYPE_CHECKING:
    import pandas
    import polars

_SHOWN = 20
"""The maximum number of rows that are shown of a result."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Result:
    """Rows of a query, of a view, or of its changes."""

    table: pa.Table
    version: int | None = None
    """The version of the store at which the rows were read, for `changes` to continue from; None for a query."""

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.table

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame."""
        frame: pandas.DataFrame = self.table.to_pandas()
        return frame

    def to_polars(self) -> "polars.DataFrame":
        """The rows as a polars DataFrame; needs the package polars, which Millrace does not install."""
        try:
            import polars
        except ImportError:
            raise ImportError("to_polars() needs polars; install it: pip install polars") from None
        return polars.DataFrame(self.table)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts by column."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.table.column_names)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        lines = [[*self.columns], *([_text(value) for value in row.values()] for row in self._first())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        cells = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*cells, self._size()])

    def _repr_html_(self) -> str:
        """The first rows as an HTML table, for notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_text(value))}</td>" for value in row.values()) + "</tr>"
            for row in self._first()
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div>{table}<small>{escape(self._size())}</small></div>"

    def _first(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.slice(0, _SHOWN).to_pylist()
        return found

    def _size(self) -> str:
        rows = f"{len(self):,} {'row' if len(self) == 1 else 'rows'}"
        first = f"; the first {_SHOWN} are shown" if len(self) > _SHOWN else ""
        version = "" if self.version is None else f", version {self.version}"
        return f"{rows}{version}{first}"


def _text(value: object) -> str:
    return "" if value is None else visible(str(value)).removesuffix("+00:00")
