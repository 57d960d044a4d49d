"""Answers of a store, piece by piece: JSON for people and scripts, an Arrow stream for those who accept it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_never

import pyarrow as pa

from millrace.model.errors import PipelineError
from millrace.model.plain import to_json
from millrace.server.asks import Ask, AskChanges, AskHistory, AskQuery, AskRows, Head, Limits, Part
from millrace.views.store import Selected, Store, Streamed, ViewRows
from millrace.views.tabular import VERSION, arrow_bytes, table_of

_ROWS = 1_000
"""How many rows of a query are read at a time, at first; fewer if they are large."""
_PIECE = 256 << 10
"""About how many bytes are sent at a time."""


def answer(store: Store, ask: Ask, limits: Limits) -> Iterator[Part]:
    """The parts of an answer. Errors come before the first part, unless the database fails while it is read."""
    match ask.what:
        case AskQuery() as query:
            with store.select(query.sql, query.seconds, query.params, ask.rights) as selected:
                yield from _whole(ask, selected.state, _query(query, selected, ask.is_arrow, limits))
        case AskRows() as asked:
            limit = asked.limit if asked.limit is None or ask.is_arrow else asked.limit + 1
            with store.stream(asked.view, asked.where, asked.order, limit, asked.offset, ask.rights) as streamed:
                about = {"view": asked.view, "version": streamed.version}
                body = (
                    _arrow_pieces(streamed, limits)
                    if ask.is_arrow
                    else _json(streamed, about, "rows", asked.limit, limits)
                )
                yield from _whole(ask, streamed.state, body)
        case AskChanges() as changes:
            with store.stream_changes(changes.view, changes.since, ask.rights) as streamed:
                about = {"view": changes.view, "since": changes.since}
                body = (
                    _arrow_pieces(streamed, limits) if ask.is_arrow else _json(streamed, about, "changes", None, limits)
                )
                yield from _whole(ask, streamed.state, body)
        case AskHistory() as past:
            with store.history(past.view, past.where, past.last, ask.rights) as streamed:
                body = (
                    _arrow_pieces(streamed, limits)
                    if ask.is_arrow
                    else _json(streamed, {"view": past.view}, "changes", None, limits)
                )
                yield from _whole(ask, streamed.state, body)
        case _:
            assert_never(ask.what)


def _whole(ask: Ask, state: str | None, body: Iterator[bytes]) -> Iterator[Part]:
    """The head and the pieces of a body. The first piece is made before the head, so that its errors come first."""
    etag = None if state is None else _etag(ask, state)
    if etag is not None and _is_known(etag, ask.known):
        yield Head(etag, is_known=True)
        return
    waiting = bytearray()
    is_first = True
    for piece in body:
        waiting += piece
        if len(waiting) >= _PIECE:
            if is_first:
                yield Head(etag)
            is_first = False
            yield bytes(waiting)
            waiting.clear()
    if is_first:
        yield Head(etag)
    yield bytes(waiting)


def _etag(ask: Ask, state: str) -> str:
    """The tag of an answer. It is weak: answers with one tag have the same rows, at any version of the store."""
    about = repr((ask.what, sorted(ask.rights.row_filters), ask.is_arrow, state))
    return f'W/"{hashlib.sha256(about.encode()).hexdigest()[:32]}"'


def _is_known(etag: str, known: str | None) -> bool:
    return known is not None and (
        known.strip() == "*"
        or etag.removeprefix("W/") in (each.strip().removeprefix("W/") for each in known.split(","))
    )


def _query(query: AskQuery, selected: Selected, is_arrow: bool, limits: Limits) -> Iterator[bytes]:
    pieces = _counted(selected, query.limit, limits.bytes)
    if is_arrow:
        found: list[tuple[Any, ...]] = []
        for piece in pieces:
            found += piece.rows
            if piece.is_cut:
                raise _too_large(limits.bytes)
        yield arrow_bytes(table_of(ViewRows(selected.columns, found)))
        return
    yield f'{{"columns": {to_json(selected.columns)}, "rows": ['.encode()
    separator, has_more = "", False
    for piece in pieces:
        has_more = piece.has_more or piece.is_cut
        if piece.rows:
            yield (separator + to_json(piece.rows)[1:-1]).encode("utf-8", "replace")
            separator = ", "
    yield f'], "more": {to_json(has_more)}}}'.encode()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a result. The last piece tells whether the caller's limit or the size left out others."""

    rows: list[tuple[Any, ...]]
    has_more: bool = False
    is_cut: bool = False


def _counted(selected: Selected, limit: int | None, most: int) -> Iterator[_Piece]:
    """The rows of a result, up to a number of rows and of bytes."""
    rows, size, at_once = 0, 0, 1
    while True:
        wanted = at_once if limit is None else min(at_once, limit + 1 - rows)
        found = selected.fetch(wanted)
        if not found:
            return
        if limit is not None and rows + len(found) > limit:
            yield _Piece(found[: limit - rows], has_more=True)
            return
        width = sum(map(_size, found))
        if size + width > most:
            yield _Piece([], is_cut=True)
            return
        yield _Piece(found)
        rows, size = rows + len(found), size + width
        at_once = max(1, min(_ROWS, 2 * at_once, (4 << 20) * len(found) // max(1, width)))


def _size(row: tuple[Any, ...]) -> int:
    """About how many bytes a row is as JSON."""
    return sum(len(value) if isinstance(value, str | bytes) else 16 for value in row) + 2 * len(row)


def _json(streamed: Streamed, about: dict[str, Any], name: str, limit: int | None, limits: Limits) -> Iterator[bytes]:
    yield (to_json(about)[:-1] + f', "{name}": [').encode()
    rows, size, separator, has_more = 0, 0, "", False
    for batch in streamed.batches:
        size += batch.nbytes
        has_more = size > limits.bytes or (limit is not None and rows + len(batch) > limit)
        if size > limits.bytes:
            break
        found = batch.to_pylist()[: None if limit is None else limit - rows]
        if found:
            yield (separator + to_json(found)[1:-1]).encode("utf-8", "replace")
            separator = ", "
        rows += len(found)
    yield f'], "more": {to_json(has_more)}}}'.encode()


def _arrow_pieces(streamed: Streamed, limits: Limits) -> Iterator[bytes]:
    """An Arrow IPC stream, with types and without a row limit; the version is metadata of the schema."""
    schema = streamed.schema.with_metadata({VERSION: str(streamed.version)})
    sink = pa.BufferOutputStream()
    size = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in streamed.batches:
            size += batch.nbytes
            if size > limits.bytes:
                raise _too_large(limits.bytes)
            writer.write_batch(batch)
    yield sink.getvalue().to_pybytes()


def _too_large(most: int) -> PipelineError:
    return PipelineError(f"the answer is larger than {most >> 20} MB", "select less, or read it in parts with LIMIT")
