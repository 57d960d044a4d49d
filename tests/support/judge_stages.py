"""A second reading of the rules of stages in docs/transcripts.md: joins and graphs, on the queries of `judge`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from judge import INF, Change, Query, Row, Spec


@dataclasses.dataclass
class Join:
    """What a join has said is a function of all rows that it accepted and of its watermarks; a micro-batch says the
    difference. Rows of a side are named after it: `names` are the two sides."""

    names: tuple[str, str]
    how: str
    span: tuple[int, int] | None = None
    window: Spec | None = None
    lateness: tuple[int, int] = (0, 0)
    early: bool = False
    columns: tuple[tuple[str, ...], tuple[str, ...]] = (("v",), ("v",))

    def __post_init__(self) -> None:
        self.watermarks = [-INF, -INF]
        self.rows: list[Counter[tuple[Row, int]]] = [Counter(), Counter()]
        self.said: Counter[tuple[Row, int]] = Counter()
        self.first: dict[Any, int] = {}  # of a semi join: the time of the pair with the first partner
        self.dropped = 0

    @property
    def watermark(self) -> int:
        lo, hi = self.span or (0, 0)
        behind = {"left": max(hi, 0) + self.lateness[1], "right": max(-lo, 0) + self.lateness[0]}
        behind |= {"anti": behind["left"], "full": max(behind.values()), "inner": 0, "semi": 0}
        least = min(self.watermarks)
        return least if self.early or abs(least) >= INF else least - behind[self.how]

    def step(self, changes: tuple[list[Change], list[Change]], watermarks: tuple[int, int]) -> list[Change]:
        for side in (0, 1):
            for c in changes[side]:
                if c.at < self.watermarks[side] - self.lateness[side]:
                    self.dropped += 1
                else:
                    self.rows[side][c.row, c.at] += c.diff
            self.watermarks[side] = max(self.watermarks[side], watermarks[side])
        before, self.said = self.said, self._all()
        return [
            Change(row, at, diff // abs(diff))
            for row, at in before | self.said
            for diff in [self.said[row, at] - before[row, at]]
            for _ in range(abs(diff))
        ]

    def _windows(self, at: int) -> list[tuple[int, int] | None]:
        return [None] if self.window is None else [*Query(self.window)._spans(at)]

    def _paired(self, left: tuple[Row, int], right: tuple[Row, int]) -> bool:
        if dict(left[0])["k"] is None or dict(left[0])["k"] != dict(right[0])["k"]:
            return False
        return self.span is None or self.span[0] <= right[1] - left[1] <= self.span[1]

    def _gone(self, side: int, at: int, window: tuple[int, int] | None) -> bool:
        """Whether a row without a partner is let go (rule 15)."""
        other, late = self.watermarks[1 - side], self.lateness[1 - side]
        if self.early or other >= INF:
            return True
        if window is not None:
            return other >= window[1] + late
        assert self.span is not None
        return other > at + late + (self.span[1] if side == 0 else -self.span[0])

    def _all(self) -> Counter[tuple[Row, int]]:
        said: Counter[tuple[Row, int]] = Counter()
        partners: list[Counter[Any]] = [Counter(), Counter()]
        found: dict[Any, list[int]] = {}
        for left, n in self.rows[0].items():
            for right, m in self.rows[1].items():
                for window in self._windows(left[1]):
                    if self._paired(left, right) and window in self._windows(right[1]):
                        partners[0][left, window] += m
                        if m > 0:
                            found.setdefault((left, window), []).append(right[1])
                        partners[1][right, window] += n
                        if self.how not in ("semi", "anti"):
                            said[self._row(left[0], right[0], window), max(left[1], right[1])] += n * m
        for side, outer in ((0, ("left", "full", "anti", "semi")), (1, ("right", "full"))):
            for (row, at), n in self.rows[side].items():
                for window in self._windows(at) if self.how in outer else []:
                    if self.how == "semi" and n and partners[0][(row, at), window] > 0:
                        time = self.first.setdefault((row, at, window), max(at, min(found[(row, at), window])))
                        said[self._row(row, None, window), time] += n
                    elif self.how == "semi":
                        self.first.pop((row, at, window), None)
                    elif not partners[side][(row, at), window] and self._gone(side, at, window):
                        alone = self._row(row, None, window) if side == 0 else self._row(None, row, window)
                        said[alone, at] += n
        return Counter({key: n for key, n in said.items() if n})

    def _row(self, left: Row | None, right: Row | None, window: tuple[int, int] | None) -> Row:
        columns = [("k", dict(left or right or ())["k"])]
        for side, row in ((0, left), (1, right)):
            if side == 0 or self.how not in ("semi", "anti"):
                for name in self.columns[side]:
                    both = name in self.columns[1 - side]
                    columns.append((f"{self.names[side]}_{name}" if both else name, dict(row)[name] if row else None))
        if window is not None:
            columns += [("window_start", window[0]), ("window_end", window[1])]
        return tuple(columns)


@dataclasses.dataclass
class Graph:
    """Stages by name, in an order in which each comes after its inputs: a query or None (rows as they are) with the
    names of its inputs, or a join with two. `where` and `event_time` apply to the rows of an input."""

    stages: dict[str, tuple[Query | Join | None, tuple[str, ...]]]
    where: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    event_time: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watermarks: dict[str, int] = {}

    def step(self, inputs: dict[str, list[Change]], watermarks: dict[str, int], clock: int) -> dict[str, list[Any]]:
        """A micro-batch of all stages; what each says: panes of a query, changes of others."""
        flow: dict[str, list[Change]] = dict(inputs)
        answers: dict[str, list[Any]] = {}
        for source, watermark in watermarks.items():
            self.watermarks[source] = max(watermark, self.watermarks.get(source, -INF))
        for name, (stage, names) in self.stages.items():
            marks = tuple(self.watermarks.get(n, -INF) for n in names)
            if isinstance(stage, Join):
                flow[name] = answers[name] = stage.step((flow.get(names[0], []), flow.get(names[1], [])), marks)  # type: ignore[arg-type]
                self.watermarks[name] = stage.watermark
                continue
            rows = [change for n in names for change in flow.get(n, [])]
            if name in self.where:
                column, bound = self.where[name]
                rows = [c for c in rows if dict(c.row)[column] is not None and dict(c.row)[column] > bound]
            if name in self.event_time:
                rows = [dataclasses.replace(c, at=dict(c.row)[self.event_time[name]]) for c in rows]
            self.watermarks[name] = min(marks)
            if stage is None:
                flow[name] = answers[name] = rows
            else:
                answers[name] = stage.step(rows, min(marks), clock)
                flow[name] = stage.changes(answers[name]) if stage.mode != "accumulating" else []
        return answers
