"""The state of a run as an HTML table, for notebooks."""

from html import escape

from millrace.model.duration import SECOND, format_duration, to_datetime
from millrace.spark.progress import BatchProgress

_HEADINGS = ("output", "watermark", "behind", "open windows", "state", "too late", "errors", "answers")


def as_html(pipeline: str, summary: str, progress: BatchProgress | None, behind: int | None) -> str:
    """The pipeline, its summary, and a row for each output with the state after the last micro-batch."""
    title = f"<b>{escape(pipeline)}</b> {escape(summary)}"
    if progress is None:
        return f"<div>{title}</div>"
    rate = f"batch {progress.batch}: {progress.rows_per_second:,.0f} rows/s, {progress.seconds:.2f} s"
    rate += "" if behind is None else f"; {behind:,} records behind"
    head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    rows = []
    for name, part in progress.outputs.items():
        lag = "" if part.lag is None else format_duration(max(0, part.lag // SECOND * SECOND))
        cells = (
            name, instant(part.watermark), lag, f"{part.groups:,}", f"{part.bytes / 1e6:.1f} MB", f"{part.dropped:,}",
            f"{part.errors:,}", f"{part.answers:,}",
        )  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div>{title}{table}<small>{escape(rate)}</small></div>"


def instant(microseconds: int | None) -> str:
    """An instant as text, to the second."""
    if microseconds is None:
        return "unknown"
    try:
        return f"{to_datetime(microseconds):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError):
        return "the end"
