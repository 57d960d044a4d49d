"""The queries of Nexmark as Spark SQL over all events, by name; the columns are those that are compared."""

PAIRS = """
    SELECT a.id, a.item_name, a.seller, a.category, a.expires, b.bidder, b.price, b.date_time AS made, b.extra
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
"""
FINAL = f"SELECT id, seller, category, expires, max(price) AS final FROM ({PAIRS}) GROUP BY ALL"
LOW, MIDDLE, HIGH = "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"
SLIDING = (
    "SELECT auction, window, count(*) AS bids FROM bid GROUP BY auction, window(date_time, '10 seconds', '2 seconds')"
)

# Two events that are exactly a gap apart are of one session in Spark, but not in Millrace.
SQL = {
    "q0_pass_through": "SELECT * FROM bid",
    "q1_currency": "SELECT * EXCEPT (price), price * 0.908 AS price FROM bid",
    "q2_selection": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3_local_items": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
            AND p.date_time BETWEEN a.date_time - INTERVAL 1 HOUR AND a.date_time + INTERVAL 1 HOUR
    """,
    "q4_average_price_by_category": f"SELECT category, avg(final) AS average FROM ({FINAL}) GROUP BY category",
    "q5_hot_items": f"""
        SELECT c.auction, c.bids, c.window.start AS starts, c.window.end AS ends
        FROM ({SLIDING}) c JOIN (SELECT window, max(bids) AS bids FROM ({SLIDING}) GROUP BY window) m
        ON c.window = m.window AND c.bids = m.bids
    """,
    "q6_average_price_by_seller": f"""
        SELECT seller, avg(final) AS average
        FROM (SELECT *, row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS place FROM ({FINAL}))
        WHERE place <= 10 GROUP BY seller
    """,
    "q7_highest_bid": """
        SELECT b.auction, b.bidder, b.price, b.date_time, b.extra FROM bid b
        JOIN (SELECT window, max(price) AS price FROM bid GROUP BY window(date_time, '10 seconds')) m
        ON b.price = m.price AND b.date_time >= m.window.start AND b.date_time < m.window.end
    """,
    "q8_new_users": """
        SELECT p.id, p.name, p.starts
        FROM (SELECT id, name, window.start AS starts FROM person GROUP BY id, name, window(date_time, '10 seconds')) p
        JOIN (SELECT seller, window.start AS starts FROM auction GROUP BY seller, window(date_time, '10 seconds')) a
        ON p.id = a.seller AND p.starts = a.starts
    """,
    "q9_winning_bids": f"""
        SELECT id, item_name, seller, category, bidder, price, made, extra
        FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY price DESC, made) AS place FROM ({PAIRS}))
        WHERE place = 1
    """,
    "q11_user_sessions": """
        SELECT bidder, session_window.start AS window_start, count(*) AS bids,
            session_window.end + INTERVAL 1 MICROSECOND AS window_end
        FROM bid GROUP BY bidder, session_window(date_time, '9999999 microseconds')
    """,
    "q12_bids_by_the_clock": "SELECT bidder, count(*) AS bids FROM bid GROUP BY bidder",
    "q16_channel_statistics": f"""
        SELECT channel, date_trunc('day', date_time) AS window_start, max(date_time) AS last_bid, count(*) AS bids,
            count_if({LOW}) AS low_bids, count_if({MIDDLE}) AS middle_bids, count_if({HIGH}) AS high_bids,
            count(DISTINCT bidder) AS bidders,
            count(DISTINCT bidder) FILTER (WHERE {LOW}) AS low_bidders,
            count(DISTINCT bidder) FILTER (WHERE {MIDDLE}) AS middle_bidders,
            count(DISTINCT bidder) FILTER (WHERE {HIGH}) AS high_bidders,
            count(DISTINCT auction) AS auctions,
            count(DISTINCT auction) FILTER (WHERE {LOW}) AS low_auctions,
            count(DISTINCT auction) FILTER (WHERE {MIDDLE}) AS middle_auctions,
            count(DISTINCT auction) FILTER (WHERE {HIGH}) AS high_auctions
        FROM bid GROUP BY 1, 2
    """,
    "q17_auction_statistics": f"""
        SELECT auction, date_trunc('day', date_time) AS window_start, count(*) AS bids,
            count_if({LOW}) AS low_bids, count_if({MIDDLE}) AS middle_bids, count_if({HIGH}) AS high_bids,
            min(price) AS least, max(price) AS greatest, avg(price) AS average, sum(price) AS total
        FROM bid GROUP BY 1, 2
    """,
    "q18_last_bid": """
        SELECT bidder, auction, max(date_time) AS date_time, max_by(price, (date_time, price)) AS price,
            max_by(channel, (date_time, channel)) AS channel, max_by(url, (date_time, url)) AS url,
            max_by(extra, (date_time, extra)) AS extra
        FROM bid GROUP BY bidder, auction
    """,
    "q19_top_bids": """
        SELECT auction, bidder, price, date_time AS made, extra, rank
        FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, bidder DESC) AS rank FROM bid)
        WHERE rank <= 10
    """,
    "q20_expanded_bids": """
        SELECT b.*, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS opened, a.expires, a.seller,
            a.category
        FROM bid b JOIN auction a ON a.id = b.auction
            AND a.date_time BETWEEN b.date_time - INTERVAL 1 HOUR AND b.date_time + INTERVAL 1 HOUR
        WHERE a.category = 10
    """,
}
