"""What subscriptions are sent, and when: the pace of a client and of a subscription is kept here."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from millrace.live import message
from millrace.live.events import Send
from millrace.live.followed import Followed
from millrace.live.result import SortedState
from millrace.live.rowset import Step, merged, plain_difference
from millrace.live.subscriber import Client, Phase, Subscriber
from millrace.live.token import Token, seal
from millrace.live.window import Difference, Shown, difference

SECOND = 1_000_000
_EACH = 4
"""How many messages of each of its subscriptions may wait for a client, beside those of the limit."""
_PART = 1_000
"""The rows of one part of a snapshot."""
_AT_ONCE = 2_000
"""How many idle subscriptions are told of progress at one tick."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a hub."""

    slack: int = 20
    """How many rows of a sorted query are held beyond those it shows."""
    backlog: int = 100
    """With more waiting messages than this, a client's changes are held back."""
    most_backlog: int = 2_000
    """With more waiting messages than this, a client is disconnected."""
    most_held: int = 100_000
    """With more rows held back than this, too."""
    patience: int = 60 * SECOND
    """So long changes are held back."""
    idle: int = 10 * SECOND
    """After so long without a message, a subscription is told of progress."""


class Sender:
    """Sends messages to subscriptions, or holds changes back."""

    def __init__(self, secret: bytes, limits: Limits) -> None:
        self.now = 0
        self._secret, self._limits = secret, limits
        self._outbox: dict[str, list[str]] = defaultdict(list)
        self._due: list[tuple[int, int, Subscriber]] = []
        self._order = count()
        self._idle: deque[Subscriber] = deque()
        self._slow: dict[Client, None] = {}

    def flushed(self) -> list[Send]:
        """What was told since the last time."""
        sends = [Send(client, tuple(texts)) for client, texts in self._outbox.items()]
        self._outbox.clear()
        return sends

    def forget(self, client: Client) -> None:
        """Forget a client."""
        self._slow.pop(client, None)

    # Messages.

    def tell(self, client: str, sub: str, body: str) -> None:
        """Tell a subscription something."""
        self._outbox[client].append(message.to(sub, body))

    def untold(self, client: str) -> None:
        """Drop what a client was to be told, because it is gone."""
        self._outbox.pop(client, None)

    def token(self, view: Followed, sub: Subscriber) -> str:
        """The token with which a subscription can be resumed from its present state."""
        generation = sub.generation if view.generation is None else view.generation
        return seal(Token(sub.asked, generation, sub.at), self._secret)

    def snapshot(self, view: Followed, sub: Subscriber, rows: Iterable[tuple[str, str]], version: int) -> None:
        """Send all rows of a result."""
        sub.at = version
        if sub.asked.form != "invalidate":
            found = list(rows)
            for start in range(0, max(len(found), 1), _PART):
                part = found[start : start + _PART]
                self.tell(
                    sub.client.name,
                    sub.name,
                    message.snapshot(sub.result.query.shape.columns, sub.is_sorted, start, part),
                )
        self.ready(view, sub)
        self._sent(sub, version)

    def ready(self, view: Followed, sub: Subscriber) -> None:
        """Tell a subscription that its state is whole; changes follow."""
        self.tell(sub.client.name, sub.name, message.ready(sub.at, self.token(view, sub)))
        sub.phase, sub.shown = Phase.LIVE, _shown(sub)
        if not sub.is_watched:
            sub.is_watched = True
            self._idle.append(sub)

    def state(self, view: Followed, sub: Subscriber) -> None:
        """Send how the result differs from the state that was last sent."""
        state = sub.result.state
        found = difference(sub.shown, state.shown) if isinstance(state, SortedState) else plain_difference(sub.pending)
        sub.client.held -= len(sub.pending)
        sub.pending = {}
        version = view.version_of(sub.result)
        self.body(view, sub, body_of(sub.asked.form, found, version), version)

    def body(self, view: Followed, sub: Subscriber, body: str, version: int) -> None:
        """Send changes, if there are any, and progress."""
        if body:
            self.tell(sub.client.name, sub.name, body)
        self.progress(view, sub, version)

    def progress(self, view: Followed, sub: Subscriber, version: int) -> None:
        """Tell a subscription that it is at a version."""
        state = sub.result.state
        told = message.progress(version, view.watermark, state.rows, state.checksum(sub.is_sorted))
        self.tell(sub.client.name, sub.name, told)
        sub.shown = _shown(sub)
        self._sent(sub, version)

    def _sent(self, sub: Subscriber, version: int) -> None:
        sub.at, sub.heard, sub.is_behind = version, self.now, False
        if sub.asked.min_interval:
            sub.due = self.now + sub.asked.min_interval

    # Pace.

    def holds(self, sub: Subscriber) -> bool:
        """Whether nothing may be sent now: the client is slow, or the interval is not over."""
        return sub.client.backlog > self._limits.backlog or self.now < sub.due

    def hold(self, sub: Subscriber, step: Step) -> bool:
        """Hold changes back, of each row only the latest. Returns whether that is too much for the client."""
        if not sub.is_behind:
            sub.is_behind = True
            self._wake(sub)
        if not sub.result.query.is_sorted:
            sub.client.held -= len(sub.pending)
            merged(sub.pending, step)
            sub.client.held += len(sub.pending)
        return sub.client.held > self._limits.most_held

    def _wake(self, sub: Subscriber) -> None:
        if self.now < sub.due:
            heappush(self._due, (sub.due, next(self._order), sub))

    def is_ready(self, sub: Subscriber) -> bool:
        """Whether what was held back can be sent now; a result that is being read again is sent then."""
        if sub.phase is not Phase.LIVE or not sub.is_behind or sub.result.is_stale:
            return False
        if self.holds(sub):
            self._wake(sub)
            return False
        return True

    def due(self) -> Iterator[Subscriber]:
        """The subscriptions whose interval is over."""
        while self._due and self._due[0][0] <= self.now:
            sub = heappop(self._due)[2]
            if self.is_ready(sub):
                yield sub

    def idle(self) -> Iterator[Subscriber]:
        """The subscriptions that have heard nothing for long, and are at the present state."""
        for _ in range(min(_AT_ONCE, len(self._idle))):
            sub = self._idle[0]
            if sub.phase is not Phase.GONE and self.now - sub.heard < self._limits.idle:
                return
            self._idle.popleft()
            if sub.phase is Phase.GONE:
                continue
            self._idle.append(sub)
            sub.heard = self.now
            if sub.phase is Phase.LIVE and not sub.is_behind and not sub.result.is_stale and not self.holds(sub):
                yield sub

    def backlog(self, client: Client, messages: int) -> bool:
        """Note how many messages wait for a client. Returns whether these are too many."""
        client.backlog = messages
        if messages <= self._limits.backlog:
            self._slow.pop(client, None)
        elif client not in self._slow:
            self._slow[client] = None
            client.slow_since = self.now
        return messages > self._limits.most_backlog + _EACH * len(client.subs)

    def hopeless(self) -> list[Client]:
        """The clients that have been slow for too long."""
        return [client for client in self._slow if self.now - client.slow_since > self._limits.patience]


def body_of(form: str, found: Difference, version: int) -> str:
    """The message for a difference; empty if there is none."""
    if not found:
        return ""
    match form:
        case "diff":
            return message.batch(version, found)
        case "upsert":
            return message.upsert(version, found)
        case _:
            return message.invalidate(version)


def _shown(sub: Subscriber) -> Shown:
    state = sub.result.state
    return state.shown if isinstance(state, SortedState) else ()
