"""The columnar engine: `advance(state, partials, watermark, now) -> (state, panes)`.

One call is one micro-batch of one shard: an input step, a watermark step and a clock step of `model.reference`, for
all its keys and windows at once. The function is pure; it does not change the state passed in.

A partial is one row for a (key, slice), the aggregate of `elements` elements. A call reads only the state rows that
may change: those that partials update, those whose window closes or expires and, if the trigger uses the clock,
those with new elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.clock import after_step
from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME
from millrace.model.pane import Mode, Timing
from millrace.model.query import Query
from millrace.model.window import CountWindow, Custom, Session
from millrace.panes.arms import STANDS, Armed, Bools, Ints, TriggerInputs, compile_trigger
from millrace.panes.changes import over_changes
from millrace.panes.columns import ColumnAnswers, Columnar, columnar
from millrace.panes.event_times import EventTimes
from millrace.panes.grouping import Grouping, group, identify, keep, lengths, offsets, pick
from millrace.panes.hashing import hash_keys, with_number
from millrace.panes.late import is_expired, listed
from millrace.panes.slices import windows_of
from millrace.panes.store import HASH, Located, RowStore, stack

_LATER = np.int64(END_OF_TIME)
"""The value of `first` in a group without new elements."""
TIMINGS = (Timing.EARLY, Timing.ON_TIME, Timing.LATE)
_CONTROL = ("start", "end", "new", "first", "index", "filled")


@dataclass(frozen=True, slots=True, eq=False)
class PaneState:
    """The state of a shard between micro-batches."""

    groups: RowStore = field(default_factory=RowStore)
    """One row for each open (key, window)."""
    arrivals: RowStore = field(default_factory=RowStore)
    """For count windows: the number of elements of each key that have arrived."""
    watermark: int = BEGINNING_OF_TIME
    now: int = 0
    dropped: int = 0
    seen: RowStore = field(default_factory=RowStore)
    """For a dedup: the keys seen so far."""
    errors: int = 0
    """The number of firings without an answer since the start."""
    failed: pa.Table | None = None
    """The firings without an answer in the call that returned this state: key, window, reason. It is not stored."""


@dataclass(slots=True)
class Work:
    """The rows that one micro-batch evaluates, with their changes."""

    rows: pa.Table
    """Keys, hash, partials and the panes to retract; columns that change are in the fields below."""
    places: Located
    """The positions in the state of the woken rows, which follow the rows that the bundle updated."""
    control: dict[str, Ints]
    arms: npt.NDArray[np.uint64]
    changed: Bools
    gone: Bools
    failed: list[pa.Table] = field(default_factory=list)


class Panes:
    """The engine of one query, with its compiled trigger and aggregates.

    With `changes`, partials come from changes and have a column `held`, the sum of their diffs. With `timed`, the
    tables of panes have a column `at`, the event time of the answer.
    """

    def __init__(self, query: Query, changes: bool = False, timed: bool = False) -> None:
        """Compile the trigger and the aggregates."""
        self.query = query
        self.changes = changes
        self.keys = query.key_columns
        self.aggregates: tuple[Columnar, ...]
        self.partials: tuple[tuple[str, ...], ...]
        if changes:
            signed = [over_changes(computed.aggregate) for computed in query.computed]
            self.aggregates = tuple(signed)
            self.partials = tuple(
                tuple(f"p{number}_{part}" for part in range(each.width)) for number, each in enumerate(signed)
            )
        else:
            self.aggregates = tuple(columnar(computed.aggregate) for computed in query.computed)
            self.partials = query.partial_columns
        self.times = EventTimes.of(query, changes) if timed else None
        self.counted = {**({"held": "held"} if changes else {}), **(self.times.counted if self.times else {})}
        """The columns of groups beside those of every query, and the column of partials that each comes from."""
        self.values = tuple(f"value{number}" for number in range(len(query.computed)))
        self.trigger: Armed = compile_trigger(query.when)

    @property
    def parts(self) -> list[tuple[Columnar, tuple[str, ...]]]:
        """The aggregates with the columns of their partials, and that of the event times, if there is one."""
        own = list(zip(self.aggregates, self.partials, strict=True))
        return own if self.times is None else [*own, *self.times.parts]

    def advance(
        self, state: PaneState, partials: pa.Table | None, watermark: int, now: int
    ) -> tuple[PaneState, list[pa.Table]]:
        """Add a bundle, then advance the watermark and the clock. The clock goes back only by more than jitter."""
        watermark, now = max(watermark, state.watermark), after_step(state.now, now)
        arrivals, dropped = state.arrivals, 0
        touched: list[pa.Table] = []
        taken = [_NOWHERE]
        if partials is not None and len(partials):
            arrivals, dropped, touched, places = self._take_in(state, partials.combine_chunks())
            taken.append(places)
        waking = self._waking(state, _joined(taken), watermark)
        work = self._work(touched, state.groups.take(waking), waking)
        panes: list[pa.Table] = []
        if work is not None:
            arrived = np.arange(len(work.rows)) < sum(map(len, touched))
            self._evaluate(work, arrived, state.watermark, state.watermark, state.now, panes)
            self._evaluate(work, ~work.gone, state.watermark, watermark, state.now, panes)
            if now < state.now:
                _move_arrivals_back(work, state.now - now)
            self._evaluate(work, ~work.gone, watermark, watermark, now, panes)
        groups = self._kept(state.groups, work, _joined(taken))
        failed = stack(work.failed) if work is not None and work.failed else None
        return replace(
            state, groups=groups, arrivals=arrivals, watermark=watermark, now=now, dropped=state.dropped + dropped,
            errors=state.errors + (0 if failed is None else len(failed)), failed=failed,
        ), panes  # fmt: skip

    def due(self, state: PaneState, follows_clock: bool) -> int | None:
        """The next instant of processing time at which a group may change without input; None if there is none.

        If the watermark `follows_clock`, windows also close and expire.
        """
        found: list[int] = []
        for segment in state.groups.segments:
            if self.trigger.uses_clock:
                waiting = segment.live & (segment.column("new") > 0)
                for instants in self.trigger.due(segment.column("first")[waiting]):
                    found += _least(instants, state.now + 1)
            if follows_clock and not isinstance(self.query.windowing, CountWindow):
                ends = segment.column("end")[segment.live]
                ahead = state.now - state.watermark
                found += [end + ahead for end in _least(ends, state.watermark + 1)]
                late = self.query.lateness
                found += [end + late + 1 + ahead for end in _least(ends, state.watermark - late)]
        return min(found, default=None)

    # Input: merge partials into groups.

    def _take_in(self, state: PaneState, partials: pa.Table) -> tuple[RowStore, int, list[pa.Table], Located]:
        """Merge a bundle into its groups.

        Returns the arrivals, the number of dropped elements, the updated groups, and the state rows they replace.
        """
        keys = hash_keys([partials[name].chunk(0) for name in self.keys], len(partials))
        elements = partials["elements"].to_numpy()
        arrivals = state.arrivals
        if isinstance(self.query.windowing, CountWindow):
            arrivals, owners, starts, ends = self._ordinals(state.arrivals, partials, keys, elements)
        elif isinstance(self.query.windowing, Custom):
            owners, starts, ends = listed(partials)
        else:
            owners, starts, ends = windows_of(self.query.windowing, partials["slice"].to_numpy())
        timely = ~is_expired(self.query, ends, state.watermark)
        new = self._new_rows(state, partials, keys, elements, owners[timely], starts[timely], ends[timely])
        if isinstance(self.query.windowing, Session):
            groups, places, refused = self._merge_sessions(state, new)
        else:
            groups, places, refused = self._merge_windows(state, new)
        accepted = np.zeros(len(partials), np.bool_)
        accepted[owners[timely][~refused]] = True
        has_window = np.zeros(len(partials), np.bool_)
        has_window[owners] = True
        return arrivals, int(elements[has_window & ~accepted].sum()), groups, places

    def _new_rows(
        self,
        state: PaneState,
        partials: pa.Table,
        keys: npt.NDArray[np.uint64],
        elements: Ints,
        owners: npt.NDArray[np.intp],
        starts: Ints,
        ends: Ints,
    ) -> pa.Table:
        """Partials as group rows, before they are merged with the state."""
        rows = partials.select([*self.keys, *(name for _, names in self.parts for name in names)])
        rows = pick(rows, owners).combine_chunks()
        hashes = keys[owners]
        if not isinstance(self.query.windowing, Session):
            hashes = with_number(hashes, starts)  # sessions are looked up by key alone
        many = len(owners)
        columns: dict[str, npt.NDArray[np.int64] | npt.NDArray[np.uint64]] = {
            HASH: hashes,
            "start": starts,
            "end": ends,
            "new": elements[owners],
            "first": np.full(many, state.now),
            "index": np.zeros(many, np.int64),
            "filled": elements[owners],
            "arm": np.zeros(many, np.uint64),
            **{name: partials[source].to_numpy()[owners] for name, source in self.counted.items()},
        }
        for name, column in columns.items():
            rows = rows.append_column(name, pa.array(column))
        return rows

    def _merge_windows(self, state: PaneState, new: pa.Table) -> tuple[list[pa.Table], Located, Bools]:
        """Merge new rows into the groups of their windows; rows of finished groups are refused."""
        on = [*self.keys, "start", "end"]
        same = identify([new[name].combine_chunks() for name in on], len(new))
        wanted = pick(new, same.firsts)
        asked, places = state.groups.find(wanted, on)
        before = state.groups.take(places)
        finished = np.zeros(same.count, np.bool_)
        if before:
            finished[asked] = self.trigger.is_finished(before[0]["arm"].to_numpy())
        refused = finished[same.ids]
        if refused.any():
            going = ~finished[asked]
            places, asked = places.take(np.flatnonzero(going)), asked[going]
            before = state.groups.take(places)
        if refused.all():
            return [], places, refused
        ids = np.concatenate([asked, same.ids[~refused]])
        whole = stack([*before, keep(new, ~refused)])
        numbers = np.cumsum(~finished) - 1
        return [self._merged(whole, group(numbers[ids], int((~finished).sum())))], places, refused

    def _merge_sessions(self, state: PaneState, new: pa.Table) -> tuple[list[pa.Table], Located, Bools]:
        """Merge the overlapping sessions of each key: rules 4, 9 and 13."""
        keys = identify([new[name].combine_chunks() for name in self.keys], len(new))
        if not len(new):
            return [], _NOWHERE, np.zeros(0, np.bool_)
        _, places = state.groups.find(pick(new, keys.firsts), self.keys)
        before = state.groups.take(places)
        old, whole = len(places), stack([*before, new])
        clusters = _overlapping(
            identify([whole[name].combine_chunks() for name in self.keys], len(whole)).ids,
            whole["start"].to_numpy(),
            whole["end"].to_numpy(),
        )
        is_new = np.arange(len(whole)) >= old
        arms = whole["arm"].to_numpy()
        starts, ends = clusters.min(whole["start"].to_numpy()), clusters.max(whole["end"].to_numpy())
        spans = (whole["start"].to_numpy() == starts[clusters.ids]) & (whole["end"].to_numpy() == ends[clusters.ids])
        # A session with unchanged bounds continues. Otherwise it is a new window, and its trigger restarts; only the
        # on-time bits are kept, if the window is closed. The answers of its parts stand until it answers.
        stays = clusters.max(spans & ~is_new)
        closed = state.watermark >= ends
        merged = clusters.bits(arms) & np.where(closed, self.trigger.on_time_bits | STANDS, STANDS)
        arm = np.where(stays, clusters.bits(arms), merged)
        over = stays & clusters.max(~is_new & self.trigger.is_finished(arms))
        touched = clusters.max(is_new) & ~over
        index = np.where(stays, clusters.max(whole["index"].to_numpy()), 0)
        refused = over[clusters.ids][old:]
        kept = np.flatnonzero(touched[clusters.ids])
        gone = places.take(kept[kept < old])
        if not len(kept):
            return [], gone, refused
        numbers = np.cumsum(touched) - 1
        rows = self._merged(pick(whole, kept), group(numbers[clusters.ids[kept]], int(touched.sum())))
        for name, column in (("start", starts), ("end", ends), ("arm", arm), ("index", index)):
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(column[touched]))
        return [rows], gone, refused

    def _merged(self, rows: pa.Table, same: Grouping) -> pa.Table:
        """Merge the rows of each group into one; a group with a row in the state keeps that row's arm and index."""
        columns = {name: pick(rows[name].combine_chunks(), same.firsts) for name in (*self.keys, HASH, "start", "end")}
        columns["new"] = pa.array(same.sum(rows["new"].to_numpy()))
        columns["first"] = pa.array(same.min(rows["first"].to_numpy()))
        columns["index"] = pa.array(same.max(rows["index"].to_numpy()))
        columns["filled"] = pa.array(same.sum(rows["filled"].to_numpy()))
        columns["arm"] = pa.array(same.bits(rows["arm"].to_numpy()))
        for name in self.counted:
            columns[name] = pa.array((same.sum if name == "held" else same.max)(rows[name].to_numpy()))
        for aggregate, names in self.parts:
            merged = aggregate.merge([rows[name].combine_chunks() for name in names], same)
            columns.update(zip(names, merged, strict=True))
        if "said" in rows.column_names:
            columns["said"] = same.lists(rows["said"].combine_chunks())
        return pa.table(columns)

    def _ordinals(
        self, arrivals: RowStore, partials: pa.Table, hashes: npt.NDArray[np.uint64], elements: Ints
    ) -> tuple[RowStore, npt.NDArray[np.intp], Ints, Ints]:
        """Rule 10: the ordinal of each element's group, from the number of earlier elements of its key."""
        assert isinstance(self.query.windowing, CountWindow)
        same = identify([partials[name].chunk(0) for name in self.keys], len(partials))
        wanted = partials.select(list(self.keys)).append_column(HASH, pa.array(hashes))
        wanted = pick(wanted, same.firsts)
        asked, places = arrivals.find(wanted, self.keys)
        before = np.zeros(same.count, np.int64)
        for found in arrivals.take(places):
            before[asked] = found["arrived"].to_numpy()
        rank = np.empty(len(partials), np.int64)
        rank[same.order] = np.arange(len(partials)) - same.starts[same.ids[same.order]]
        ordinal = (before[same.ids] + rank) // self.query.windowing.size
        added = wanted.append_column("arrived", pa.array(before + same.sum(elements)))
        return arrivals.put(places, added), np.arange(len(partials)), ordinal, ordinal + 1

    # Time: select the groups to evaluate, and emit their panes.

    def _waking(self, state: PaneState, taken: Located, watermark: int) -> Located:
        """The groups that the advance of time may change, except those in `taken`."""
        masks = []
        for number, segment in enumerate(state.groups.segments):
            if isinstance(self.query.windowing, CountWindow):
                awake = np.full(len(segment.live), watermark == END_OF_TIME)
            else:
                end = segment.column("end")
                closing = (end > state.watermark) & (end <= watermark)
                awake = closing | (end < watermark - self.query.lateness)
            if self.trigger.uses_clock:
                awake |= segment.column("new") > 0
            awake[taken.row[taken.segment == number]] = False
            masks.append(awake)
        return state.groups.where(masks)

    def _work(self, touched: list[pa.Table], woken: list[pa.Table], waking: Located) -> Work | None:
        if not touched and not woken:
            return None
        rows = stack([*touched, *woken])
        many = sum(map(len, touched))
        control = {name: rows[name].to_numpy().copy() for name in (*_CONTROL, *self.counted)}
        changed = np.arange(len(rows)) < many
        return Work(rows, waking, control, rows["arm"].to_numpy().copy(), changed, np.zeros(len(rows), np.bool_))

    def _evaluate(
        self, work: Work, where: Bools, before: int, watermark: int, clock: int, panes: list[pa.Table]
    ) -> None:
        """Evaluate the triggers `where` once; expired groups emit their remaining elements and are deleted."""
        look = self._look(work, before, watermark, clock)
        ready = where & self.trigger.ready(work.arms, look)
        if ready.any():
            work.arms = self.trigger.fire(work.arms, look, ready)
            last = self.trigger.is_finished(work.arms) | look.expired
            self._emit(work, np.flatnonzero(ready), look, last, panes)
        expired = where & look.expired
        if expired.any():
            left = np.flatnonzero(expired & (work.control["new"] > 0))
            if len(left):
                self._emit(work, left, look, expired, panes)
            work.gone |= expired

    def _look(self, work: Work, before: int, watermark: int, clock: int) -> TriggerInputs:
        control = work.control
        if isinstance(self.query.windowing, CountWindow):
            over = (control["filled"] >= self.query.windowing.size) | (watermark == END_OF_TIME)
            return TriggerInputs(control["new"], control["first"], clock, over, over, over)
        end = control["end"]
        closed = end <= watermark
        return TriggerInputs(
            control["new"],
            control["first"],
            clock,
            closed,
            closed & (end > before),
            end < watermark - self.query.lateness,
        )

    def _emit(
        self, work: Work, fired: npt.NDArray[np.intp], look: TriggerInputs, last: Bools, panes: list[pa.Table]
    ) -> None:
        """Rules 5 and 14: append the panes of firings, retractions first, and update their groups."""
        control = work.control
        answers = [
            aggregate.answers([pick(work.rows[name].combine_chunks(), fired) for name in names])
            for aggregate, names in zip(self.aggregates, self.partials, strict=True)
        ]
        timing = np.where(~look.closed, 0, np.where(look.closing, 1, 2))[fired].astype(np.int8)
        about = {name: pa.array(control[name][fired]) for name in ("start", "end", "index")}
        about |= {"timing": pa.array(timing), "last": pa.array(last[fired])}
        if self.times is not None and self.times.of_elements:
            about["at"] = pa.array(self.times.of_panes(work.rows, control, fired))
        about |= {name: each.values for name, each in zip(self.values, answers, strict=True)}
        said = pa.StructArray.from_arrays(list(about.values()), list(about))
        keys = pick(work.rows.select(list(self.keys)), fired)
        has_rows = control["held"][fired] != 0 if self.changes else np.ones(len(fired), np.bool_)
        answered = has_rows
        if any(each.failed for each in answers):
            answered = has_rows & self._note_failed(work, keys, said, answers, has_rows)
        all_said, said = said, said if answered.all() else said.filter(pa.array(answered))
        if self.query.mode is Mode.RETRACTING:
            panes.extend(self._retractions(work, fired))
            self._remember(work, fired, said, answered)
        if not answered.all():
            panes.extend(self._in_place(keys, all_said, ~answered & ((work.arms[fired] & STANDS) != 0)))
        work.arms[fired] = np.where(answered, work.arms[fired] | STANDS, work.arms[fired] & ~STANDS)
        panes.append(self._pane_rows(keep(keys, answered), said, 1))
        control["index"][fired[answered]] += 1
        control["new"][fired] = 0
        control["first"][fired] = _LATER
        work.changed[fired] = True
        if self.query.mode is Mode.DISCARDING:
            self._clear(work, fired[has_rows])

    def _note_failed(
        self, work: Work, keys: pa.Table, said: pa.StructArray, answers: Sequence[ColumnAnswers], has_rows: Bools
    ) -> Bools:
        """Record the firings without an answer, with the reason. Returns the mask of those that have one."""
        reasons: dict[int, str] = {}
        for computed, each in zip(reversed(self.query.computed), reversed(answers), strict=True):
            reasons |= {row: f"{computed.name}: {reason}" for row, reason in each.failed.items() if has_rows[row]}
        if not reasons:
            return has_rows
        rows = pa.array(sorted(reasons))
        failed = keys.take(rows)
        for name in ("start", "end"):
            failed = failed.append_column(name, said.field(name).take(rows))
        work.failed.append(failed.append_column("reason", pa.array([reasons[row] for row in rows.to_pylist()])))
        answered = np.ones(len(keys), np.bool_)
        answered[list(reasons)] = False
        return answered

    def _in_place(self, keys: pa.Table, said: pa.StructArray, replaces: Bools) -> list[pa.Table]:
        """Rule 14: in accumulating mode, retractions without values in the place of standing answers."""
        index = said.field("index").to_numpy()
        if self.query.mode is not Mode.ACCUMULATING or not replaces.any():
            return []
        nothing = {name: pa.nulls(len(said), said.type.field(name).type) for name in self.values}
        columns = {said.type.field(n).name: column for n, column in enumerate(said.flatten())} | nothing
        columns["index"], columns["last"] = pa.array(np.maximum(index - 1, 0)), pa.array(np.zeros(len(said), np.bool_))
        taken = pa.StructArray.from_arrays(list(columns.values()), list(columns)).filter(pa.array(replaces))
        return [self._pane_rows(keep(keys, replaces), taken, -1)]

    def _retractions(self, work: Work, fired: npt.NDArray[np.intp]) -> list[pa.Table]:
        if "said" not in work.rows.column_names:
            return []
        lists = pick(work.rows["said"].combine_chunks(), fired)
        held = lengths(lists)
        if not held.sum():
            return []
        keys = pick(work.rows.select(list(self.keys)), np.repeat(fired, held))
        return [self._pane_rows(keys, lists.flatten(), -1)]

    def _remember(self, work: Work, fired: npt.NDArray[np.intp], said: pa.StructArray, answered: Bools) -> None:
        """Store the panes that the next firing of these groups retracts: only this one, if there is one."""
        lists = pa.ListArray.from_arrays(offsets(answered.astype(np.int64)), said)
        many, has_said = len(work.rows), "said" in work.rows.column_names
        if len(fired) < many:
            before = work.rows["said"].combine_chunks().cast(lists.type) if has_said else pa.nulls(many, lists.type)
            index = np.arange(many)
            index[fired] = many + np.arange(len(fired))
            lists = pa.concat_arrays([before, lists]).take(pa.array(index))
        rows = work.rows.drop_columns(["said"]) if has_said else work.rows
        work.rows = rows.append_column("said", lists)

    def _clear(self, work: Work, fired: npt.NDArray[np.intp]) -> None:
        where = np.zeros(len(work.rows), np.bool_)
        where[fired] = True
        if self.times is not None:
            self.times.clear(work.control, fired)
        for aggregate, names in zip(self.aggregates, self.partials, strict=True):
            cleared = aggregate.clear([work.rows[name].combine_chunks() for name in names], where)
            for name, column in zip(names, cleared, strict=True):
                work.rows = work.rows.set_column(work.rows.column_names.index(name), name, column)

    def _pane_rows(self, keys: pa.Table, said: pa.StructArray, diff: int) -> pa.Table:
        fields = {said.type.field(number).name: column for number, column in enumerate(said.flatten())}
        columns = {name: keys[name] for name in self.keys}
        for name in ("start", "end", "index", "timing", "last"):
            columns[name] = fields[name]
        columns["diff"] = pa.array(np.full(len(said), diff, np.int8))
        if self.times is not None:
            columns["at"] = fields["at"] if "at" in fields else pc.subtract(fields["end"], 1)
        for name in self.values:
            columns[name] = fields[name]
        return pa.table(columns)

    def _kept(self, groups: RowStore, work: Work | None, taken: Located) -> RowStore:
        """The state after the evaluated rows are updated or removed."""
        if work is None:
            return groups.put(taken)
        many = len(work.rows) - len(work.places)
        woken = np.flatnonzero((work.changed | work.gone)[many:])
        stays = work.changed & ~work.gone
        rows = work.rows
        for name, column in (*work.control.items(), ("arm", work.arms)):
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(column))
        return groups.put(_joined([taken, work.places.take(woken)]), keep(rows, stays))


def _move_arrivals_back(work: Work, by: int) -> None:
    """Rule 15. `work` holds every group with new elements if the trigger uses the clock; otherwise none is needed."""
    held = work.control["new"] > 0
    work.control["first"][held] -= by
    work.changed |= held


def _least(values: Ints, least: int) -> list[int]:
    """The least value that is at least `least`; none if there is no such value."""
    above = values[values >= least]
    return [int(above.min())] if len(above) else []


_NOWHERE = Located(np.zeros(0, np.intp), np.zeros(0, np.intp))


def _joined(places: Sequence[Located]) -> Located:
    return Located(np.concatenate([p.segment for p in places]), np.concatenate([p.row for p in places]))


def _overlapping(keys: Ints, starts: Ints, ends: Ints) -> Grouping:
    """Group the rows of a key whose spans overlap, directly or through others; spans that only touch do not overlap."""
    order = np.lexsort((starts, keys))
    # The running maximum of the ends within a key. Ranks are used so that each key starts above all keys before it.
    ranks = np.unique(ends, return_inverse=True)[1].astype(np.int64)
    top = ranks.max(initial=0) + 1
    furthest = np.maximum.accumulate(keys[order] * top + ranks[order])
    different, rank_of = np.unique(ends), furthest % top
    opens = np.ones(len(order), np.bool_)
    opens[1:] = (keys[order][1:] != keys[order][:-1]) | (starts[order][1:] >= different[rank_of[:-1]])
    ids = np.empty(len(order), np.int64)
    ids[order] = np.cumsum(opens) - 1
    return group(ids, int(opens.sum()))
