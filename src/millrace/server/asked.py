"""Parses the query string of a view: `?track=Undertow&plays.gt=5&order=-plays,track&limit=10&offset=20`."""

from collections.abc import Iterable
from dataclasses import dataclass

from millrace.model.errors import PipelineError, shown, unknown_option
from millrace.server.asks import MOST_ROWS
from millrace.views.store import Filter, Order

_DIGITS = 15
_SIGNS = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(frozen=True, slots=True)
class Asked:
    """The filters, order, limit and offset of a request."""

    where: tuple[Filter, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int = MOST_ROWS
    offset: int = 0


def asked_of(parameters: Iterable[tuple[str, str]]) -> Asked:
    """Parse the parameters of a query string. A repeated column matches any of its values."""
    named: dict[str, list[str]] = {}
    for name, value in parameters:
        named.setdefault(name, []).append(value)
    limit = _number(named.pop("limit", [str(MOST_ROWS)])[-1], "limit")
    offset = _number(named.pop("offset", ["0"])[-1], "offset")
    order = tuple(_order(part) for text in named.pop("order", []) for part in text.split(",") if part)
    return Asked(tuple(_filter(name, values) for name, values in named.items()), order, min(limit, MOST_ROWS), offset)


def _filter(name: str, values: list[str]) -> Filter:
    column, dot, sign = name.rpartition(".")
    if not dot:
        return (name, "=", values[0]) if len(values) == 1 else (name, "in", values)
    if sign not in _SIGNS:
        raise unknown_option("comparison", sign, _SIGNS)
    return column, _SIGNS[sign], values[-1]


def _order(text: str) -> Order:
    return (text[1:], "desc") if text.startswith("-") else (text, "asc")


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise PipelineError(f"{what} must be a whole number below 10^{_DIGITS}, not {shown(text)}")
    return int(text)
