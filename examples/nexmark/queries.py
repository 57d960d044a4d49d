"""The queries of Nexmark: an auction site with persons, auctions and bids.

Each function takes the three streams, as the sources give them, and returns a query or a stream. An event time column
keeps its name, so a query that joins two streams renames their `date_time` before it sets the event time. Queries that
Nexmark states over an unbounded past have bounds here; their docstrings say which. From the root of the repository:

    python -m examples.nexmark.generator --events 20000 --rate 100 --topics
    millrace run examples/nexmark/queries.py --until-caught-up
    millrace query "SELECT category, average FROM q4_average_price_by_category"
    cat .millrace/answers/q5_hot_items/*
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from millrace import Pipeline, agg, log, on, to_files, window
from millrace.model.query import Query, Windowed
from millrace.model.stream import Stream

PERSON = (
    "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, date_time TIMESTAMP, "
    "extra STRING"
)
AUCTION = (
    "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, date_time TIMESTAMP, "
    "expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING"
)
BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP, extra STRING"

DELAY = "4s"
"""How far events are out of order."""
LONGEST = "10m"
"""How long an auction is open at most."""
NEAR = ("-1h", "1h")
"""How far the events of a join without a bound of its own are apart."""

Nexmark: TypeAlias = Callable[[Stream, Stream, Stream], Query | Stream]


def q0_pass_through(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """All bids, unchanged."""
    return bid


def q1_currency(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """All bids, with prices in euros."""
    return bid.with_columns(price="price * 0.908")


def q2_selection(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """The bids for some auctions."""
    return bid.where("auction % 123 = 0").select("auction", "price")


def q3_local_items(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """Auctions of category 10 whose seller lives in one of three states.

    Nexmark joins over all time; here the seller is registered within an hour of the auction.
    """
    sellers = person.where("state IN ('OR', 'ID', 'CA')").select("name", "city", "state", "date_time", seller="id")
    offers = auction.where("category = 10").select("id", "seller", opened="date_time")
    joined = offers.event_time("opened", delay=DELAY).join(
        sellers.event_time("date_time", delay=DELAY), on="seller", within=NEAR
    )
    return joined.select("name", "city", "state", "id")


def q4_average_price_by_category(person: Stream, auction: Stream, bid: Stream) -> Query:
    """The average final price of the auctions of each category so far. A higher bid corrects it."""
    final = so_far(bids_in_time(auction, bid).group_by("id", "category")).aggregate(final=agg.max("price"))
    return so_far(final.group_by("category")).aggregate(average=agg.mean("final"))


def q5_hot_items(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """The auctions with the most bids in the last 10 seconds, every 2 seconds."""
    counted = once(timed(bid).group_by("auction").window(window.sliding("10s", every="2s"))).aggregate(bids=agg.count())
    most = once(counted.window(window.fixed("2s"))).aggregate(bids=agg.max("bids"))
    return counted.select("auction", "bids", starts="window_start", ends="window_end").join(
        most.select("bids", ends="window_end"), on=("ends", "bids"), within=("0s", "0s")
    )


def q6_average_price_by_seller(person: Stream, auction: Stream, bid: Stream) -> Query:
    """The average final price of the last ten auctions of each seller.

    Nexmark gives a row for each auction, over it and the ten before; here a seller has one row, which later auctions
    correct. The last auctions are those that expire last, of two that expire at once the one with the greater id.
    """
    pairs = bids_in_time(auction, bid).group_by("id", "seller", "expires")
    final = so_far(pairs).aggregate(final=agg.max("price"))
    last = so_far(final.with_columns(place="unix_millis(expires) * 100000 + id % 100000").group_by("seller"))
    prices = last.aggregate(final=agg.top_k("final", 10, by="place")).explode("final")
    return so_far(prices.group_by("seller")).aggregate(average=agg.mean("final"))


def q7_highest_bid(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """The bids with the highest price of each 10 seconds."""
    ten = window.fixed("10s")
    highest = once(timed(bid).window(ten)).aggregate(price=agg.max("price"))
    bids = timed(bid.select("auction", "bidder", "price", "date_time", "extra"))
    joined = bids.join(highest.select("price"), on="price", window=ten)
    return joined.select("auction", "bidder", "price", "date_time", "extra")


def q8_new_users(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """Persons who registered and opened an auction in the same 10 seconds."""
    sellers = timed(auction.select("date_time", id="seller"))
    joined = timed(person).join(sellers, on="id", how="semi", window=window.fixed("10s"))
    return joined.select("id", "name", starts="window_start")


def q9_winning_bids(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """The winning bid of each auction: the highest, of equal ones the earliest. It answers when the auction is over.

    An aggregate chooses one value, so the bid is a text on the way.
    """
    offers = auction.select("id", "item_name", "seller", "category", "expires", opened="date_time")
    bids = bid.map(as_text, "id BIGINT, price BIGINT, made TIMESTAMP, bid STRING")
    pairs = offers.event_time("opened", delay=DELAY).join(
        bids.event_time("made", delay=DELAY), on="id", within=("0s", LONGEST)
    )
    ranked = pairs.where("made <= expires").with_columns(
        rank="CAST(price AS DECIMAL(18, 0)) * 10000000000000000 - unix_micros(made)"
    )
    auctions = ranked.group_by("id", "item_name", "seller", "category").window(window.custom(open_time))
    won = once(auctions).aggregate(bid=agg.top_k("bid", 1, by="rank"))
    return won.explode("bid").map(
        winner,
        "id BIGINT, item_name STRING, seller BIGINT, category BIGINT, bidder BIGINT, price BIGINT, made TIMESTAMP, "
        "extra STRING",
    )


def q11_user_sessions(person: Stream, auction: Stream, bid: Stream) -> Query:
    """The number of bids of each user in each session; a session ends after 10 seconds without a bid."""
    return once(timed(bid).group_by("bidder").window(window.session("10s"))).aggregate(bids=agg.count())


def q12_bids_by_the_clock(person: Stream, auction: Stream, bid: Stream) -> Query:
    """The number of bids of each user that arrived in each 10 seconds by the clock.

    Millrace has no windows of processing time: a trigger by the clock answers with what is new at each multiple of 10
    seconds. A batch has no clock and answers once, with all bids.
    """
    every = bid.group_by("bidder").window(window.all_time()).trigger(on.every("10s"))
    return every.discarding().aggregate(bids=agg.count())


def q16_channel_statistics(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """Bids, and different bidders and auctions, of each channel and day, in three ranges of prices.

    Different values are counted exactly: first the bids of each of them, then how many there are.
    """
    bidders = _different(bid, "bidder").aggregate(
        last_bid=agg.max("last_bid"),
        bids=agg.sum("n"), low_bids=agg.sum("low"), middle_bids=agg.sum("middle"), high_bids=agg.sum("high"),
        bidders=agg.count(), low_bidders=agg.count_if("low > 0"), middle_bidders=agg.count_if("middle > 0"),
        high_bidders=agg.count_if("high > 0"),
    )  # fmt: skip
    auctions = _different(bid, "auction").aggregate(
        auctions=agg.count(), low_auctions=agg.count_if("low > 0"), middle_auctions=agg.count_if("middle > 0"),
        high_auctions=agg.count_if("high > 0"),
    )  # fmt: skip
    return bidders.join(auctions, on=("channel", "window_start", "window_end"), within=("0s", "0s"))


def q17_auction_statistics(person: Stream, auction: Stream, bid: Stream) -> Query:
    """Bids of each auction and day: how many, in three ranges of prices, and their prices."""
    return current(timed(bid).group_by("auction").window(window.fixed("1d"))).aggregate(
        bids=agg.count(), low_bids=agg.count_if(LOW), middle_bids=agg.count_if(MIDDLE), high_bids=agg.count_if(HIGH),
        least=agg.min("price"), greatest=agg.max("price"), average=agg.mean("price"), total=agg.sum("price"),
    )  # fmt: skip


def q18_last_bid(person: Stream, auction: Stream, bid: Stream) -> Query:
    """The last bid of each user for each auction. Of equal times, a column has the greatest value."""
    return so_far(timed(bid).group_by("bidder", "auction")).aggregate(
        price=agg.last("price"), channel=agg.last("channel"), url=agg.last("url"), date_time=agg.max("date_time"),
        extra=agg.last("extra"),
    )  # fmt: skip


def q19_top_bids(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """The ten highest bids for each auction, with their ranks.

    An aggregate chooses one value, so a bid is a text on the way. Of equal prices, the greater text is before.
    """
    texts = bid.map(as_text, "id BIGINT, price BIGINT, made TIMESTAMP, bid STRING").event_time("made", delay=DELAY)
    top = so_far(texts.group_by("id")).aggregate(bids=agg.top_k("bid", 10, by="price"))
    return top.flat_map(ranks, "auction BIGINT, bidder BIGINT, price BIGINT, made TIMESTAMP, extra STRING, rank INT")


def q20_expanded_bids(person: Stream, auction: Stream, bid: Stream) -> Stream:
    """The bids for auctions of category 10, with the auctions.

    Nexmark joins over all time; here the bid is within an hour of the start of the auction.
    """
    offers = auction.where("category = 10").select(
        "item_name", "description", "initial_bid", "reserve", "expires", "seller", "category", auction="id",
        opened="date_time",
    )  # fmt: skip
    return timed(bid).join(offers.event_time("opened", delay=DELAY), on="auction", within=NEAR)


QUERIES: Mapping[str, Nexmark] = {
    function.__name__: function
    for function in (
        q0_pass_through, q1_currency, q2_selection, q3_local_items, q4_average_price_by_category, q5_hot_items,
        q6_average_price_by_seller, q7_highest_bid, q8_new_users, q9_winning_bids, q11_user_sessions,
        q12_bids_by_the_clock, q16_channel_statistics, q17_auction_statistics, q18_last_bid, q19_top_bids,
        q20_expanded_bids,
    )
}  # fmt: skip
"""The queries by name."""

LOW, MIDDLE, HIGH = "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"


def timed(stream: Stream) -> Stream:
    """The stream with its event time."""
    return stream.event_time("date_time", delay=DELAY)


def once(windowed: Windowed) -> Windowed:
    """The windows answer once, when they close."""
    return windowed.trigger(on.watermark()).accumulating()


def current(windowed: Windowed) -> Windowed:
    """The windows answer at each micro-batch, and take the answer before back."""
    return windowed.trigger(on.watermark(early=on.each(), late=on.each())).retracting()


def so_far(grouped: Windowed) -> Windowed:
    """Over all time; each micro-batch corrects the answers that it changes."""
    return grouped.window(window.all_time()).trigger(on.each()).retracting()


def bids_in_time(auction: Stream, bid: Stream) -> Stream:
    """Each auction with each bid between its start and its end."""
    offers = auction.select("id", "seller", "category", "expires", opened="date_time")
    bids = bid.select("price", id="auction", made="date_time")
    pairs = offers.event_time("opened", delay=DELAY).join(
        bids.event_time("made", delay=DELAY), on="id", within=("0s", LONGEST)
    )
    return pairs.where("made <= expires")


def _different(bid: Stream, column: str) -> Windowed:
    """The bids of each channel, day and value of a column, to be counted by channel and day."""
    day = window.fixed("1d")
    each = current(timed(bid).group_by("channel", column).window(day)).aggregate(
        last_bid=agg.max("date_time"), n=agg.count(), low=agg.count_if(LOW), middle=agg.count_if(MIDDLE),
        high=agg.count_if(HIGH),
    )  # fmt: skip
    return current(each.group_by("channel").window(day))


def as_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """A bid with all of it in one column."""
    made = {"bidder": row["bidder"], "price": row["price"], "made": row["date_time"].isoformat(), "extra": row["extra"]}
    return {"id": row["auction"], "price": row["price"], "made": row["date_time"], "bid": json.dumps(made)}


def from_text(text: str) -> dict[str, Any]:
    """The columns of a bid that `as_text` has made."""
    bid: dict[str, Any] = json.loads(text)
    return bid | {"made": datetime.fromisoformat(bid["made"])}


def winner(row: Mapping[str, Any]) -> dict[str, Any]:
    """An auction with its winning bid."""
    kept = {name: row[name] for name in ("id", "item_name", "seller", "category")}
    return kept | from_text(row["bid"])


def ranks(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The best bids of an auction, each with its rank."""
    for rank, text in enumerate(row["bids"], 1):
        yield {"auction": row["id"], "rank": rank} | from_text(text)


def open_time(at: datetime, row: Mapping[str, Any]) -> list[tuple[datetime, datetime]]:
    """The window of an auction, its end included."""
    return [(row["opened"], row["expires"] + timedelta(milliseconds=1))]


def outputs(person: Stream, auction: Stream, bid: Stream) -> Pipeline:
    """All queries: those whose rows have keys as views, the others as files."""
    made = {name: query(person, auction, bid) for name, query in QUERIES.items()}
    return Pipeline(
        "nexmark",
        views={name: of for name, of in made.items() if isinstance(of, Query)},
        sinks=[
            of.to(to_files(f".millrace/answers/{name}", "json")) for name, of in made.items() if isinstance(of, Stream)
        ],
    )


nexmark = outputs(log("person", PERSON), log("auction", AUCTION), log("bid", BID))
