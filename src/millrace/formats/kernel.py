"""Matches JSON records with learnt shapes and decodes their values, compiled by Numba.

Every check is strict: a record of which it is not sure that DuckDB reads the same is not matched. Places are addresses;
a function that scans returns the place after what it found, or -1. The caller guarantees `PADDING` readable bytes after
the last record, because many bytes are read at a time.
"""

from typing import Any

import numpy as np

from millrace.formats.forms import BOOLEAN, DATE, DECIMAL, DOUBLE, INTEGER, SKIP, STRING, TIMESTAMP
from millrace.formats.linebreaks import line_ends
from millrace.formats.machine import STEP, byte, compiled, copy, inlined, load, special_in

PADDING = 64
LENGTH, WORD, NEXT, KIND, COLUMN, NODE = range(6)
"""The fields of an edge: of its text the length and the first word, then the next edge of the same node, the kind and
the column of the value that follows, and the node after it; -1 for the edge, the column or the node that is none."""
LOW, HIGH, SCALE, PLACE, IS_TEXT = range(5)
"""The fields of a column: the bounds and the scale of numbers, its place among the columns with the same storage, and
whether that is text."""

_U = np.uint64
_MOST_DIGITS, _EXACT, _DEEPEST = 18, 1 << 53, 60
_POWERS = np.array([10.0**n for n in range(23)])
_WHOLE_POWERS = np.array([10**n for n in range(19)])
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_TRUE, _NULL, _ALSE = (_U(int.from_bytes(text, "little")) for text in (b"true", b"null", b"alse"))
_FOUR = _U(0xFFFFFFFF)
_ESCAPED = np.isin(np.arange(256), [*b'"\\/bfnrt'])


@inlined
def _special(at: int, end: int) -> int:
    """The next quote, backslash or control character; -1 if there is none before the end."""
    while at < end:
        first = special_in(at)
        at += first
        if first < STEP:
            return at if at < end else -1
    return -1


@inlined
def _closing(at: int, end: int) -> int:
    """The quote that closes a string without escapes; `at` is after the one that opens it."""
    at = _special(at, end)
    return at if at >= 0 and byte(at) == 34 else -1


@compiled
def _closing_escaped(at: int, end: int) -> int:
    """The quote that closes a string, which may have escapes of two characters."""
    while True:
        at = _special(at, end)
        if at < 0 or byte(at) == 34:
            return at
        if byte(at) != 92 or at + 1 >= end or not _ESCAPED[byte(at + 1)]:
            return -1
        at += 2


@inlined
def _number(at: int, end: int, is_json: bool) -> tuple[int, int, int, int, bool]:
    """A number: the place after it, its digits as a whole number, how many of them, the exponent, and if it is whole.

    The digits are wrong if there are more than 18, as the caller sees from how many. With `is_json`, a zero does not
    precede other digits. The place is -1 if it is no number, or has an exponent of more than three digits.
    """
    none = (-1, 0, 0, 0, False)
    is_negative = byte(at) == 45
    at += is_negative
    digits, many, exponent, first = 0, 0, 0, at
    while at < end and byte(at) - 48 < 10 and byte(at) >= 48:
        digits = digits * 10 + (byte(at) - 48)
        at += 1
    many = at - first
    if many == 0 or (is_json and many > 1 and byte(first) == 48):
        return none
    is_whole = True
    if at < end and byte(at) == 46:
        is_whole = False
        at += 1
        first = at
        while at < end and byte(at) - 48 < 10 and byte(at) >= 48:
            digits = digits * 10 + (byte(at) - 48)
            at += 1
        if at == first:
            return none
        many += at - first
        exponent = first - at
    if at < end and byte(at) | 32 == 101:
        is_whole = False
        at += 1
        sign = 1
        if at < end and (byte(at) == 43 or byte(at) == 45):
            sign = 44 - byte(at)
            at += 1
        first, power = at, 0
        while at < end and byte(at) - 48 < 10 and byte(at) >= 48:
            power = power * 10 + (byte(at) - 48)
            at += 1
        if at == first or at - first > 3:
            return none
        exponent += sign * power
    return at, -digits if is_negative else digits, many, exponent, is_whole


@inlined
def _word(at: int, end: int) -> int:
    """The place after `true`, `false` or `null`."""
    text = load(at)
    if text & _FOUR == _TRUE or text & _FOUR == _NULL:
        return at + 4 if at + 4 <= end else -1
    if byte(at) == 102 and load(at + 1) & _FOUR == _ALSE:
        return at + 5 if at + 5 <= end else -1
    return -1


@compiled
def _nested(at: int, end: int) -> int:
    """The place after an object or an array, whose first bracket is at `at`."""
    depth, kinds, wants = 0, 0, 0  # what may come next: 0 a value, 1 the end of one, 2 a name
    while at < end:
        sign = byte(at)
        if sign == 32 or sign == 10 or sign == 13 or sign == 9:
            at += 1
        elif wants == 1:
            if sign == 44:
                wants = 2 if kinds & 1 else 0
                at += 1
            elif sign == (125 if kinds & 1 else 93):
                depth, kinds = depth - 1, kinds >> 1
                at += 1
                if depth == 0:
                    return at
            else:
                return -1
            if sign == 44:  # a bracket after a comma is an error that DuckDB allows
                while at < end and (byte(at) == 32 or byte(at) == 10 or byte(at) == 13 or byte(at) == 9):
                    at += 1
                if at >= end or byte(at) == 125 or byte(at) == 93:
                    return -1
        elif wants == 2:
            if sign == 125 and kinds & 1:
                wants = 1
                continue
            if sign != 34:
                return -1
            at = _closing_escaped(at + 1, end)
            if at < 0:
                return -1
            at += 1
            while at < end and (byte(at) == 32 or byte(at) == 10 or byte(at) == 13 or byte(at) == 9):
                at += 1
            if at >= end or byte(at) != 58:
                return -1
            at, wants = at + 1, 0
        elif sign == 123 or sign == 91:
            if depth == _DEEPEST:
                return -1
            depth, kinds = depth + 1, kinds << 1 | (sign == 123)
            wants = 2 if sign == 123 else 0
            at += 1
        elif sign == 93 and kinds & 1 == 0 and depth and wants == 0:
            wants = 1  # an empty array
        else:
            at = _scalar(at, end)
            if at < 0:
                return -1
            wants = 1
    return -1


@inlined
def _scalar(at: int, end: int) -> int:
    """The place after a string, a number or a word."""
    sign = byte(at)
    if sign == 34:
        at = _closing_escaped(at + 1, end)
        return at + 1 if at >= 0 else -1
    if sign == 45 or (sign >= 48 and sign <= 57):
        return _number(at, end, True)[0]
    return _word(at, end)


@inlined
def _two(at: int) -> int:
    """The number that two digits are; a negative one if they are none."""
    tens, ones = byte(at) - 48, byte(at + 1) - 48
    return tens * 10 + ones if tens >= 0 and tens < 10 and ones >= 0 and ones < 10 else -10_000


@inlined
def _day(at: int) -> int:
    """The days since 1970 of a date such as 2026-01-31, from 1901 to 9998; else a negative number below -99,999."""
    year = _two(at) * 100 + _two(at + 2)
    month, day = _two(at + 5), _two(at + 8)
    if byte(at + 4) != 45 or byte(at + 7) != 45 or year < 1901 or year > 9998 or month < 1 or month > 12 or day < 1:
        return -100_000
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _DAYS[month] + (is_leap and month == 2):
        return -100_000
    year -= month <= 2
    month += 9 if month <= 2 else -3
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719_469


@inlined
def _minute(at: int) -> int:
    """The minutes since 1970 of a time such as 2026-01-31T12:00; a number below all of them if it is none."""
    day, hour, minute = _day(at), _two(at + 11), _two(at + 14)
    is_time = (byte(at + 10) == 84 or byte(at + 10) == 32) and byte(at + 13) == 58
    if day <= -100_000 or not is_time or hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return _NO_MINUTE
    return (day * 24 + hour) * 60 + minute


_NO_MINUTE = -(1 << 40)
_NO_TIME = -(1 << 62)


@inlined
def _time(at: int, end: int, minute: int) -> int:
    """The microseconds since 1970 of a time whose minutes are known, and which ends with the seconds or a zone."""
    second = _two(at + 17)
    if minute == _NO_MINUTE or byte(at + 16) != 58 or second < 0 or second > 59:
        return _NO_TIME
    at += 19
    micros, unit = 0, 100_000
    if at < end and byte(at) == 46:
        at += 1
        first = at
        while at < end and byte(at) >= 48 and byte(at) <= 57:
            micros += (byte(at) - 48) * unit
            unit //= 10
            at += 1
        if at == first or at - first > 9:
            return _NO_TIME
    if at + 1 == end and byte(at) == 90:
        at += 1
    elif at + 6 == end and (byte(at) == 43 or byte(at) == 45) and byte(at + 3) == 58:
        hours, minutes = _two(at + 1), _two(at + 4)
        if hours < 0 or hours > 17 or minutes < 0 or minutes > 59:
            return _NO_TIME
        minute += (byte(at) - 44) * (hours * 60 + minutes)
        at += 6
    return (minute * 60 + second) * 1_000_000 + micros if at == end else _NO_TIME


@compiled
def match(
    begin: int, starts: Any, edges: Any, words: Any, masks: Any, roots: Any, columns: Any, required: int,
    wholes: Any, doubles: Any, offsets: Any, texts: Any, valid: Any, matched: Any,
) -> int:  # fmt: skip
    """Decode the records that match, one after the other, into the columns; how many did.

    The records are at the address `begin`, between `starts`. `edges`, `words` and `masks` are the shapes
    (`formats.shapes`); `roots` holds the first edge of each node. The other arrays are results.
    """
    records, taken = len(starts) - 1, 0
    everything = (1 << len(columns)) - 1
    recent, minutes = np.zeros((len(columns), 2), np.uint64), np.zeros(len(columns), np.int64)
    written, width = np.int64(texts.ctypes.data), texts.shape[1]
    for record in range(records):
        at, end = begin + starts[record], begin + starts[record + 1]
        node, seen, found, is_matched = 0, 0, 0, False
        while True:
            edge = roots[node]
            while edge >= 0:
                length, word = edges[edge, LENGTH], edges[edge, WORD]
                place, last = at, at + length
                if last <= end:
                    while place < last and (load(place) ^ words[word]) & masks[word] == _U(0):
                        place += 8
                        word += 1
                    if place >= last:
                        break
                edge = edges[edge, NEXT]
            if edge < 0:
                break
            at, node = last, edges[edge, NODE]
            if node < 0:
                is_matched = at == end
                break
            if at >= end:
                break
            kind, column, first, sign = edges[edge, KIND], edges[edge, COLUMN], at, byte(at)
            if kind == SKIP:
                if sign == 34:
                    at = _special(at + 1, end)
                    if at >= 0 and byte(at) == 92:
                        at = _closing_escaped(at, end)
                    if at < 0 or byte(at) != 34:
                        break
                    at += 1
                    continue
                at = _nested(at, end) if sign == 123 or sign == 91 else _scalar(at, end)
                if at < 0:
                    break
                continue
            bit = 1 << column
            if seen & bit:
                break
            seen |= bit
            place = columns[column, PLACE]
            if sign == 34:
                first = at + 1
                last = _closing(first, end)
                at = last + 1
            elif sign == 45 or (sign >= 48 and sign <= 57):
                last = at = _number(at, end, True)[0]
            elif sign == 123 or sign == 91:
                last = at = _nested(at, end) if kind == STRING else -1
            else:
                last = at = _word(at, end)
            if last < 0:
                break
            if sign == 110:
                continue
            found |= bit
            if kind == STRING:
                if sign == 45 and _number(first, last, True)[1] == 0:
                    break
                base = np.int64(offsets[place, taken])
                to, by = written + place * width + base, first
                while by < last:
                    copy(to, by)
                    to += STEP
                    by += STEP
                offsets[place, taken + 1] = base + (last - first)
            elif kind == TIMESTAMP:
                if sign != 34 or last - first < 19:
                    break
                head, tail = load(first), load(first + 8)
                if head != recent[column, 0] or tail != recent[column, 1]:
                    minutes[column] = _minute(first)
                    recent[column, 0], recent[column, 1] = head, tail
                wholes[place, taken] = _time(first, last, minutes[column])
                if wholes[place, taken] == _NO_TIME:
                    break
            elif kind == BOOLEAN:
                text, size = load(first), last - first
                is_true = size == 4 and text & _FOUR == _TRUE
                if not is_true and not (size == 5 and byte(first) == 102 and load(first + 1) & _FOUR == _ALSE):
                    break
                wholes[place, taken] = is_true
            elif kind == DATE:
                if sign != 34 or last - first != 10:
                    break
                wholes[place, taken] = _day(first)
                if wholes[place, taken] == -100_000:
                    break
            else:
                if first == last:
                    break
                after, digits, many, exponent, is_whole = _number(first, last, sign != 34)
                if after != last or many > _MOST_DIGITS:
                    break
                if kind == DOUBLE:
                    is_exact = digits < _EXACT and digits > -_EXACT and exponent > -23 and exponent < 23
                    if not is_exact or (digits == 0 and byte(first) == 45):
                        break
                    value = float(digits)
                    doubles[place, taken] = value / _POWERS[-exponent] if exponent < 0 else value * _POWERS[exponent]
                    continue
                shift = columns[column, SCALE] + exponent
                if kind == INTEGER and not is_whole:
                    break
                if kind == DECIMAL and (exponent > 0 or shift < 0 or many + shift > _MOST_DIGITS):
                    break
                value_ = digits * _WHOLE_POWERS[shift]
                if value_ < columns[column, LOW] or value_ > columns[column, HIGH]:
                    break
                wholes[place, taken] = value_
        matched[record] = is_matched and found & required == required
        if not matched[record]:
            continue
        if found != everything:
            for column in range(len(columns)):
                if found >> column & 1 == 0:
                    valid[column, taken] = 0
                    if columns[column, IS_TEXT]:
                        offsets[columns[column, PLACE], taken + 1] = offsets[columns[column, PLACE], taken]
        taken += 1
    return taken


def warm_up() -> None:
    """Compile, or read what was compiled before, by matching nothing."""
    none, place, words = np.zeros((1, 1), np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64)
    text, flags = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.bool_)
    columns, edges = np.zeros((1, 5), np.int64), np.zeros((1, 6), np.int64)
    line_ends(text.ctypes.data, 0, 0, place)
    match(
        text.ctypes.data, place, edges, words, words, place, columns, 0,
        none, np.zeros((1, 1)), none.astype(np.int32), text, flags, flags[0],
    )  # fmt: skip
