"""JSON decoded by shape beside DuckDB's parser, on one core: decoding alone, and the whole edge of the Yahoo benchmark.

The figures are records a second of CPU, the best of several turns: both ways run by turns, over the same records.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from bench.figures import Figure, figure
from millrace import memory
from millrace.edge.decode import JsonDecoder
from millrace.formats import compiled
from millrace.model.schema import parse_schema
from millrace.plan.compile import stage_of
from millrace.sources.files import lines
from millrace.spark.task import Reading, Sent
from millrace.testing import yahoo

MANY, TURNS = 200_000, 7


def run() -> list[Figure]:
    """Decoding, then the edge."""
    if compiled.kernel() is None:
        print("Numba is not installed: pip install 'millrace[fast]'")
        return []
    return [*_decoding(), _edge()]


def _yahoo() -> bytes:
    with TemporaryDirectory(prefix="millrace-bench-") as folder:
        yahoo.write(Path(folder), "json", 1, MANY)
        return (Path(folder) / "0000.json").read_bytes()


def _mixed(number: int) -> str:
    """Two producers, fields that some records have, and of a hundred records an escape and a misfit."""
    user = "us\\u00e4er" if number % 100 == 3 else f"user-{number % 5000}"
    amount = "much" if number % 100 == 7 else f"{number % 900}.{number % 100:02}"
    at = f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z"
    if number % 2:
        note = f', "note": "some words {number}"' if number % 3 else ""
        return f'{{"at": "{at}", "user": "{user}", "amount": "{amount}"{note}}}\n'
    return (
        f'{{"id":{number},"user":"{user}","amount":"{amount}","at":"{at}","ok":{"true" if number % 5 else "null"}}}\n'
    )


def _wide(number: int) -> str:
    fields = {f"field_{place:02}": f"value {number * place % 9973}" for place in range(57)}
    return json.dumps({"user": f"user-{number % 5000}", **fields, "n": number, "amount": "1.25"}) + "\n"


def _numbers(number: int) -> str:
    return (
        f'{{"id":{number},"n":{number * 7919},"x":{number / 7:.6f},"y":{number % 100}.5,"price":{number % 900}.99}}\n'
    )


def _nested(number: int) -> str:
    tags = [f"t{place}" for place in range(number % 5)]
    inner = {"agent": {"name": "browser", "version": [1, number % 9]}, "tags": tags, "empty": {}}
    return json.dumps({"user": f"user-{number % 5000}", "context": inner, "n": number}) + "\n"


def _decoding() -> list[Figure]:
    made = {
        "Yahoo, 3 of 7 fields": (_yahoo(), yahoo.SCHEMA, {"ad_id", "event_type", "event_time"}),
        "two producers, optional fields, 1% escapes, 1% misfits": (
            _lines(_mixed), "id BIGINT, user STRING, amount DOUBLE, at TIMESTAMP", None,
        ),
        "wide, 3 of 60 fields, 1.5 KB": (_lines(_wide, MANY // 8), "user STRING, n BIGINT, amount DOUBLE", None),
        "numbers": (_lines(_numbers), "id BIGINT, n BIGINT, x DOUBLE, y DOUBLE, price DECIMAL(9, 2)", None),
        "nested values": (_lines(_nested), "user STRING, n BIGINT", None),
    }  # fmt: skip
    figures = []
    for name, (data, schema, wanted) in made.items():
        texts, decoder = lines("bench", data).texts, JsonDecoder(parse_schema(schema), wanted)
        assert texts is not None
        many = len(texts)
        spent = _turns(lambda d=decoder, t=texts: d.decode(t), lambda d=decoder, t=texts: d.parse(t))  # type: ignore[misc]
        print(f"{name}: {decoder.by_shape.matched / decoder.by_shape.records:.1%} matched", flush=True)
        figures.append(figure(f"JSON by shape beside DuckDB, {name}", many / spent[0], many / spent[1], "records/s"))
    return figures


def _lines(record: Callable[[int], str], many: int = MANY) -> bytes:
    return "".join(map(record, range(many))).encode()


def _edge() -> Figure:
    """From the bytes of a file to partials: with compiled code, and as it is without Numba."""
    data, source = _yahoo(), memory("events", yahoo.SCHEMA)
    readings = [Reading([(0, stage_of("views", yahoo.query(source)))], source, {}) for _ in range(2)]
    answers: list[list[str]] = [[], []]

    def take(number: int) -> None:
        kernel, sent = compiled._kernel, Sent()
        if number:
            compiled._kernel, compiled._decoded = None, -(1 << 60)
        try:
            readings[number].take(lines("bench", data), None, {0: sent})  # type: ignore[arg-type]
        finally:
            compiled._kernel = kernel
        answers[number] = sorted(map(repr, pa.concat_tables(sent.rows).to_pylist()))

    spent = _turns(lambda: take(0), lambda: take(1))
    assert answers[0] == answers[1]
    return figure("Yahoo, the whole edge by shape, beside one statement", MANY / spent[0], MANY / spent[1], "records/s")


def _turns(ours: Callable[[], object], theirs: Callable[[], object]) -> list[float]:
    """The least CPU seconds of each, by turns after one to warm up."""
    spent = np.full((TURNS + 1, 2), np.inf)
    for turn in range(TURNS + 1):
        for number, work in enumerate((ours, theirs)):
            began = time.thread_time()
            work()
            spent[turn, number] = time.thread_time() - began
    least: list[float] = spent[1:].min(axis=0).tolist()
    return least
