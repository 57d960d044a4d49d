"""The tables of a view, and the SQL that changes them.

Each generation of a view is a table: `hourly__1` is the first of `hourly`, and `hourly` is an SQL view of the served
generation. Another table logs the changes of the served generation. To change a generation, the new rows are loaded
into a temporary table and paired with the stored rows; the pairs that differ are then updated, deleted or inserted. The
number of statements does not depend on the number of rows.
"""

from dataclasses import dataclass

from millrace.views.consolidate import DIFF, NULLS
from millrace.views.dialect import Dialect, listed, quoted
from millrace.views.shape import ViewShape, kind_of


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one generation of a view."""

    shape: ViewShape
    generation: int
    dialect: Dialect

    @property
    def data(self) -> str:
        """The table of the rows."""
        return quoted(f"{self.shape.name}__{self.generation}")

    @property
    def stage(self) -> str:
        """The temporary table of new rows."""
        return quoted(f"{self.shape.name}__{self.generation}_new")

    @property
    def pairs(self) -> str:
        """The temporary table of differences: new rows, each with the row id of the stored row of its key."""
        return quoted(f"{self.shape.name}__{self.generation}_pair")

    def create(self) -> list[str]:
        """Create the table of the rows."""
        columns = [f"{quoted(name)} {type}" for name, type in zip(self.shape.columns.names, self._types, strict=True)]
        made = [f"CREATE TABLE {self.data} ({listed([*columns, self._version()])}){self.dialect.kept_with}"]
        if self.shape.key:
            index = quoted(f"{self.shape.name}__{self.generation}_key")
            key = listed(map(quoted, self.shape.key))
            made.append(f"CREATE UNIQUE INDEX {index} ON {self.data} ({key}){self.dialect.nulls_once}")
        return made

    def create_changes(self, name: str) -> list[str]:
        """Create a table of changes."""
        columns = [f"{quoted(name)} {type}" for name, type in zip(self.shape.columns.names, self._types, strict=True)]
        columns += [self._version(), f"{quoted(self.shape.diff.name)} SMALLINT{self.dialect.not_null}"]
        index = f"CREATE INDEX {quoted(f'{name}_version')} ON {quoted(name)} ({quoted(self.shape.version.name)})"
        return [f"CREATE TABLE {quoted(name)} ({listed(columns)})", index]

    def create_view(self) -> str:
        """The SQL after CREATE for the SQL view of this generation."""
        columns = listed(map(quoted, (*self.shape.columns.names, self.shape.version.name)))
        return f"VIEW {quoted(self.shape.name)} AS SELECT {columns} FROM {self.data}"

    def prepare(self) -> list[str]:
        """Create the temporary tables, or empty them."""
        types = self._types
        new = [f"c{place} {type}" for place, type in enumerate(types)]
        old = [f"o{place} {types[place]}" for place in self._rest]
        made = []
        for table, columns in (
            (self.stage, [*new, f"{DIFF} SMALLINT", f"{NULLS} BIGINT"]),
            (self.pairs, [*new, *old, f"{DIFF} SMALLINT", f"place {self.dialect.row_type}"]),
        ):
            made.append(f"CREATE TEMPORARY TABLE IF NOT EXISTS {table} ({listed(columns)}){self.dialect.scratch_with}")
            made.append(f"DELETE FROM {table}")
        return made

    def leave_older(self, nulls: int) -> str:
        """Remove new rows whose pane is not newer, by its index, than that of the stored row of their key."""
        place = len(self.shape.columns.names) - 2
        stored = f"{self._match(self.shape.key_places, nulls)} AND d.{self._name(place)} >= s.c{place}"
        return (
            f"DELETE FROM {self.stage} AS s WHERE s.{NULLS} = {nulls} "
            f"AND EXISTS (SELECT 1 FROM {self.data} d WHERE {stored})"
        )

    def pair(self, nulls: int, all_rows: bool = False) -> str:
        """Pair new rows with stored rows, for keys with this NULL mask.

        Without `all_rows`, only pairs that differ; with it, equal pairs are included with diff 0.
        """
        row = f"d.{self.dialect.row}"
        same = " AND ".join(f"d.{self._name(place)} {self.dialect.same} s.c{place}" for place in self._rest)
        is_same = f"s.{DIFF} = 1 AND {row} IS NOT NULL AND {same}"
        does_nothing = f"{is_same} OR s.{DIFF} = -1 AND {row} IS NULL"
        diff = f"CASE WHEN {is_same} THEN 0 ELSE s.{DIFF} END" if all_rows else f"s.{DIFF}"
        old = [f"d.{self._name(place)}" for place in self._rest]
        return (
            f"INSERT INTO {self.pairs} SELECT {listed([self._new('s'), *old, diff, row])} "
            f"FROM {self.stage} s LEFT JOIN {self.data} d ON {self._match(self.shape.key_places, nulls)} "
            f"WHERE s.{NULLS} = {nulls}{'' if all_rows else f' AND NOT ({does_nothing})'}"
        )

    def pair_overlapping(self, nulls: int) -> str:
        """Mark stored rows whose windows overlap those of new rows for deletion, after all new rows are paired.

        Rows of a group do not overlap each other, so these are the last row that starts at or before the new one, and
        all rows that start within it.
        """
        start, end = map(self._name, self.shape.bound_places)
        new_start, new_end = (f"s.c{place}" for place in self.shape.bound_places)
        group = self._match(self.shape.group_places, nulls)
        before = f"SELECT max(d.{start}) FROM {self.data} d WHERE {group} AND d.{start} <= {new_start}"
        overlapping = (
            f"SELECT d.{self.dialect.row} FROM {self.stage} s JOIN {self.data} d ON {group} "
            f"AND d.{start} >= coalesce(({before}), {new_start}) AND d.{start} < {new_end} AND d.{end} > {new_start} "
            f"WHERE s.{NULLS} = {nulls}"
        )
        not_paired = f"{overlapping} EXCEPT SELECT place FROM {self.pairs}"
        return f"{self._pair_gone()} WHERE d.{self.dialect.row} IN ({not_paired})"

    def pair_rest(self) -> str:
        """Mark all other stored rows for deletion, after all new rows are paired."""
        return f"{self._pair_gone()} LEFT JOIN {self.pairs} p ON p.place = d.{self.dialect.row} WHERE p.place IS NULL"

    def leave_same(self) -> str:
        """Remove equal pairs."""
        return f"DELETE FROM {self.pairs} WHERE {DIFF} = 0"

    def log(self, changes: str) -> list[str]:
        """Log the pending changes; $1 is the version."""
        into = f"INSERT INTO {quoted(changes)} SELECT"
        old = listed(f"{'o' if place in self._rest else 'c'}{place}" for place in range(len(self.shape.columns.names)))
        return [
            f"{into} {old}, $1, -1 FROM {self.pairs} WHERE place IS NOT NULL",
            f"{into} {self._new('p')}, $1, 1 FROM {self.pairs} p WHERE p.{DIFF} = 1",
        ]

    def update(self) -> str:
        """Update the rows whose key is stored already; $1 is the version."""
        values = [f"{self._name(place)} = p.c{place}" for place in self._rest]
        return (
            f"UPDATE {self.data} AS d SET {listed(values)}, {quoted(self.shape.version.name)} = $1 "
            f"FROM {self.pairs} p WHERE d.{self.dialect.row} = p.place AND p.{DIFF} = 1"
        )

    def delete(self) -> str:
        """Delete the rows whose pair has diff -1."""
        return f"DELETE FROM {self.data} WHERE {self.dialect.row} IN (SELECT place FROM {self.pairs} WHERE {DIFF} = -1)"

    def insert(self) -> str:
        """Insert the rows whose key is not stored yet; $1 is the version."""
        new = f"p.{DIFF} = 1 AND p.place IS NULL"
        return f"{self.dialect.insert} INTO {self.data} SELECT {self._new('p')}, $1 FROM {self.pairs} p WHERE {new}"

    def log_difference(self, changes: str, new: "Tables") -> list[str]:
        """Log the differences between this generation and the one that replaces it; $1 is the version."""
        columns = listed(map(quoted, self.shape.columns.names))
        return [
            f"INSERT INTO {quoted(changes)} SELECT {columns}, $1, {diff} FROM "
            f"(SELECT {columns} FROM {these.data} EXCEPT SELECT {columns} FROM {those.data}) AS d"
            for these, those, diff in ((self, new, -1), (new, self, 1))
        ]

    @property
    def _types(self) -> list[str]:
        return [self.dialect.type_of(kind_of(column.type)) for column in self.shape.columns]

    @property
    def _rest(self) -> list[int]:
        """The indexes of the columns outside of the key."""
        return [place for place in range(len(self.shape.columns.names)) if place not in self.shape.key_places]

    def _version(self) -> str:
        return f"{quoted(self.shape.version.name)} BIGINT{self.dialect.not_null}"

    def _name(self, place: int) -> str:
        return quoted(self.shape.columns.names[place])

    def _new(self, table: str) -> str:
        return listed(f"{table}.c{place}" for place in range(len(self.shape.columns.names)))

    def _pair_gone(self) -> str:
        """The SQL that marks stored rows, `d`, for deletion; the caller appends the condition."""
        row = f"d.{self.dialect.row}"
        columns = [*(f"c{place}" for place in self.shape.key_places), *(f"o{place}" for place in self._rest)]
        values = [f"d.{self._name(place)}" for place in (*self.shape.key_places, *self._rest)]
        return (
            f"INSERT INTO {self.pairs} ({listed([*columns, DIFF, 'place'])}) "
            f"SELECT {listed([*values, '-1', row])} FROM {self.data} d"
        )

    def _match(self, places: tuple[int, ...], nulls: int) -> str:
        """The condition that a stored row has the key of a new one. IS NULL and = use the index; null-safe = cannot."""
        terms = []
        for place in places:
            column = f"d.{quoted(self.shape.columns.names[place])}"
            is_null = nulls >> self.shape.key_places.index(place) & 1
            terms.append(f"{column} IS NULL" if is_null else f"{column} = s.c{place}")
        return " AND ".join(terms) or "TRUE"
