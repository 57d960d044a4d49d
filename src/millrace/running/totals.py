"""The counts of a run over all its micro-batches."""

from dataclasses import dataclass

from millrace.spark.progress import BatchProgress


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of a run since it was started."""

    batches: int = 0
    rows: int = 0
    """Records read."""
    answers: int = 0
    """Rows that were answered. If a query goes to a view and to a sink, its answers count once."""
    dead_letters: int = 0
    late: int = 0
    """Records that came too late, since the first start of the pipeline; one that several outputs drop counts once."""
    open_windows: int = 0
    """How many (key, window) are open now."""
    errors: int = 0
    """Answers without a value, since the first start of the pipeline."""

    def after(self, progress: BatchProgress) -> "Totals":
        """The counts including one more micro-batch."""
        return Totals(
            self.batches + 1,
            self.rows + progress.rows,
            self.answers + progress.answers,
            self.dead_letters + progress.dead_letters,
            progress.late,
            progress.open_windows,
            progress.errors,
        )

    def summary(self, seconds: float) -> str:
        """The counts in a line, with the duration of the run. Counts of problems are left out while they are 0."""
        said = [many(self.rows, "row") + " in " + many(self.batches, "micro-batch"), many(self.answers, "answer")]
        said += [many(self.open_windows, "window") + " open"] if self.open_windows else []
        said += [f"{self.late:,} too late"] if self.late else []
        said += [many(self.errors, "error")] if self.errors else []
        said += [many(self.dead_letters, "dead letter")] if self.dead_letters else []
        return ", ".join([*said, f"{seconds:.1f} s"])


def many(count: int, noun: str) -> str:
    """A count with its noun, in the singular or the plural.

    >>> many(1, "row"), many(2_000, "micro-batch")
    ('1 row', '2,000 micro-batches')
    """
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('ch') else 's'}"
