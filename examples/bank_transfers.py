"""The balances of bank accounts, whose total is 0 whenever one looks.

Each transfer takes from one account what it gives to another, and a micro-batch becomes visible as a whole. So no
reader ever sees money that has left one account and not arrived at the other. Transfers that the bank's gateway sent
twice count once. From the root of the repository:

    millrace send transfers examples/data/transfers.json --create
    millrace run examples/bank_transfers.py --until-caught-up
    millrace query "SELECT account, cents FROM balances ORDER BY cents"
    millrace query "SELECT sum(cents) AS total FROM balances"

More transfers, some of them the second copies of earlier ones:

    millrace send transfers examples/data/transfers_late.json
    millrace run examples/bank_transfers.py --until-caught-up
"""

from typing import Any

from millrace import Pipeline, agg, log, on, window


def entries(transfer: dict[str, Any]) -> list[dict[str, Any]]:
    """The two entries of double bookkeeping."""
    return [
        {"account": transfer["payer"], "cents": -transfer["cents"]},
        {"account": transfer["payee"], "cents": transfer["cents"]},
    ]


SCHEMA = "id BIGINT NOT NULL, payer STRING NOT NULL, payee STRING NOT NULL, cents BIGINT NOT NULL"
transfers = log("transfers", schema=SCHEMA)

balances = (
    transfers.dedup("id")
    .flat_map(entries, "account STRING, cents BIGINT")
    .group_by("account")
    .window(window.all_time())
    .trigger(on.each())
    .retracting()
    .aggregate(cents=agg.sum("cents"), entries=agg.count())
)

bank = Pipeline("bank", views={"balances": balances})
