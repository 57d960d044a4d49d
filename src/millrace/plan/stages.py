"""Stages that read the answers of other stages: their statements, and the shards in which they run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from millrace.edge.fused import Fused
from millrace.formats.sql import CannotFuseError
from millrace.model.errors import refuse
from millrace.model.query import Query
from millrace.model.stream import (
    AnswerStream,
    Derived,
    Explode,
    Join,
    JoinStream,
    Map,
    Select,
    Source,
    Stream,
    WithColumns,
    only_from,
    own_sources,
    parents,
    with_derived,
)
from millrace.plan.fingerprint import fingerprint_of
from millrace.plan.plan import Stage, StageInput

NOT_FUSED = "fusing is switched off"
"""The reason for a native edge that could be fused."""


def inner_id(computed: Query | JoinStream) -> str:
    """The id of a stage that only other stages read: the same for the same computation in a later run."""
    text = json.dumps(fingerprint_of(computed), sort_keys=True)
    kind = "query" if isinstance(computed, Query) else "join"
    return f"{kind} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def over_changes(
    id: str, of: Query | Stream, read: Sequence[tuple[Derived, Stage]], is_read: bool = False, fuse: bool = True
) -> Stage:
    """A query or a stream that reads the answers of other stages."""
    query, stream = (of, of.stream) if isinstance(of, Query) else (None, of)
    inputs = tuple(stage_input(stage.id, of, root, fuse=fuse) for root, stage in read)
    level = max(stage.level for _, stage in read)
    is_alone = len(read) == 1 and not own_sources(stream) and inputs[0].native is None
    if query is not None and not (is_alone and _stays(query, read[0][0])):
        level += 1
    return Stage(id, stream, query, (), None, inputs, level, is_read)


def stage_input(id: str, of: Query | Stream, root: Derived, side: int = 0, fuse: bool = True) -> StageInput:
    """How a query, a stream or a side of a join reads the answers of a stage."""
    for join in _joins(of.stream if isinstance(of, Query) else of):
        if not join.table.rows:
            advice = "join it before .aggregate(...), or give its rows: table(..., rows=[...])"
            problem = f"table {join.table.name!r} may change, and an answer that is taken back must find the same row"
            raise refuse(problem, join.place, advice)
    if not fuse:
        return StageInput(id, root, (), side, NOT_FUSED)
    try:
        return StageInput(id, root, changes_edge(of, root).statements, side)
    except CannotFuseError as error:
        return StageInput(id, root, (), side, str(error))


def changes_edge(of: Query | Stream, root: Derived) -> Fused:
    """The statements over the answers that `root` stands for."""
    below, source = over_answers(of, root)
    return Fused(below, source, {}, numbered=True, lifts="they are changes" if isinstance(of, Query) else None)


def over_answers(of: Query | Stream, root: Derived) -> tuple[Query | Stream, Source]:
    """A query or a stream with a source in place of the answers that `root` stands for, and that source."""
    source = Source("answers", "answers", root.schema, place=root.place)
    stream = only_from(of.stream if isinstance(of, Query) else of, root)
    stream = with_derived(stream, lambda each: source if each == root else each)
    return (replace(of, stream=stream) if isinstance(of, Query) else stream), source


def from_source(of: Query | Stream, source: Source) -> Query | Stream:
    """A query or a stream as the rows of one of its own sources pass through it."""
    if isinstance(of, Query):
        return replace(of, stream=only_from(of.stream, source))
    return only_from(of, source)


def _joins(stream: Stream) -> list[Join]:
    own = [stream] if isinstance(stream, Join) else []
    return own + [join for parent in parents(stream) for join in _joins(parent)]


def _stays(query: Query, root: Derived) -> bool:
    """Whether the rows of each group come from one shard: its keys contain those of the stage that it reads."""
    keys = root.query.keys if isinstance(root, AnswerStream) else root.spec.on
    return set(keys) <= set(query.keys) and all(_is_kept(query.stream, key) for key in keys)


def _is_kept(stream: Stream, column: str) -> bool:
    """Whether a column of the answers passes unchanged."""
    if isinstance(stream, Map | Explode):
        return False
    chosen = dict(stream.columns).get(column) if isinstance(stream, Select | WithColumns) else None
    if chosen is not None and not chosen.is_column(column):
        return False
    return all(_is_kept(parent, column) for parent in parents(stream))
