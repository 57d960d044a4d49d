"""The hub of live queries: a state machine without sockets, clock and store. Events go in, instructions come out.

Facts that stay true:

- Each state that a client is sent is the result of its query at the version that the message names.
- Subscriptions of one query share its result, its matching and its messages. Queries that differ share reads.
- A slow client changes nothing for others: its changes are held back as the latest state of each row, and sent when it
  has caught up; if that takes too long or too much, it is disconnected with tokens to resume.
- Nothing is held of a query without subscriptions, or of a view without queries.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import assert_never

from millrace.live import message
from millrace.live.events import (
    Backlog,
    Changes,
    ChangesRead,
    Disconnect,
    Event,
    Follow,
    Forgotten,
    Gone,
    Instruction,
    ReadChanges,
    ReadFailed,
    ReadSnapshot,
    Replaced,
    Resume,
    RightsChanged,
    SnapshotRead,
    Subscribe,
    Tick,
    Unfollow,
    Unsubscribe,
)
from millrace.live.followed import Followed, Result, by_query, distributed, reads_of
from millrace.live.grid import Grid
from millrace.live.matcher import Matcher
from millrace.live.query import LiveQuery
from millrace.live.result import PlainState, SortedState
from millrace.live.rowset import Rowset, Step, merged, plain_difference
from millrace.live.sending import Limits, Sender, body_of
from millrace.live.subscriber import Client, Phase, Subscriber
from millrace.live.token import Asked
from millrace.live.window import Shown, difference
from millrace.model.errors import MillraceError, PipelineError


class Hub:
    """Live queries of all clients."""

    def __init__(self, secret: bytes, limits: Limits | None = None, make_grid: Callable[[], Grid] = Grid) -> None:
        """Sign tokens with a secret; each view gets a grid of its own."""
        self._limits, self._make_grid = limits or Limits(), make_grid
        self._sender = Sender(secret, self._limits)
        self._views: dict[str, Followed] = {}
        self._clients: dict[str, Client] = {}
        self._numbers = count(1)
        self._done: list[Instruction] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._views and not self._clients

    def subscriptions(self, client: str) -> int:
        """The number of subscriptions of a client."""
        held = self._clients.get(client)
        return 0 if held is None else len(held.subs)

    def on(self, event: Event) -> list[Instruction]:
        """Take in an event. Returns what is to be done, in order."""
        match event:
            case Subscribe(client, sub, query, asked):
                self._subscribe(client, sub, query, asked, None)
            case Resume(client, sub, query, token, version, rights):
                known = token.generation, version, token.asked.rights
                self._subscribe(client, sub, query, replace(token.asked, rights=rights), known)
            case Unsubscribe(client, sub):
                held = self._clients.get(client)
                if held is not None and sub in held.subs:
                    self._drop(held.subs[sub])
            case Gone(client):
                self._gone(client)
            case SnapshotRead():
                self._snapshot(event)
            case ReadFailed(view, number, error):
                self._failed(view, number, error)
            case ChangesRead():
                self._missed(event)
            case Changes():
                self._changes(event)
            case Replaced(view, generation):
                if view in self._views and self._views[view].generation != generation:
                    self._renew(self._views[view], "the view was computed anew")
            case Forgotten(view):
                if view in self._views:
                    self._renew(self._views[view], "the changes are no longer kept")
            case Tick(now):
                self._tick(now)
            case Backlog(client, messages):
                self._backlog(client, messages)
            case RightsChanged(rights):
                for held in list(self._clients.values()):
                    for each in [each for each in held.subs.values() if each.asked.rights == rights]:
                        self._close(each, "the rights have changed")
            case _:
                assert_never(event)
        return self._flushed()

    def _flushed(self) -> list[Instruction]:
        done, self._done = self._done, []
        leaves = [each for each in done if isinstance(each, Disconnect)]
        return [*(each for each in done if not isinstance(each, Disconnect)), *self._sender.flushed(), *leaves]

    # Subscriptions come and go.

    def _subscribe(
        self, name: str, sub: str, query: LiveQuery, asked: Asked, known: tuple[int, int, str] | None
    ) -> None:
        """Add a subscription; of a resumed one the generation, the version and the rights that it had are known."""
        client = self._clients.setdefault(name, Client(name))
        if sub in client.subs:
            problem = PipelineError(f"there is a subscription {sub!r} already", "choose another name for sub")
            self._sender.tell(name, sub, message.error(problem))
            return
        view = self._views.get(query.shape.view)
        if view is None:
            view = self._views[query.shape.view] = Followed(query.shape.view, self._make_grid())
        result = view.results.get(query)
        if result is None:
            result = Result(query, next(self._numbers), self._state(query))
            view.results[query] = view.by_handle[result.handle] = result
        subscriber = Subscriber(client, sub, asked, result)
        client.subs[sub], result.subs[subscriber] = subscriber, None
        if asked.up_to is not None:
            view.ending[subscriber] = None
        if known is not None:
            self._resume(view, subscriber, *known)
        else:
            self._begin(view, subscriber)
        self._read(view)

    def _state(self, query: LiveQuery) -> PlainState | SortedState:
        return SortedState(query.offset, query.end, self._limits.slack) if query.is_sorted else PlainState()

    def _begin(self, view: Followed, sub: Subscriber) -> None:
        """Send a snapshot: at once if the rows are held, else when they have been read."""
        sub.phase, state = Phase.WAITING, sub.result.state
        if isinstance(state, SortedState) and sub.result.is_started and not sub.result.is_stale:
            self._send_snapshot(view, sub, state.shown, view.version_of(sub.result))
        else:
            view.wanted[sub.result.query] = sub.result

    def _drop(self, sub: Subscriber) -> None:
        """Forget a subscription, and what only it needed."""
        sub.phase = Phase.GONE
        client, result = sub.client, sub.result
        del client.subs[sub.name]
        client.held -= len(sub.pending)
        if not client.subs:
            del self._clients[client.name]
            self._sender.forget(client)
        del result.subs[sub]
        view = self._views[result.query.shape.view]
        view.forget(sub)
        if result.subs:
            return
        if result.is_started:
            view.grid.remove(result.handle)
        del view.results[result.query], view.by_handle[result.handle]
        view.wanted.pop(result.query, None)
        if not view.results:
            view.grid.close()
            del self._views[view.name]
            if view.is_followed:
                self._done.append(Unfollow(view.name))

    def _gone(self, name: str) -> None:
        client = self._clients.get(name)
        for sub in list(client.subs.values()) if client else ():
            self._drop(sub)
        self._sender.untold(name)

    def _close(self, sub: Subscriber, reason: str) -> None:
        self._tell(sub, message.closed(reason, self._sender.token(self._view_of(sub), sub)))
        self._drop(sub)

    def _tell(self, sub: Subscriber, body: str) -> None:
        self._sender.tell(sub.client.name, sub.name, body)

    def _view_of(self, sub: Subscriber) -> Followed:
        return self._views[sub.result.query.shape.view]

    def _send_snapshot(self, view: Followed, sub: Subscriber, shown: Shown, version: int) -> None:
        self._sender.snapshot(view, sub, ((entry.id, entry.text) for entry in shown), version)
        self._check_end(view, sub)

    # Reads.

    def _read(self, view: Followed) -> None:
        """Read what is wanted, one read at a time: what comes meanwhile is read together after it."""
        if view.reading is not None or not view.wanted:
            return
        view.reading, view.reads = next(self._numbers), reads_of(view.wanted.values())
        view.wanted = {}
        self._done.append(ReadSnapshot(view.name, view.reading, view.reads))

    def _snapshot(self, event: SnapshotRead) -> None:
        view = self._views.get(event.view)
        if view is None or view.reading != event.number:
            return
        if view.generation is not None and view.generation != event.generation:
            self._renew(view, "the view was computed anew")
            return
        if view.generation is None:
            view.generation, view.version, view.began = event.generation, event.version, event.version
            view.is_followed = True
            self._done.append(Follow(view.name, event.version))
        view.reading = None
        for read, table in zip(view.reads, event.tables, strict=True):
            rows = Rowset(table, read.queries[0].shape.key)
            is_all = read.end is None or len(rows) < read.end
            found = [
                (view.results[query], places) for query, places in distributed(read, rows) if query in view.results
            ]
            missed = view.missed([result for result, _ in found], event.version)
            for result, places in found:
                self._start(view, result, rows, places, is_all, event.version, missed.get(result.handle, {}))
        self._read(view)

    def _start(
        self, view: Followed, result: Result, rows: Rowset, places: list[int], is_all: bool, version: int, missed: Step
    ) -> None:
        """Take in the rows of a result as they were at a version, and what was missed since then."""
        shape = result.query.shape
        entries = {entry.id: entry for entry in (rows.entry(place, shape) for place in places)}
        state = result.state
        if isinstance(state, SortedState):
            state.begin(entries.values(), is_all)
            state.take(missed)
            shown = state.shown
        else:
            for id, (_, after) in missed.items():
                entries.pop(id, None)
                if after is not None:
                    entries[id] = after
            shown = tuple(entries.values())
            if not result.is_started:
                state.take({entry.id: (None, entry) for entry in shown})
        if not result.is_started:
            result.is_started, result.since = True, version
            view.grid.add(result.handle, result.query)
        elif isinstance(state, SortedState):
            result.since = max(result.since, version)
        if result.is_stale:
            view.wanted[result.query] = result
            return
        at = max(view.version, version)
        for sub in list(result.subs):
            match sub.phase:
                case Phase.WAITING:
                    self._send_snapshot(view, sub, shown, at)
                case Phase.RESUMING:
                    self._try_resume(view, sub)
                case Phase.LIVE:
                    self._renewed(view, sub)
                case Phase.GONE:
                    pass

    def _renewed(self, view: Followed, sub: Subscriber) -> None:
        """Send what has changed in a sorted result that was read again."""
        if not isinstance(sub.result.state, SortedState):
            return
        if view.version_of(sub.result) < sub.at:
            sub.shown = sub.result.state.shown
        elif self._sender.holds(sub):
            self._sender.hold(sub, {})
        else:
            self._sender.state(view, sub)
            self._check_end(view, sub)

    def _failed(self, name: str, number: int, error: MillraceError) -> None:
        view = self._views.get(name)
        if view is None or view.reading != number:
            return
        view.reading = None
        for query in [query for read in view.reads for query in read.queries if query in view.results]:
            for sub in list(view.results[query].subs):
                self._tell(sub, message.error(error))
                self._drop(sub)
        if self._views.get(name) is view:
            self._read(view)

    def _renew(self, view: Followed, reason: str) -> None:
        """Begin anew with all results of a view."""
        view.generation, view.version, view.reading, view.recent = None, 0, None, []
        view.grid.close()
        view.resuming, view.caught, view.grid = {}, {}, self._make_grid()
        for result in view.results.values():
            result.is_started, result.since, result.state = False, 0, self._state(result.query)
            view.wanted[result.query] = result
            for sub in result.subs:
                self._refetch(sub, reason)
        self._read(view)

    def _refetch(self, sub: Subscriber, reason: str) -> None:
        if sub.phase is not Phase.WAITING:
            self._tell(sub, message.refetch(reason))
        sub.client.held -= len(sub.pending)
        sub.phase, sub.pending, sub.is_behind = Phase.WAITING, {}, False
        self._view_of(sub).forget(sub)

    # Resuming.

    def _resume(self, view: Followed, sub: Subscriber, generation: int, version: int, rights: str) -> None:
        sub.phase, sub.generation, sub.at = Phase.RESUMING, generation, version
        is_new = view.generation is not None and view.generation != generation
        if is_new or rights != sub.asked.rights:
            self._refetch(sub, "the view was computed anew" if is_new else "the rights have changed")
            self._begin(view, sub)
            return
        self._read_changes(view, sub)
        if not sub.result.is_started:
            view.wanted[sub.result.query] = sub.result

    def _read_changes(self, view: Followed, sub: Subscriber) -> None:
        number = next(self._numbers)
        view.resuming[number] = sub
        self._done.append(ReadChanges(view.name, number, sub.at))

    def _missed(self, event: ChangesRead) -> None:
        view = self._views.get(event.view)
        sub = None if view is None else view.resuming.pop(event.number, None)
        if view is None or sub is None:
            return
        if event.rows is None:
            self._refetch(sub, "the changes since the version are no longer kept")
            self._begin(view, sub)
            self._read(view)
            return
        sub.missed = event.version, Rowset(event.rows, sub.result.query.shape.key, is_changes=True)
        view.caught[sub] = None
        self._try_resume(view, sub)
        self._read(view)

    def _try_resume(self, view: Followed, sub: Subscriber) -> None:
        """Send what has changed since the version of a client, if both the changes and the result are known."""
        result, state = sub.result, sub.result.state
        if sub.missed is None or not result.is_started or result.is_stale:
            return
        if sub.generation != view.generation:
            self._refetch(sub, "the view was computed anew")
            self._begin(view, sub)
            return
        until, changes = sub.missed
        now = view.version_of(result)
        if max(until, view.version) < now:
            return  # the result was read at a version whose changes are still to come
        if until < view.began:  # and nobody has told of the changes between them
            view.forget(sub)
            self._read_changes(view, sub)
            return
        matcher = Matcher()
        matcher.add(0, result.query)
        step: Step = {}
        for _, places in by_query(matcher.match(changes.rows)):
            changes.step(places, result.query.shape, step, now)
        merged(step, view.missed([result], until).get(result.handle, {}))
        view.forget(sub)
        if isinstance(state, SortedState):
            before = state.before(step) if sub.at <= now else state.shown
            if before is None:
                self._refetch(sub, "too much has changed since the version")
                self._begin(view, sub)
                return
            found = difference(before, state.shown)
        else:
            found = plain_difference(step)
        self._sender.ready(view, sub)
        if sub.at < now:
            self._sender.body(view, sub, body_of(sub.asked.form, found, now), now)
        self._check_end(view, sub)

    # Changes.

    def _changes(self, event: Changes) -> None:
        view = self._views.get(event.view)
        if view is None or view.generation is None or event.version < view.version:
            return
        if event.since > view.version:
            self._renew(view, "the changes are no longer kept")
            return
        view.watermark = event.watermark or view.watermark
        changes = Rowset(event.rows, self._key_of(view), is_changes=True).after(view.version)
        if len(changes):
            view.remember(changes)
            self._apply(view, changes)
        view.version = event.version
        for sub in list(view.caught):
            self._try_resume(view, sub)
        self._end_some(view)
        if self._views.get(view.name) is view:
            self._read(view)

    @staticmethod
    def _key_of(view: Followed) -> tuple[str, ...]:
        return next(iter(view.results)).shape.key

    def _apply(self, view: Followed, changes: Rowset) -> None:
        by_version: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for handle, places in by_query(view.grid.match(changes.rows, changes.ids)):
            start = 0
            for end in range(1, len(places) + 1):
                if end == len(places) or changes.versions[places[end]] != changes.versions[places[start]]:
                    by_version[changes.versions[places[start]]].append((handle, places[start:end]))
                    start = end
        for version in sorted(by_version):
            view.version = max(view.version, version - 1)
            self._end_some(view)
            view.version = version
            for handle, places in by_version[version]:
                result = view.by_handle.get(handle)
                if result is not None and version > result.since:
                    self._advance(view, result, version, changes.step(places, result.query.shape, {}))

    def _advance(self, view: Followed, result: Result, version: int, step: Step) -> None:
        """Take a result to a version, and tell its subscriptions."""
        state = result.state
        before = state.shown if isinstance(state, SortedState) else ()
        if result.is_stale:
            return
        changed = state.take(step)
        if result.is_stale:
            view.wanted[result.query] = result
            return
        if not changed:
            return
        found = difference(before, state.shown) if isinstance(state, SortedState) else plain_difference(step)
        bodies: dict[str, str] = {}
        for sub in list(result.subs):
            if sub.phase is not Phase.LIVE:
                continue
            form = sub.asked.form
            if version <= sub.at:
                sub.shown = state.shown if isinstance(state, SortedState) else ()
            elif not self._sender.holds(sub) and not sub.is_behind:
                bodies[form] = bodies[form] if form in bodies else body_of(form, found, version)
                self._sender.body(view, sub, bodies[form], version)
            elif self._sender.hold(sub, step):
                self._disconnect(sub.client, "too many changes wait to be sent")

    # Time, and slow clients.

    def _tick(self, now: int) -> None:
        self._sender.now = now
        for sub in self._sender.due():
            self._sender.state(self._view_of(sub), sub)
        for client in self._sender.hopeless():
            self._disconnect(client, "the client reads too slowly")
        for sub in self._sender.idle():
            view = self._view_of(sub)
            version = view.version_of(sub.result)
            if version >= sub.at:  # else the result has yet to reach the version of the snapshot
                self._sender.progress(view, sub, version)

    def _backlog(self, name: str, messages: int) -> None:
        client = self._clients.get(name)
        if client is None:
            return
        if self._sender.backlog(client, messages):
            self._disconnect(client, "too many messages wait to be sent")
            return
        for sub in client.subs.values():
            if self._sender.is_ready(sub):
                self._sender.state(self._view_of(sub), sub)

    def _disconnect(self, client: Client, reason: str) -> None:
        for sub in list(client.subs.values()):
            self._close(sub, reason)
        self._done.append(Disconnect(client.name, reason))

    # Ends.

    def _end_some(self, view: Followed) -> None:
        """End subscriptions that have come to their last version."""
        for sub in list(view.ending):
            self._check_end(view, sub)

    def _check_end(self, view: Followed, sub: Subscriber) -> None:
        end = sub.asked.up_to
        if end is not None and sub.phase is Phase.LIVE and view.version_of(sub.result) >= end:
            self._finish(view, sub)

    def _finish(self, view: Followed, sub: Subscriber) -> None:
        if sub.result.is_stale:
            return
        if sub.is_behind:
            self._sender.state(view, sub)
        elif sub.at < view.version_of(sub.result):
            self._sender.progress(view, sub, view.version_of(sub.result))
        self._close(sub, "up_to")
