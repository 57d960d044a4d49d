"""Parses windows, triggers, watermark policies and aggregates in the notation of transcripts.

`watermark(early=elements(2), late=each())`: a name, and arguments in parentheses. An argument is a number, a duration,
another call, or for aggregates an SQL expression.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from millrace.model import aggregate, sketch, trigger, watermark, window
from millrace.model.aggregate import Aggregate
from millrace.model.errors import refuse, refuse_unknown
from millrace.model.trigger import Trigger
from millrace.model.watermark import Policy
from millrace.model.window import Windowing

T = TypeVar("T")

_LONGEST = 2_000
_DURATION = re.compile(r"[\d.]+ ?[a-z]+")

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)
_INTEGER, _NUMBER = re.compile(r"-?\d+"), re.compile(r"-?\d+\.\d*")

WINDOWS: dict[str, Callable[..., Windowing]] = {
    "fixed": window.fixed,
    "sliding": window.sliding,
    "session": window.session,
    "count": window.count,
    "global": window.all_time,
    "calendar": window.calendar,
}
TRIGGERS: dict[str, Callable[..., Trigger]] = {
    name: getattr(trigger, name)
    for name in (
        "elements",
        "after",
        "every",
        "watermark",
        "default",
        "each",
        "repeat",
        "any_of",
        "all_of",
        "in_order",
        "until",
        "never",
    )
}
POLICIES: dict[str, Callable[..., Policy]] = {
    "delay": watermark.delay,
    "percentile": watermark.percentile,
    "punctuated": watermark.punctuated,
}
AGGREGATES: dict[str, Callable[..., Aggregate]] = {
    "count": aggregate.count,
    "count_if": aggregate.count_if,
    "sum": aggregate.sum_,
    "min": aggregate.min_,
    "max": aggregate.max_,
    "mean": aggregate.mean,
    "variance": aggregate.variance,
    "stddev": aggregate.stddev,
    "first": aggregate.first,
    "last": aggregate.last,
    "collect": aggregate.collect,
    "collect_set": aggregate.collect_set,
    "top_k": aggregate.top_k,
    "approx_distinct": sketch.approx_distinct,
    "approx_quantile": sketch.approx_quantile,
    "approx_top_k": sketch.approx_top_k,
    "second_moment": sketch.second_moment,
}


def parse_window(text: object) -> Windowing:
    """Parse a window such as `fixed(10s)`."""
    return _call(text, "window", WINDOWS)


def parse_trigger(text: object) -> Trigger:
    """Parse a trigger such as `watermark(early=elements(2))`."""
    return _call(text, "trigger", TRIGGERS, nested=True)


def parse_policy(text: object) -> Policy:
    """Parse a watermark policy such as `percentile(0.99)`."""
    return _call(text, "watermark policy", POLICIES)


def parse_aggregate(text: object) -> Aggregate:
    """Parse an aggregate such as `sum(v)`."""
    return _call(text, "aggregate", AGGREGATES)


def _call(text: object, what: str, known: Mapping[str, Callable[..., T]], nested: bool = False) -> T:
    match = _CALL.fullmatch(text) if isinstance(text, str) and len(text) < _LONGEST else None
    if match is None:
        raise refuse(f"{what} {text!r:.80} does not parse", advice=f"write it like {next(iter(known))}(...)")
    name, inside = match.groups()
    if name not in known:
        raise refuse_unknown(what, name, known)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in _split(inside, f"{what} {text!r}"):
        keyword = _KEYWORD.fullmatch(argument)
        value = (keyword[2] if keyword else argument).strip()
        parsed = _call(value, what, known, nested) if nested and "(" in value else _literal(value)
        if keyword:
            if keyword[1] in keywords:
                raise refuse(f"{what} {name}(): {keyword[1]}= is given twice")
            keywords[keyword[1]] = parsed
        else:
            positional.append(parsed)
    try:
        inspect.signature(known[name]).bind(*positional, **keywords)
    except TypeError as error:
        raise refuse(f"{what} {name}(): {error}") from None
    return known[name](*positional, **keywords)


def _split(inside: str, what: str) -> Iterator[str]:
    """Split arguments at commas outside of parentheses and quotes."""
    depth, quote, start = 0, "", 0
    for place, character in enumerate(inside):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth < 0:
                break
        elif character == "," and depth == 0:
            yield inside[start:place]
            start = place + 1
    if depth or quote:
        raise refuse(f"{what} does not parse: its parentheses or quotes are not balanced")
    if inside.strip():
        yield inside[start:]


def _literal(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else _unquoted(text)


def _unquoted(text: str) -> str:
    """The text of a duration without its quotes; any other string is SQL and keeps them."""
    inside = text[1:-1]
    return inside if _DURATION.fullmatch(inside) and text[0] == text[-1] and text[0] in "'\"" else text
