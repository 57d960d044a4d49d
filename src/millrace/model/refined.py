"""Views of answers with conditions or computed columns: `hourly.where("plays > 100")`.

Such a view holds, for each key and window of the query, the row that its last answer gives, if there is one.
"""

from typing import assert_never

from millrace.model.errors import refuse
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.stream import (
    AnswerStream,
    AnswerTime,
    Dedup,
    EventTime,
    Explode,
    Filter,
    Join,
    JoinStream,
    Map,
    Select,
    Source,
    Stream,
    Union,
    Where,
    WithColumns,
    derived_in,
    node_of,
    parents,
)


def query_of(of: Query | Stream) -> Query:
    """The query whose answers are the rows of a view."""
    if isinstance(of, Query):
        return of
    (root,) = derived_in(of)
    assert isinstance(root, AnswerStream), "check_view_rows refuses others"
    return root.query


def is_view_row(of: Stream) -> bool:
    """Whether each row of a stream is the row of one key and window, so that a missing row can be removed."""
    return len(derived_in(of)) == 1 and _is_one_row(of)


def _is_one_row(stream: Stream) -> bool:
    if isinstance(stream, AnswerStream):
        return True
    if isinstance(stream, Explode | Join | JoinStream | Union) or (isinstance(stream, Map) and stream.many):
        return False
    return all(map(_is_one_row, parents(stream)))


def check_view_rows(view: str, of: Stream) -> None:
    """Refuse a stream that does not give at most one row, with its key, for each key and window of one query."""
    node: Stream = of
    while not isinstance(node, AnswerStream):
        node = _parent(view, node)
    typed = set(of.schema.typed)
    missing = [name for name in node.query.key_names if (name, node.schema.type_of(name)) not in typed]
    if missing:
        names = ", ".join(map(repr, missing))
        problem = f"view {view!r} needs the columns {names}, which tell its rows apart"
        raise refuse(problem, of.place, advice=f"keep them: select({names}, ...)")


def _parent(view: str, stream: Stream) -> Stream:
    match node_of(stream):
        case Where(parent) | AnswerTime(parent) | Filter(parent):
            return parent
        case Select(parent, columns) | WithColumns(parent, columns):
            read = [each.query.keys for each in derived_in(stream) if isinstance(each, AnswerStream)]
            keys = {column.name for column in WINDOW_COLUMNS}.union(*read)
            for name, expression in columns:
                if name in keys and not expression.is_column(name):
                    problem = f"view {view!r} changes column {name!r}, which tells its rows apart"
                    raise refuse(problem, stream.place, advice="give the computed column another name")
            return parent
        case Map(parent, many=False):
            return parent
        case JoinStream() as node:
            problem = f"view {view!r} is a join of streams, whose rows have no key"
            raise refuse(problem, node.place, advice="aggregate them, or send them to a sink")
        case Join(table=table) as node:
            problem = f"view {view!r} may have several rows for a key and a window, one for each row of {table.name!r}"
            advice = "join the table before .aggregate(...), or in the SQL that reads the view"
            raise refuse(problem, node.place, advice=advice)
        case (Map() | Explode() | Union()) as node:
            problem = f"view {view!r} would have several rows for a key and a window"
            raise refuse(problem, node.place, advice="aggregate them, or send them to a sink")
        case (Source() | AnswerStream() | Dedup() | EventTime()) as node:
            raise AssertionError(f"{type(node).__name__} is not on top of answers")
        case never:
            assert_never(never)
