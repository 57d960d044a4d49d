"""What a fused edge makes of a bundle."""

from dataclasses import dataclass, field

import pyarrow as pa

from millrace.model.clock import Untimely
from millrace.model.watermark import Seen


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The result of processing a bundle."""

    rows: pa.Table
    """Partials, or rows to be lifted; for a plain stream, its rows."""
    seen: Seen = field(default_factory=Seen)
    timeless: tuple[tuple[int, Untimely], ...] = ()
    """The numbers of the rows that have no event time, or one that is too far ahead, with the reasons."""
    bad: tuple[tuple[int, str], ...] = ()
    """The numbers of the rows for which an expression has no value, with the reasons."""
    late: tuple[tuple[int, int], ...] = ()
    """The numbers and the slices of the rows that are too late, if partials were asked for them."""
