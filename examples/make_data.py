"""Makes the records of the examples, the same each time: `python examples/make_data.py`.

Each example has two files: what comes first, and what comes later, with some that were held up on the way. Within a
file, records are a few seconds out of order.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

FOLDER = Path(__file__).parent / "data"
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
TRACKS = (
    "Millstream", "Watershed", "Undertow", "Headrace", "Tailrace", "Spillway", "Penstock", "Backwater", "Meander",
    "Oxbow", "Riffle", "Delta", "Estuary", "Levee",
)  # fmt: skip

Events = list[tuple[float, dict[str, Any]]]
"""When each was, in seconds after noon, and what it says."""


def ads() -> dict[str, str]:
    """Five minutes of ads; ad 7 is of no campaign, some who look are bots, and one record is broken."""
    chance, events = Random(1), Events()
    for _ in range(220):
        second, ad, bot = chance.uniform(0, 300), chance.randint(1, 7), chance.random() < 0.1
        events.append((second, {"ad": ad, "kind": "impression", "bot": bot}))
        if chance.random() < 0.05 * ad:
            events.append((second + chance.uniform(1, 20), {"ad": ad, "kind": "click", "bot": bot}))
    events.append((100, {"ad": "banner", "kind": "impression", "bot": False}))
    campaigns = "ad,campaign\n1,spring\n2,spring\n3,spring\n4,bicycles\n5,bicycles\n6,tea\n"
    return {**files("ads", chance, events, until=200), "campaigns.csv": campaigns}


def plays() -> dict[str, str]:
    """Three and a half hours of music; some plays are too short to count."""
    chance, events = Random(2), Events()
    for _ in range(420):
        track = TRACKS[int(len(TRACKS) * chance.random() ** 2)]
        play = {"user": f"user-{chance.randint(1, 40):02}", "track": track, "ms": chance.randint(5_000, 290_000)}
        events.append((chance.uniform(0, 3.5 * 3600), play))
    return files("plays", chance, events, until=2.2 * 3600)


def hashtags() -> dict[str, str]:
    """Forty minutes of hashtags; one of them rises."""
    chance, events = Random(3), Events()
    for _ in range(320):
        second = chance.uniform(0, 2400)
        tag = chance.choice(["tea", "cats", "rain", "chess", "bread"])
        if chance.random() < second / 6000:
            tag = "flood"
        elif chance.random() < 0.25:
            tag = f"rare{chance.randint(1, 60)}"
        events.append((second, {"tag": tag, "user": f"user-{chance.randint(1, 90):02}"}))
    return files("hashtags", chance, events, until=1500)


def page_views() -> dict[str, str]:
    """Four hours of users; Eve is in no table. Ann pays from 13:00 on, and Bob no more from 14:00 on."""
    chance, events = Random(13), Events()
    for user in ("ann", "bob", "cal", "dee"):
        second = chance.uniform(0, 600)
        while second < 4 * 3600:
            events.append((second, {"user": user, "page": chance.choice(["home", "search", "cart", "help"])}))
            second += chance.uniform(20, 300) if chance.random() < 0.9 else chance.uniform(1900, 2900)
    events += [(300, {"user": "eve", "page": "home"}), (3300, {"user": "eve", "page": "cart"})]
    users = "user,since,plan\nann,2026-01-01T00:00:00Z,free\nbob,2026-01-01T00:00:00Z,paid\n"
    users += "cal,2026-01-01T00:00:00Z,free\ndee,2026-02-01T00:00:00Z,trial\n"
    later = "ann,2026-03-02T13:00:00Z,paid\nbob,2026-03-02T14:00:00Z,free\n"
    made = files("page_views", chance, events, until=3500)
    between = line(1800, {"user": "eve", "page": "search"})
    return {
        **made,
        "page_views_late.json": made["page_views_late.json"] + between,
        "users.csv": users,
        "users_later.csv": later,
    }


def payments() -> dict[str, str]:
    """An hour of cards: one is used in a hurry, one in two places at once, one for too much."""
    chance, events = Random(5), Events()
    for _ in range(200):
        card = f"card-{chance.randint(1, 90):02}"
        paid = {"card": card, "cents": chance.randint(200, 9000), "country": "NO"}
        events.append((chance.uniform(0, 3600), paid))
    for place in range(7):
        events.append((1800 + 20 * place, {"card": "card-hurried", "cents": 999, "country": "NO"}))
    for second, country in ((600, "SE"), (840, "BR"), (3000, "SE")):
        events.append((second, {"card": "card-twice", "cents": 12050, "country": country}))
    for second in (2100, 2400):
        events.append((second, {"card": "card-dear", "cents": 89900, "country": "FI"}))
    made = files("payments", chance, events, until=2200)
    lost = line(-7200, {"card": "card-lost", "cents": 500000, "country": "NO"})
    return {**made, "payments_late.json": made["payments_late.json"] + lost}


def readings() -> dict[str, str]:
    """Four minutes of two halls with three sensors each. Hall B falls silent; a sensor of hall A gets hot."""
    made: dict[str, str] = {}
    for hall, ends in (("a", 240), ("b", 100)):
        chance, events = Random(f"hall {hall}"), Events()
        for number in range(1, 4):
            for second in range(number, ends, 7):
                heat = min(60, max(0, second - 40)) if (hall, number) == ("a", 2) else 0
                celsius = round(21 + chance.uniform(-1.5, 1.5) + heat, 1)
                events.append((second, {"sensor": f"{hall}{number}", "celsius": celsius}))
        if hall == "b":
            events.append((50, {"sensor": "b1", "celsius": "fault"}))
        made |= files(f"hall_{hall}", chance, events, until=130)
    del made["hall_b_late.json"]
    return made


def access() -> dict[str, str]:
    """Five minutes of a web site; the cart fails for a while, and one line is cut off."""
    chance, events = Random(6), Events()
    for _ in range(400):
        second, page = chance.uniform(0, 300), chance.choice(["/", "/search?q=tea", "/cart", "/help"])
        fails = page == "/cart" and 90 < second < 200 and chance.random() < 0.4
        seconds = chance.lognormvariate(-3, 0.8) + (2 if fails else 0)
        events.append((second, {"line": access_line(chance, second, page, 503 if fails else 200, seconds)}))
    made = files("access", chance, events, until=200, timed=False)
    cut = json.dumps({"line": "203.0.113.9 - - [02/Mar/2026:12:01:"}) + "\n"
    return {**made, "access.json": made["access.json"] + cut}


def access_line(chance: Random, second: float, page: str, status: int, seconds: float) -> str:
    """A line of an access log."""
    at = (NOON + timedelta(seconds=int(second))).strftime("%d/%b/%Y:%H:%M:%S %z")
    client, size = f"203.0.113.{chance.randint(1, 99)}", chance.randint(200, 9000)
    return f'{client} - - [{at}] "GET {page} HTTP/1.1" {status} {size} {seconds:.3f}'


def transfers() -> dict[str, str]:
    """Transfers between eight accounts; the gateway sends some of them twice, and one without an amount."""
    chance, made = Random(7), list[dict[str, Any]]()
    for number in range(1, 241):
        payer, payee = chance.sample([f"account-{each}" for each in range(1, 9)], 2)
        made.append({"id": number, "payer": payer, "payee": payee, "cents": chance.randint(1, 500_000)})
    first = made[:150] + chance.sample(made[:150], 12)
    chance.shuffle(first)
    late = made[150:] + chance.sample(made, 20)
    chance.shuffle(late)
    late.append({"id": 241, "payer": "account-1", "payee": "account-2"})
    texts = {"transfers.json": first, "transfers_late.json": late}
    return {name: "".join(json.dumps(each) + "\n" for each in records) for name, records in texts.items()}


def conversions() -> dict[str, str]:
    """Three hours of impressions, and clicks on some of them; a click after more than an hour does not count."""
    chance, seen, clicked = Random(8), Events(), Events()
    rates = {"spring": 0.1, "bicycles": 0.3, "tea": 0.5}
    for number in range(300):
        second, campaign = chance.uniform(0, 3 * 3600), chance.choice(list(rates))
        seen.append((second, {"impression": f"i{number:03}", "campaign": campaign}))
        if chance.random() < rates[campaign]:
            after = chance.uniform(5, 1200) if chance.random() < 0.8 else chance.uniform(1200, 5400)
            clicked.append((second + after, {"impression": f"i{number:03}"}))
    made: dict[str, str] = {}
    for name, events in (("impressions", seen), ("clicks", clicked)):
        made |= held_up(name, chance, events, until=5400)
    return made


def climate() -> dict[str, str]:
    """Five days of six sensors; some read every hour, others every third. Days get warmer."""
    chance, events = Random(9), Events()
    for number in range(1, 7):
        for hour in range(number, 5 * 24, 1 if number % 2 else 3):
            warm = 20 + hour / 24 + number + 4 * (hour % 24 < 5)  # the first hours are those after noon
            events.append((hour * 3600, {"sensor": f"s{number}", "celsius": round(warm + chance.uniform(-2, 2), 1)}))
    return files("climate", chance, events, until=3.4 * 24 * 3600)


def held_up(name: str, chance: Random, events: Events, until: float) -> dict[str, str]:
    """Two files by the time of arrival: one record in six arrives up to 50 minutes late, others within seconds."""
    arrived = [
        (
            second + (chance.uniform(600, 3000) if chance.random() < 1 / 6 else chance.uniform(0, 8)),
            line(second, fields),
        )
        for second, fields in events
    ]
    parts = ([text for at, text in sorted(arrived) if (at < until) == first] for first in (True, False))
    return {f"{each}.json": "".join(part) for each, part in zip((name, f"{name}_late"), parts, strict=True)}


def files(name: str, chance: Random, events: Events, until: float, timed: bool = True) -> dict[str, str]:
    """The first file, up to a time, and the late one: what is after it, and one in twelve of those before.

    Records have the time of their event in a field, if `timed`.
    """
    first, late = Events(), Events()
    for event in events:
        (first if event[0] < until and chance.random() > 1 / 12 else late).append(event)
    return {f"{name}.json": lines(chance, first, timed), f"{name}_late.json": lines(chance, late, timed)}


def lines(chance: Random, events: Events, timed: bool) -> str:
    """Events in the order in which they arrive."""
    arrived = sorted(events, key=lambda event: event[0] + chance.uniform(0, 8))
    return "".join(line(second, fields) if timed else json.dumps(fields) + "\n" for second, fields in arrived)


def line(second: float, fields: dict[str, Any]) -> str:
    """An event as a record."""
    at = NOON + timedelta(seconds=int(second))
    return json.dumps({**fields, "at": at.strftime("%Y-%m-%dT%H:%M:%SZ")}) + "\n"


def make() -> dict[str, str]:
    """What each file holds."""
    made: dict[str, str] = {}
    for kind in (ads, plays, hashtags, page_views, payments, readings, access, transfers, conversions, climate):
        made |= kind()
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in make().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
