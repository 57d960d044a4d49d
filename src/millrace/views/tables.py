"""The tables of a view, and the SQL that changes them.

A generation of a view is a table: `hourly__1` for the first of `hourly`, which is an SQL view of the generation that is
served. The changes of what is served are in a table beside it. To change a generation, what is new is loaded into a
temporary table, paired with the rows that are there, and what differs is then changed: a few statements, however many
rows there are.
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
        """The temporary table of what is new."""
        return quoted(f"{self.shape.name}__{self.generation}_new")

    @property
    def pairs(self) -> str:
        """The temporary table of what differs: new rows, each with where the row is that was there."""
        return quoted(f"{self.shape.name}__{self.generation}_pair")

    def create(self) -> list[str]:
        """Make the table of the rows."""
        columns = [f"{quoted(name)} {type}" for name, type in zip(self.shape.columns.names, self._types, strict=True)]
        made = [f"CREATE TABLE {self.data} ({listed([*columns, self._version()])}){self.dialect.kept_with}"]
        if self.shape.key:
            index = quoted(f"{self.shape.name}__{self.generation}_key")
            key = listed(map(quoted, self.shape.key))
            made.append(f"CREATE UNIQUE INDEX {index} ON {self.data} ({key}){self.dialect.nulls_once}")
        return made

    def create_changes(self, name: str) -> list[str]:
        """Make a table of changes."""
        columns = [f"{quoted(name)} {type}" for name, type in zip(self.shape.columns.names, self._types, strict=True)]
        columns += [self._version(), f"{quoted(self.shape.diff.name)} SMALLINT{self.dialect.not_null}"]
        index = f"CREATE INDEX {quoted(f'{name}_version')} ON {quoted(name)} ({quoted(self.shape.version.name)})"
        return [f"CREATE TABLE {quoted(name)} ({listed(columns)})", index]

    def create_view(self) -> str:
        """What follows CREATE, to make the SQL view of this generation."""
        columns = listed(map(quoted, (*self.shape.columns.names, self.shape.version.name)))
        return f"VIEW {quoted(self.shape.name)} AS SELECT {columns} FROM {self.data}"

    def prepare(self) -> list[str]:
        """Make the temporary tables, empty."""
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

    def pair(self, nulls: int, all_rows: bool = False) -> str:
        """Pair what is new with what is there, for the keys that are NULL in these columns.

        Without `all_rows`, only where they differ; with it, what does not differ has a diff of 0.
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
        """Pair rows whose windows overlap those of new ones with nothing, once all that is new is paired.

        As rows of a group do not overlap each other, those are the last that starts at or before the new one, and all
        that start within it.
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
        """Pair all other rows with nothing, once all that is new is paired."""
        return f"{self._pair_gone()} LEFT JOIN {self.pairs} p ON p.place = d.{self.dialect.row} WHERE p.place IS NULL"

    def leave_same(self) -> str:
        """Leave out what does not differ."""
        return f"DELETE FROM {self.pairs} WHERE {DIFF} = 0"

    def log(self, changes: str) -> list[str]:
        """Write down what is about to be changed; $1 is the version."""
        into = f"INSERT INTO {quoted(changes)} SELECT"
        old = listed(f"{'o' if place in self._rest else 'c'}{place}" for place in range(len(self.shape.columns.names)))
        return [
            f"{into} {old}, $1, -1 FROM {self.pairs} WHERE place IS NOT NULL",
            f"{into} {self._new('p')}, $1, 1 FROM {self.pairs} p WHERE p.{DIFF} = 1",
        ]

    def update(self) -> str:
        """Change the rows whose key stays; $1 is the version."""
        values = [f"{self._name(place)} = p.c{place}" for place in self._rest]
        return (
            f"UPDATE {self.data} AS d SET {listed(values)}, {quoted(self.shape.version.name)} = $1 "
            f"FROM {self.pairs} p WHERE d.{self.dialect.row} = p.place AND p.{DIFF} = 1"
        )

    def delete(self) -> str:
        """Remove the rows that are gone."""
        return f"DELETE FROM {self.data} WHERE {self.dialect.row} IN (SELECT place FROM {self.pairs} WHERE {DIFF} = -1)"

    def insert(self) -> str:
        """Add the rows that are new; $1 is the version."""
        new = f"p.{DIFF} = 1 AND p.place IS NULL"
        return f"{self.dialect.insert} INTO {self.data} SELECT {self._new('p')}, $1 FROM {self.pairs} p WHERE {new}"

    def log_difference(self, changes: str, new: "Tables") -> list[str]:
        """Write down what changes when another generation takes the place of this one; $1 is the version."""
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
        """Where the columns are that are not of the key."""
        return [place for place in range(len(self.shape.columns.names)) if place not in self.shape.key_places]

    def _version(self) -> str:
        return f"{quoted(self.shape.version.name)} BIGINT{self.dialect.not_null}"

    def _name(self, place: int) -> str:
        return quoted(self.shape.columns.names[place])

    def _new(self, table: str) -> str:
        return listed(f"{table}.c{place}" for place in range(len(self.shape.columns.names)))

    def _pair_gone(self) -> str:
        """Pair rows that are there, d, with nothing; what says which of them is to follow."""
        row = f"d.{self.dialect.row}"
        columns = [*(f"c{place}" for place in self.shape.key_places), *(f"o{place}" for place in self._rest)]
        values = [f"d.{self._name(place)}" for place in (*self.shape.key_places, *self._rest)]
        return (
            f"INSERT INTO {self.pairs} ({listed([*columns, DIFF, 'place'])}) "
            f"SELECT {listed([*values, '-1', row])} FROM {self.data} d"
        )

    def _match(self, places: tuple[int, ...], nulls: int) -> str:
        """That a row has the key of a new one. An index finds it by IS NULL and =, but not by what is true of both."""
        terms = []
        for place in places:
            column = f"d.{quoted(self.shape.columns.names[place])}"
            is_null = nulls >> self.shape.key_places.index(place) & 1
            terms.append(f"{column} IS NULL" if is_null else f"{column} = s.c{place}")
        return " AND ".join(terms) or "TRUE"
