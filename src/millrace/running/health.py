"""What users are warned about while a pipeline runs: events that are too late, columns that no record has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.model.errors import closest
from millrace.sources.looked import Looked, combined
from millrace.spark.progress import BatchProgress

_SPAN, _SPANS = 10, 30
"""Events that are too late are counted by spans of ten seconds, over the last thirty spans."""
_EVENTS, _SHARE = 100, 0.05
"""A share above this of at least so many events is a warning."""
_FEW, _MANY = 10, 100
"""A column that is in none of so many records is a warning: few are enough if they have a field with a similar name."""


@dataclass(frozen=True, slots=True)
class Health:
    """The recent micro-batches of a run."""

    looked: Mapping[str, Looked] = field(default_factory=dict)
    """The fields of some records since the run was started, by source."""
    recent: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By output and span, how many elements there were, and how many of them were too late."""

    def after(self, progress: BatchProgress, at: float) -> "Health":
        """The health after one more micro-batch; `at` is in seconds of a clock that does not go back."""
        span = int(at // _SPAN)
        recent = {key: counts for key, counts in self.recent.items() if key[1] > span - _SPANS}
        for output, part in progress.parts.items():
            elements, late = recent.get((output, span), (0, 0))
            if part.elements:
                recent[output, span] = elements + part.elements, late + part.late
        return Health(combined([self.looked, progress.looked]), recent)

    @property
    def unknown(self) -> int:
        """The number of fields that are no columns."""
        return sum(len(looked.unknown) for looked in self.looked.values())

    @property
    def missing(self) -> int:
        """The number of columns that no record has."""
        return sum(len(looked.never) for looked in self.looked.values())

    def warnings(self) -> dict[str, str]:
        """A sentence for each problem, by what it is about."""
        return self._too_late() | self._misspelled()

    def _too_late(self) -> dict[str, str]:
        found = {}
        for output in dict.fromkeys(output for output, _ in self.recent):
            own = [counts for (name, _), counts in self.recent.items() if name == output]
            elements, late = map(sum, zip(*own, strict=True))
            if elements >= _EVENTS and late > _SHARE * elements:
                share = f"{100 * late / elements:.0f} percent of the events of the last minutes were too late"
                found[output] = f"{output}: {share}; raise delay= of event_time(), or lateness= of window()"
        return found

    def _misspelled(self) -> dict[str, str]:
        found = {}
        for source, looked in self.looked.items():
            for column in looked.never:
                meant = closest(column, looked.unknown)
                if looked.records < (_MANY if meant is None else _FEW):
                    continue
                hint = "" if meant is None else f"; is it {meant!r}, which the schema does not have?"
                none = f"column {column!r} is in none of {looked.records:,} records that were looked at"
                found[f"{source} {column}"] = f"{source}: {none}{hint}"
        return found
