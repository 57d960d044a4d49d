"""The events of Nexmark, an auction site: persons, auctions and bids, the same for the same seed.

Of fifty events, one is a new person, three are new auctions and 46 are bids. Half of the bids are for a hot auction;
three of four bids are of a hot bidder, and three of four auctions of a hot seller. A few bids and auctions name an
auction or a person that comes a little later. From the root of the repository:

    python -m examples.nexmark.generator --events 100000 --seed 1 FOLDER
    python -m examples.nexmark.generator --events 100000 --topics

The first writes person.json, auction.json and bid.json, a record a line; the second sends the records to the topics
`person`, `auction` and `bid` of the log of the project.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

Event: TypeAlias = tuple[str, dict[str, Any]]
"""The kind of an event, which is the name of its topic, and its record."""

KINDS = ("person", "auction", "bid")
PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS
"""The events after which the kinds of events repeat."""

FIRST_ID = 1000
"""The id of the first person and of the first auction."""
FIRST_CATEGORY, CATEGORIES = 10, 5
ACTIVE_PERSONS, OPEN_AUCTIONS = 1000, 100
"""How many of the newest persons sell and bid, and how many of the newest auctions are bid for."""
AHEAD = 10
"""How many persons and auctions that do not exist yet may be named."""
HOT = 100
"""One in so many auctions, sellers and bidders is hot, while it is the newest such one."""

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
GIVEN = ("Ada", "Ben", "Clara", "Dan", "Edith", "Frank", "Grace", "Hugo", "Iris", "Jack", "Kay")
FAMILY = ("Archer", "Brook", "Carter", "Dyer", "Fuller", "Mason", "Potter", "Sawyer", "Weaver")
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
RARE_CHANNELS = 10_000
SIZES = {"person": 200, "auction": 500, "bid": 100}
"""The usual length of a record; `extra` is filled with letters up to it."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the events depend on."""

    events: int = 100_000
    seed: int = 1
    rate: float = 10_000
    """How many events there are in a second of event time."""
    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    disorder: int = 1
    """Events change places within groups of this size, so they are out of order by less than this many events."""


def events(settings: Settings) -> Iterator[Event]:
    """The events in order of arrival."""
    maker = _Maker(settings)
    numbers = Random(f"order {settings.seed}")
    for first in range(0, settings.events, settings.disorder):
        group = list(range(first, min(first + settings.disorder, settings.events)))
        numbers.shuffle(group)
        yield from map(maker.event, group)


def longest_auction(settings: Settings) -> timedelta:
    """How long an auction is open at most."""
    return timedelta(milliseconds=_longest(settings.rate))


def write(settings: Settings, folder: Path, parts: int = 1) -> None:
    """Write a JSON file of each kind; with several `parts`, a folder of each kind with as many files.

    All files of one number hold events that follow each other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-settings.events // parts)
    source = events(settings)
    for part in range(parts):
        lines: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for _, (kind, record) in zip(range(size), source, strict=False):
            lines[kind].append(json.dumps(record))
        for kind, texts in lines.items():
            path = folder / f"{kind}.json" if parts == 1 else folder / kind / f"{part:04}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def send(settings: Settings, log: Path, bundle: int = 10_000) -> None:
    """Append the events to topics of a log, which are created if they do not exist."""
    from millrace.eventlog.topics import Log

    opened = Log(log)
    for kind in KINDS:
        if kind not in [topic.name for topic in opened.topics()]:
            opened.create(kind)
    for many in _bundles(events(settings), bundle):
        for kind in KINDS:
            texts = [json.dumps(record).encode() for each, record in many if each == kind]
            if texts:
                opened.append(kind, texts)


class _Maker:
    """Makes events by number; the same number gives the same event."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._start = settings.start.astimezone(UTC).replace(tzinfo=None)
        self._longest = _longest(settings.rate)
        self._random = Random()
        self._second, self._text = -1, ""

    def event(self, number: int) -> Event:
        """The event of a number."""
        self._random.seed(self._settings.seed * 0x9E3779B97F4A7C15 + number)
        place = number % ROUND
        millis = int(number * 1000 / self._settings.rate)
        if place < PERSONS:
            return "person", self._person(number, millis)
        if place < PERSONS + AUCTIONS:
            return "auction", self._auction(number, millis)
        return "bid", self._bid(number, millis)

    def _person(self, number: int, millis: int) -> dict[str, Any]:
        chance = self._random.random
        given, family = _one_of(GIVEN, chance()), _one_of(FAMILY, chance())
        digits = f"{int(chance() * 1e16):016}"
        made = {
            "id": FIRST_ID + _last_person(number),
            "name": f"{given} {family}",
            "email_address": f"{given.lower()}.{family.lower()}@{self._letters(8)}.com",
            "credit_card": " ".join(digits[at : at + 4] for at in range(0, 16, 4)),
            "city": _one_of(CITIES, chance()),
            "state": _one_of(STATES, chance()),
            "date_time": self._time(millis),
        }
        return self._filled("person", made)

    def _auction(self, number: int, millis: int) -> dict[str, Any]:
        chance = self._random.random
        last = _last_person(number)
        price = self._price()
        made = {
            "id": FIRST_ID + _last_auction(number),
            "item_name": self._letters(5 + int(chance() * 15)),
            "description": self._letters(20 + int(chance() * 80)),
            "initial_bid": price,
            "reserve": price + self._price(),
            "date_time": self._time(millis),
            "expires": self._time(millis + 1 + int(chance() * self._longest)),
            "seller": FIRST_ID + (last // HOT * HOT if chance() < 3 / 4 else self._any_person(last)),
            "category": FIRST_CATEGORY + int(chance() * CATEGORIES),
        }
        return self._filled("auction", made)

    def _bid(self, number: int, millis: int) -> dict[str, Any]:
        chance = self._random.random
        person, auction = _last_person(number), _last_auction(number)
        if chance() < 1 / 2:
            channel = _one_of(CHANNELS, chance())
            url = f"https://www.nexmark.com/{channel.lower()}/item.htm?query=1"
        else:
            rare = int(chance() * RARE_CHANNELS)
            channel = f"channel-{rare}"
            url = f"https://www.nexmark.com/{self._letters(5)}/item.htm?query=1&channel_id={rare}"
        made = {
            "auction": FIRST_ID + (auction // HOT * HOT if chance() < 1 / 2 else self._any_auction(auction)),
            "bidder": FIRST_ID + (person // HOT * HOT + 1 if chance() < 3 / 4 else self._any_person(person)),
            "price": self._price(),
            "channel": channel,
            "url": url,
            "date_time": self._time(millis),
        }
        return self._filled("bid", made)

    def _any_person(self, last: int) -> int:
        active = min(last + 1, ACTIVE_PERSONS)
        return last + 1 - active + int(self._random.random() * (active + AHEAD))

    def _any_auction(self, last: int) -> int:
        least = max(last - OPEN_AUCTIONS, 0)
        return least + int(self._random.random() * (last - least + 1 + AHEAD))

    def _price(self) -> int:
        """Cents; as many prices have three digits as four, or eight."""
        return int(10.0 ** (self._random.random() * 6.0) * 100.0)

    def _letters(self, many: int) -> str:
        return "".join(self._random.choices(LETTERS, k=many))

    def _filled(self, kind: str, made: dict[str, Any]) -> dict[str, Any]:
        room = SIZES[kind] - sum(len(str(value)) for value in made.values())
        made["extra"] = _FILLING[self._random.getrandbits(10) :][: max(room, 0)]
        return made

    def _time(self, millis: int) -> str:
        second, rest = divmod(millis, 1000)
        if second != self._second:
            self._second, self._text = second, (self._start + timedelta(seconds=second)).isoformat()
        return f"{self._text}.{rest:03}Z"


def _last_person(number: int) -> int:
    """How many persons there are before the last one, up to an event."""
    return number // ROUND


def _last_auction(number: int) -> int:
    """How many auctions there are before the last one, up to an event; 0 if there is none yet."""
    whole, place = divmod(number, ROUND)
    return max(whole * AUCTIONS + min(place - PERSONS, AUCTIONS - 1), 0)


def _longest(rate: float) -> int:
    """In milliseconds: twice the time in which as many auctions are opened as are bid for."""
    return max(int(2 * OPEN_AUCTIONS * ROUND / AUCTIONS * 1000 / rate), 1)


def _one_of(values: tuple[str, ...], chance: float) -> str:
    return values[int(chance * len(values))]


def _bundles(made: Iterable[Event], size: int) -> Iterator[list[Event]]:
    bundle: list[Event] = []
    for event in made:
        bundle.append(event)
        if len(bundle) == size:
            yield bundle
            bundle = []
    if bundle:
        yield bundle


_FILLING = "".join(Random("filling").choices(LETTERS, k=2048))


def main(arguments: Mapping[str, Any]) -> None:
    """Write files, or send to topics."""
    settings = Settings(arguments["events"], arguments["seed"], arguments["rate"], disorder=arguments["disorder"])
    if arguments["topics"]:
        send(settings, Path(arguments["folder"] or ".millrace") / "log.db")
    else:
        write(settings, Path(arguments["folder"] or "."), arguments["parts"])


if __name__ == "__main__":
    usual = Settings()
    parser = argparse.ArgumentParser(description="Make the events of Nexmark.")
    parser.add_argument("folder", nargs="?", help="where files are written; with --topics, the folder of the log")
    parser.add_argument("--topics", action="store_true", help="send to topics of the log, not to files")
    parser.add_argument("--events", type=int, default=usual.events)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--rate", type=float, default=usual.rate, help="events in a second of event time")
    parser.add_argument("--disorder", type=int, default=usual.disorder, help="events change places in such groups")
    parser.add_argument("--parts", type=int, default=1, help="files of each kind")
    main(vars(parser.parse_args()))
