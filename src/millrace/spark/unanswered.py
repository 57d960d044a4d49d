"""Dead letters for firings that had no value: the output, the key and window, and the reason."""

from typing import Any

import pyarrow as pa

from millrace.model.plain import to_json
from millrace.model.query import WINDOW_COLUMNS
from millrace.model.stream import sources
from millrace.model.window import Window
from millrace.plan.plan import Stage


def letters_of(stage: Stage, failed: pa.Table | None) -> list[dict[str, Any]]:
    """One dead letter for each failed firing; its value is the key and the window as JSON."""
    query = stage.query
    if failed is None or query is None:
        return []
    read = ", ".join(source.name for source in sources(query.stream))
    about = {"source": read, "origin": stage.id, "partition": None, "offset": None, "output": stage.id, "hint": None}
    letters = []
    for row in failed.to_pylist():
        bounds = query.bounds(Window(row["start"], row["end"]))
        value = {name: row[key] for name, key in zip(query.keys, query.key_columns, strict=True)}
        value |= {column.name: bound for column, bound in zip(WINDOW_COLUMNS, bounds, strict=True)}
        letters.append({**about, "problem": row["reason"], "reason": row["reason"], "value": to_json(value)})
    return letters
