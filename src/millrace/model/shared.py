"""A source that outputs of a pipeline read with several schemas: it is read once, with the columns of all of them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from millrace.model.errors import refuse
from millrace.model.expression import parse_expression
from millrace.model.query import Query, of_sources
from millrace.model.schema import Column
from millrace.model.stream import Select, Source, Stream


def shared_sources(sources: Iterable[Source]) -> dict[Source, Stream]:
    """For each source that is read with several schemas, the same rows taken from one source with all columns.

    Refuses schemas that contradict each other.
    """
    variants: dict[tuple[str, str], list[Source]] = {}
    for source in sources:
        variants.setdefault((source.kind, source.name), []).append(source)
    found: dict[Source, Stream] = {}
    for several in variants.values():
        if len(several) > 1:
            whole = _with_all_columns(several)
            found |= {source: _narrowed(whole, source) for source in several}
    return found


def with_shared(of: Query | Stream, shared: Mapping[Source, Stream]) -> Query | Stream:
    """The same query or stream over shared sources."""
    return of_sources(of, lambda source: shared.get(source, source))


def is_narrowed(stream: Stream) -> bool:
    """Whether a stream only leaves out columns of its source."""
    if not isinstance(stream, Select) or not isinstance(stream.parent, Source):
        return False
    unchanged = all(each.columns == (name,) and each.sql == f"`{name}`" for name, each in stream.columns)
    kept = [name for name in stream.parent.schema.names if name in stream.schema]
    return unchanged and kept == list(stream.schema.names)


def _with_all_columns(several: list[Source]) -> Source:
    first, *others = several
    whole = first
    for other in others:
        _check(first, other)
        for column in other.schema:
            if column.name in whole.schema and column != _column(whole, column.name):
                raise refuse(
                    f"column {column.name!r} of {other.kind} {other.name!r} is declared twice: as "
                    f"({_column(whole, column.name)}) at {first.place} and as ({column}) at {other.place}",
                    advice="declare it alike in both schemas",
                )
        whole = replace(whole, schema=whole.schema.with_columns(other.schema))
    for source in several:
        for name in whole.schema.required:
            if name not in source.schema:
                raise refuse(
                    f"{source.kind} {source.name!r} is read with two schemas, and column {name!r} is NOT NULL in one "
                    f"and missing in the other, at {source.place}",
                    advice="add it there, or leave NOT NULL out",
                )
    return whole


def _check(first: Source, other: Source) -> None:
    both = f"{other.kind} {other.name!r} is read"
    where = f"at {first.place} and at {other.place}"
    if first.options != other.options or first.secrets != other.secrets:
        raise refuse(f"{both} with different options {where}", advice="give both the same options")
    if first.is_strict:
        raise refuse(f"{both} with two strict schemas {where}", advice="declare all columns in both")
    if first.kind == "custom" or first.archive:
        raise refuse(f"{both} with two schemas {where}", advice="declare all columns in both")


def _narrowed(whole: Source, source: Source) -> Stream:
    columns = tuple((name, parse_expression(f"`{name}`", whole.schema)) for name in source.schema.names)
    return Select(whole, columns, source.schema, source.place)


def _column(source: Source, name: str) -> Column:
    return next(column for column in source.schema if column.name == name)
