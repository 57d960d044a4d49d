"""Arrays, maps and structs of JSON records, from the texts of their fields.

The values of a column are taken apart level by level: all elements of all arrays are one column of values, all values
of a field another. Scalar values are decoded by the decoder of whole records, all of a level together, so that `5.5` is
no BIGINT inside of an array either.
"""

import json
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.formats.texts import First, Written
from millrace.model.arrow import arrow_type
from millrace.model.nested import ArrayType, MapType, StructType, nested
from millrace.model.schema import Column

DecodeScalars: TypeAlias = Callable[[str, Sequence[str]], tuple[pa.Array, Sequence[int]]]
"""Decodes JSON values of a type: those that are of the type, in order, and the numbers of the others."""
_Rows: TypeAlias = npt.NDArray[np.intp]


class NestedColumn:
    """Decodes one column of a nested type. A strict one accepts no fields that its structs do not have."""

    def __init__(self, column: Column, scalars: DecodeScalars, is_strict: bool) -> None:
        self.column, self._scalars, self._is_strict = column, scalars, is_strict
        self._wrong: dict[int, str] = {}

    def decode(self, texts: pa.ChunkedArray) -> tuple[pa.Array, dict[int, str]]:
        """The values of texts, and what was found in those that do not fit, by row; their values mean nothing."""
        self._wrong = {}
        values: list[Any] = []
        for row, text in enumerate(texts.to_pylist()):
            try:
                values.append(None if text is None else _LOADS(text))
            except (ValueError, RecursionError):
                self._reject(row, text, "")
                values.append(None)
        return self._array(values, np.arange(len(values)), self.column.type, ""), self._wrong

    def _reject(self, row: int, found: object, path: str) -> None:
        self._wrong.setdefault(int(row), f"{found!r:.80} at {path}" if path else f"{found!r:.80}")

    def _array(self, values: list[Any], rows: _Rows, type: str, path: str) -> pa.Array:
        """Values of a level, each of a row, as an array; those that are not of the type are rejected, and NULL."""
        match nested(type):
            case ArrayType(element):
                values = self._only(list, values, rows, path)
                elements = list(chain.from_iterable(each for each in values if each is not None))
                offsets, below = _spread(values, rows)
                return pa.ListArray.from_arrays(
                    offsets, self._array(elements, below, element, f"{path}[]"), _kind_of(type), mask=_nulls(values)
                )
            case MapType(key, item):
                values = self._only(dict, values, rows, path)
                offsets, below = _spread(values, rows)
                names = list(chain.from_iterable(each for each in values if each is not None))
                items = list(chain.from_iterable(each.values() for each in values if each is not None))
                keys = self._array(names, below, key, path)
                held = self._array(items, below, item, f"{path}.*")
                if keys.null_count:  # these keys were rejected; a map cannot hold NULL as a key
                    kept = [
                        None if row in self._wrong else each for row, each in zip(rows.tolist(), values, strict=True)
                    ]
                    return self._array(kept, rows, type, path)
                return pa.MapArray.from_arrays(offsets, keys, held, _kind_of(type), mask=_nulls(values))
            case StructType(fields):
                values = self._only(dict, values, rows, path)
                if self._is_strict:
                    self._reject_unknown(values, rows, {name for name, _ in fields}, path)
                parts = [
                    self._array(
                        [None if each is None else each.get(name) for each in values], rows, kind, f"{path}.{name}"
                    )
                    for name, kind in fields
                ]
                return pa.StructArray.from_arrays(parts, fields=list(_kind_of(type)), mask=_nulls(values))
            case None:
                if type == "STRING":
                    return pa.array([each if each is None else _text(each) for each in values], pa.string())
                return self._scalar(values, rows, type, path)
            case never:
                assert_never(never)

    def _scalar(self, values: list[Any], rows: _Rows, type: str, path: str) -> pa.Array:
        present = np.flatnonzero([each is not None for each in values])
        fitting, others = self._scalars(type, [_token(values[place]) for place in present.tolist()])
        for place in present[list(others)].tolist():
            self._reject(rows[place], values[place], path)
        chosen = np.full(len(values), -1)
        chosen[np.delete(present, list(others))] = np.arange(len(fitting))
        return fitting.take(pa.array(chosen, mask=chosen < 0))

    def _only(self, kind: type, values: list[Any], rows: _Rows, path: str) -> list[Any]:
        """The values of a kind; others are rejected, and None instead."""
        if all(each is None or isinstance(each, kind) for each in values):
            return values
        for row, each in zip(rows.tolist(), values, strict=True):
            if each is not None and not isinstance(each, kind):
                self._reject(row, each, path)
        return [each if isinstance(each, kind) else None for each in values]

    def _reject_unknown(self, values: list[Any], rows: _Rows, known: set[str], path: str) -> None:
        for row, each in zip(rows.tolist(), values, strict=True):
            extra = [] if each is None else [name for name in each if name not in known]
            if extra:
                self._reject(row, f"unknown field {extra[0]}", path)


_LOADS = json.JSONDecoder(
    object_pairs_hook=First, parse_float=Written, parse_int=Written, parse_constant=Written
).decode


def _kind_of(type: str) -> pa.DataType:
    kind = arrow_type(type)
    assert kind is not None
    return kind


def _spread(values: list[Any], rows: _Rows) -> tuple[pa.Array, _Rows]:
    """Where each value begins in the level below, and the row of each of those."""
    lengths = np.fromiter((0 if each is None else len(each) for each in values), np.int64, len(values))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()), np.repeat(rows, lengths)


def _nulls(values: list[Any]) -> pa.Array:
    return pa.array([each is None for each in values], pa.bool_())


def _text(value: Any) -> str:
    """A value as a STRING: numbers as written, nested values as JSON without spaces."""
    return str(value) if isinstance(value, str) else _token(value)


def _token(value: Any) -> str:
    """A value as JSON; numbers as they were written."""
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(_token, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_token(each)}' for name, each in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
