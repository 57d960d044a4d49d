"""The summary of the demo: its counts, the comparison of its view with a batch, and commands to try next."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.text import Text

from millrace.demo.charts import VIEW
from millrace.demo.tally import Tally
from millrace.views.store import Store


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the rows of the view and of the batch."""

    rows: int
    """Rows of the view."""
    missing: int
    """Rows of the batch that the view does not have."""
    extra: int
    """Rows of the view that the batch does not have, or that the view has twice."""

    @property
    def is_same(self) -> bool:
        """Whether they are equal."""
        return not self.missing and not self.extra


def compare(store: Store, found: pa.Table) -> Comparison:
    """Compare the view in a store with the answers of the batch."""
    held = store.query(f"SELECT track, window_start, plays, listeners FROM {VIEW}").rows
    served = [(track, str(start)[:16].replace(" ", "T"), *counts) for track, start, *counts in held]
    computed = {
        (row["track"], f"{row['window_start']:%Y-%m-%dT%H:%M}", row["plays"], row["listeners"])
        for row in found.to_pylist()
    }
    twice = len(served) - len(set(served))
    return Comparison(len(served), len(computed - set(served)), len(set(served) - computed) + twice)


def summary(tally: Tally, compared: Comparison | None, seconds: float, program: str | None = None) -> Text:
    """The summary that is printed at the end."""
    text = Text("\n")
    if compared is None or tally.first is None:
        text.append(f"Ended after {seconds:.0f} s, before the first answers.\n")
    else:
        text.append(f"Ended after {seconds:.0f} s; the first answers came after {tally.first:.0f} s.\n")
        text.append(f"{tally.rows:,} plays were counted in {tally.batches:,} micro-batches.\n")
        marks = ", ".join(f"{many:,} {mark}" for mark, many in tally.answers.items())
        text.append(f"Answers: {marks}; {tally.corrections:,} were retracted and replaced.\n")
        if compared.is_same:
            text.append("The view equals a batch over the same log", style="green")
            text.append(f": {compared.rows:,} rows, none differs.\n")
        else:
            text.append("The view differs from a batch over the same log", style="red")
            text.append(f": {compared.missing:,} rows missing, {compared.extra:,} too many.\n")
    return text.append(_next(program or _program()))


def _next(program: str) -> str:
    tries = (
        ("demo --paper", "the Dataflow paper's example"),
        ("init charts", "a project of your own, to run and change"),
        (f"explain {_shortest(Path(__file__).with_name('charts.py'))}", "this pipeline"),
    )
    return "Try next:\n" + "\n".join(f"    {program} {arguments}  # {what}" for arguments, what in tries)


def _program() -> str:
    """The command of the program: its name if the shell finds that, otherwise its path."""
    beside = Path(sys.executable).with_name("millrace")
    return "millrace" if shutil.which("millrace") or not beside.exists() else _shortest(beside)


def _shortest(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
