"""SQL from clients: what it can read, and the many ways in which it cannot break out."""

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace import MillraceError, agg, memory, on, window
from millrace.model.connectors import Commit
from millrace.views.guarded import guard
from millrace.views.rights import EVERYTHING, Rights, Scope
from millrace.views.rowfilter import parse_filter
from millrace.views.shape import shape_of
from millrace.views.store import NoViewsError, Store, open_store
from postgres import Postgres
from stores import answers

SOURCE = memory("events", "k STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
QUERY = SOURCE.window(window.fixed("1h")).trigger(on.each()).retracting().aggregate(n=agg.count(), total=agg.sum("v"))
SHAPES = {name: shape_of(name, QUERY) for name in ("hourly", "secret")}
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
VIEWS = {"hourly": ("k", "window_start", "n"), "Big": ("k",)}
ONE = Rights(Scope.READ, views=frozenset(["hourly"]))
NORWAY = Rights(Scope.READ, frozenset(["hourly"]), row_filters=(("hourly", "k = 'NO'"),))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the views hourly and secret; in PostgreSQL, with a table that is not Millrace's, too."""
    if request.param == "sqlite":
        url = str(tmp_path_factory.mktemp("store") / "views.db")
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.empty()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE users AS SELECT 'a password' AS password")
    with closing(open_store(url)) as opened:
        opened.open("p", list(SHAPES.values()))
        rows = [(1, (k, NOON, NOON + timedelta(hours=1), n, 10 * n, "early", 0, False)) for k, n in COUNTS.items()]
        opened.commit(Commit("p", "c", 0), {name: answers(shape, rows) for name, shape in SHAPES.items()}, once=True)
        yield opened


COUNTS = {"NO": 1, "SE": 2, "DK": 3, "FI": 0}


def selected(store: Store, sql: str, rights: Rights = EVERYTHING, params: tuple[Any, ...] = ()) -> list[Any]:
    with store.select(sql, 10, params, rights) as found:
        return found.fetch(1_000)


# What it can do

ANSWERED = [
    ("SELECT k FROM hourly WHERE n > 1 ORDER BY k", [("DK",), ("SE",)]),
    ("SELECT h.k, h.n + 1 FROM hourly AS h WHERE h.k IN ('NO', 'SE') ORDER BY 2 DESC LIMIT 1", [("SE", 3)]),
    ("SELECT count(*), sum(n), max(k) FROM hourly", [(4, 6, "SE")]),
    ("WITH t AS (SELECT k, n FROM hourly WHERE n > 1) SELECT count(*) FROM t", [(2,)]),
    ("WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 9) SELECT count(*) FROM r", [(9,)]),
    ("SELECT count(*) FROM (SELECT k FROM hourly) AS x", [(4,)]),
    ("SELECT a.k FROM hourly a JOIN secret b ON a.k = b.k AND b.n = 3", [("DK",)]),
    ("SELECT k FROM hourly WHERE EXISTS (SELECT 1 FROM secret WHERE secret.k = hourly.k AND n = 1)", [("NO",)]),
    ("SELECT k FROM HOURLY WHERE n = 1 UNION SELECT k FROM secret WHERE n = 2 ORDER BY 1", [("NO",), ("SE",)]),
    ("SELECT upper(lower(k)), coalesce(NULL, length(k)), CASE WHEN n = 1 THEN 'a' END FROM hourly WHERE k = 'NO'",
     [("NO", 2, "a")]),
    ("SELECT t.a, t.b, h.* FROM (SELECT k AS a, n AS b FROM secret WHERE k = 'X') AS t JOIN hourly h ON h.k = t.a", []),
    ("WITH t(c) AS (SELECT k FROM hourly WHERE n = 1) SELECT t.c FROM t", [("NO",)]),
    ("SELECT k, row_number() OVER (ORDER BY n) FROM hourly ORDER BY n LIMIT 2", [("FI", 1), ("NO", 2)]),
    ("VALUES (1, 'it''s -- no /* comment')", [(1, "it's -- no /* comment")]),
    ("-- a comment\nSELECT /* another */ 'a\\b' || '$1';", [("a\\b$1",)]),
    ("SELECT n FROM hourly WHERE k LIKE 'N%' AND NOT n BETWEEN 2 AND 3 AND k IS NOT NULL", [(1,)]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "rows"), ANSWERED)
def test_a_query_over_views_is_answered(store: Store, sql: str, rows: list[Any]) -> None:
    assert [tuple(row) for row in selected(store, sql)] == rows


def test_parameters_are_values(store: Store) -> None:
    assert selected(store, "SELECT k FROM hourly WHERE k = $1 AND n = $2", params=("NO", 1)) == [("NO",)]


# What it cannot do

BOTH = [
    # writes
    "DELETE FROM hourly", "UPDATE hourly SET n = 1", "INSERT INTO hourly VALUES (1)", "DROP TABLE hourly__1",
    "DROP VIEW hourly", "CREATE TABLE t AS SELECT * FROM hourly", "ALTER TABLE hourly__1 ADD x INT", "VACUUM",
    "SELECT * INTO t FROM hourly", "WITH t AS (DELETE FROM hourly__1 RETURNING *) SELECT * FROM t",
    "WITH t AS (INSERT INTO hourly__1 SELECT * FROM hourly RETURNING *) SELECT * FROM t",
    # several statements, however they are written
    "SELECT 1; SELECT 2", "SELECT 1; DROP TABLE hourly__1", "SELECT 1 /* ; */ ; DELETE FROM hourly__1",
    "SELECT ';' ; DELETE FROM hourly__1", "BEGIN", "COMMIT; DROP TABLE hourly__1", "ROLLBACK", "SAVEPOINT a",
    "EXPLAIN SELECT 1", "EXPLAIN ANALYZE DELETE FROM hourly__1", "REINDEX", "ANALYZE",
    # what is not a view
    "SELECT * FROM millrace_store", "SELECT * FROM millrace_views", "SELECT * FROM millrace_commits",
    "SELECT * FROM hourly__1", "SELECT * FROM hourly__1_changes", 'SELECT * FROM "hourly__1"',
    "SELECT (SELECT id FROM millrace_store) FROM hourly", "SELECT * FROM hourly, millrace_store",
    "SELECT * FROM hourly UNION ALL SELECT * FROM hourly__1",
    "SELECT * FROM hourly WHERE k IN (SELECT id FROM millrace_store)",
    "SELECT k FROM hourly ORDER BY (SELECT id FROM millrace_store)",
    # a name that is a table elsewhere in the query than where WITH gives it
    "WITH millrace_store AS (SELECT * FROM millrace_store) SELECT * FROM millrace_store",
    "SELECT * FROM (WITH millrace_store AS (SELECT 1 AS a) SELECT * FROM millrace_store) AS x, millrace_store",
    "SELECT (WITH millrace_store AS (SELECT 1) SELECT 1) FROM millrace_store",
    "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",
    "WITH hourly AS (SELECT * FROM secret) SELECT * FROM hourly",
    "WITH a AS (WITH users AS (SELECT 1) SELECT * FROM users) SELECT * FROM users",
    # functions in the place of tables, and locks
    "SELECT * FROM generate_series(1, 1000000000)", "SELECT * FROM json_each('[1]')",
    "SELECT * FROM hourly FOR UPDATE", "SELECT * FROM hourly FOR SHARE", "SELECT * FROM hourly TABLESAMPLE SYSTEM (1)",
    # what makes much of little
    "SELECT repeat('a', 1000000000)", "SELECT lpad('a', 1000000000, 'b')", "SELECT random()",
    "SELECT printf('%.*c', 20000000, 'a')",
    # text that two parsers may read differently
    "SELECT 'a\\' FROM millrace_store --'",
    "SELECT 1 \0 FROM millrace_store", "SELECT id FROM\tmillrace_store", "SELECT id FROM/**/millrace_store",
    "SELECT id FROM ((millrace_store))", "TABLE millrace_store", "SELECT 1 FROM hourly WHERE",
    "SELECT [id] FROM [millrace_store]", "SELECT `id` FROM `millrace_store`",
    "SELECT id FROM \"MILLRACE_STORE\"", "SELECT id FROM main.millrace_store", "SELECT k FROM public.hourly",
    "", ";", "SELEC 1", "(" * 5_000 + "SELECT 1" + ")" * 5_000, "SELECT " + "- " * 40_000 + "1",
    "SELECT 1" + " UNION SELECT 1" * 6_000, "x" * 200_000,
]  # fmt: skip
SQLITE = [
    "ATTACH 'other.db' AS other", "ATTACH ':memory:' AS m", "DETACH main", "PRAGMA query_only = 0",
    "PRAGMA writable_schema = 1", "PRAGMA table_info(hourly)", "SELECT * FROM pragma_table_info('millrace_store')",
    "SELECT * FROM pragma_database_list", "SELECT * FROM sqlite_master", "SELECT * FROM sqlite_schema",
    "SELECT sql FROM sqlite_temp_master", "SELECT * FROM sqlite_dbpage", "SELECT * FROM dbstat",
    "SELECT load_extension('evil')", "SELECT readfile('/etc/passwd')", "SELECT writefile('a', 'b')",
    "SELECT edit('a')", "SELECT zeroblob(1000000000)", "SELECT randomblob(1000000000)", "SELECT hex(zeroblob(100))",
    "SELECT fts3_tokenizer('x')", "SELECT sqlite_version()", "SELECT sqlite_source_id()", "SELECT last_insert_rowid()",
    "SELECT instr(printf('%.*c', 20000000, 'a'), printf('%.*c', 10000000, 'b'))", "SELECT format('%s', 1)",
    "SELECT * FROM fsdir('/')", "SELECT group_concat(sql) FROM sqlite_master", "SELECT char(0), quote(k) FROM hourly",
    "SELECT likelihood(1, 0.5)", "SELECT rowid FROM hourly__1",
    "SELECT * FROM hourly INDEXED BY hourly__1_key", "VACUUM INTO 'copy.db'", "SELECT unhex('61')",
    "SELECT total_changes()",
]  # fmt: skip
POSTGRESQL = [
    "SELECT pg_advisory_lock(7265739)", "SELECT pg_advisory_xact_lock(7265739)", "SELECT pg_try_advisory_lock(1)",
    "SELECT pg_advisory_lock_shared(1) FROM hourly", "SELECT pg_terminate_backend(1)", "SELECT pg_cancel_backend(1)",
    "SELECT set_config('statement_timeout', '0', false)", "SELECT current_setting('data_directory')",
    "SELECT pg_reload_conf()", "SELECT pg_switch_wal()", "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_binary_file('/etc/passwd')", "SELECT pg_ls_dir('.')", "SELECT pg_stat_file('.')",
    "SELECT lo_import('/etc/passwd')", "SELECT lo_export(1, '/tmp/x')", "SELECT lo_creat(-1)", "SELECT lo_get(1)",
    "SELECT * FROM pg_authid", "SELECT * FROM pg_catalog.pg_authid", "SELECT * FROM pg_shadow", "SELECT * FROM users",
    "SELECT * FROM information_schema.tables", "SELECT * FROM pg_stat_activity", "SELECT * FROM pg_settings",
    "SELECT pg_sleep(100)", "SELECT pg_sleep_for('1 hour')", "SELECT 'millrace_store'::regclass",
    "SELECT CAST('postgres' AS regrole)", "SELECT 1::oid::regproc",
    "SELECT query_to_xml('DELETE FROM users', true, true, '')",
    "SELECT table_to_xml('users', true, true, '')", "SELECT database_to_xml(true, true, '')",
    "SELECT xmlparse(document '<a/>')",
    "COPY hourly TO '/tmp/x'", "COPY (SELECT 1) TO PROGRAM 'id'", "COPY users FROM PROGRAM 'id'", "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres", "SET statement_timeout = 0", "RESET ALL", "SHOW ALL", "DO $$ BEGIN END $$",
    "LISTEN a", "NOTIFY a", "LOCK TABLE users", "PREPARE a AS SELECT 1", "EXECUTE a", "DECLARE c CURSOR FOR SELECT 1",
    "DISCARD ALL", "CALL a()", "CREATE FUNCTION f() RETURNS int AS $$ SELECT 1 $$ LANGUAGE sql", "LOAD 'evil'",
    "SELECT dblink('', 'DELETE FROM users')", "SELECT nextval('s')", "SELECT setval('s', 1)", "SELECT version()",
    "SELECT current_user", "SELECT session_user", "SELECT current_database()", "SELECT inet_server_addr()",
    "SELECT E'\\' FROM users --'", "SELECT $$a$$", "SELECT $x$ FROM users $x$", "SELECT U&'\\0041'",
    "SELECT U&\"d\\0061t\" FROM users", "SELECT * FROM ROWS FROM (generate_series(1, 2))", "SELECT * FROM ONLY users",
    "SELECT password FROM hourly, LATERAL (SELECT password FROM users) AS x", "SELECT (users).password FROM users",
    "SELECT txid_current()", "SELECT pg_export_snapshot()", "SELECT pg_notify('a', 'b')", "SELECT gen_random_uuid()",
    "SELECT has_table_privilege('users', 'select')", "SELECT to_regclass('users')", "SELECT pg_relation_size('users')",
    "SELECT col_description(1, 1)", "SELECT k ~ '(a+)+$' FROM hourly", "SELECT regexp_replace(k, 'a', 'b') FROM hourly",
]  # fmt: skip


def test_there_are_many_of_them() -> None:
    assert min(len({*BOTH, *SQLITE}), len({*BOTH, *POSTGRESQL})) >= 100


def test_nothing_else_can_be_done(store: Store) -> None:
    """Each is refused as a mistake, says why, tells nothing of the server, and leaves all as it was."""
    is_sqlite = store.url.startswith("sqlite")
    before = store.version(), store.rows("hourly").rows
    for sql in [*BOTH, *(SQLITE if is_sqlite else POSTGRESQL)]:
        with pytest.raises(MillraceError) as refused:
            pytest.fail(f"{sql[:200]} was answered: {selected(store, sql, ONE)}")
        assert refused.value.kind in ("mistake", "not-found"), (sql[:200], refused.value)
        assert not isinstance(refused.value, NoViewsError), sql[:200]
        assert "views.db" not in refused.value.message
        assert "a password" not in refused.value.message
    assert (store.version(), store.rows("hourly").rows) == before


def test_a_view_that_a_caller_may_not_read_does_not_exist_for_him(store: Store) -> None:
    for sql in ("SELECT * FROM secret", "SELECT k FROM hourly WHERE n IN (SELECT n FROM secret)", "TABLE secret"):
        with pytest.raises(MillraceError) as refused:
            selected(store, sql, ONE)
        assert "secret' (known: hourly)" in refused.value.message or "only reads" in refused.value.message
    with (
        pytest.raises(MillraceError, match=r"unknown view 'secret' \(known: hourly\)"),
        store.stream("secret", rights=ONE),
    ):
        pass
    with pytest.raises(MillraceError, match=r"unknown view 'secret'"), store.stream_changes("secret", 0, ONE):
        pass


def test_a_row_filter_is_in_every_read(store: Store) -> None:
    for sql in (
        "SELECT k FROM hourly", "SELECT h.k FROM hourly h WHERE TRUE OR h.k = 'SE'",
        "SELECT hourly.k FROM hourly UNION SELECT k FROM hourly WHERE 1 = 1 OR k = 'SE'",
        "WITH t AS (SELECT * FROM hourly) SELECT t.k FROM t", "SELECT max(k) FROM hourly",
        "SELECT k FROM hourly WHERE n < ALL (SELECT 100) OR EXISTS (SELECT 1 FROM hourly)" if "sqlite" not in store.url
        else "SELECT k FROM hourly WHERE EXISTS (SELECT 1 FROM hourly WHERE k <> 'NO') OR n < 100",
    ):  # fmt: skip
        assert [tuple(row) for row in selected(store, sql, NORWAY)] == [("NO",)], sql
    with store.stream("hourly", rights=NORWAY) as rows:
        assert [row["k"] for batch in rows.batches for row in batch.to_pylist()] == ["NO"]
    with store.stream_changes("hourly", 0, NORWAY) as changes:
        assert [row["k"] for batch in changes.batches for row in batch.to_pylist()] == ["NO"]


def test_an_error_tells_nothing_of_rows_that_are_filtered(store: Store) -> None:
    """Of the rows that a filter leaves, none divides by zero; that of FI would, in a condition that costs less."""
    costly = Rights(Scope.READ, row_filters=(("hourly", "total = 10 OR total = 91 OR total = 92 OR total = 93"),))
    assert [tuple(row) for row in selected(store, "SELECT k FROM hourly WHERE 1 / n = 1", costly)] == [("NO",)]


@pytest.mark.parametrize(
    "condition",
    [
        "k = (SELECT max(k) FROM hourly)", "k = 'NO' OR 1 = pg_sleep(1)", "k = 'NO') OR (1 = 1", "k = 'NO' --", "k =",
        "1 = 1 UNION SELECT 1", "k = 'NO'; DROP TABLE hourly", "upper(k) = 'NO'", "hourly.k = 'NO'", "",
        "k = 'NO' ORDER BY 1", "k = 'NO' LIMIT 1", "k IN (SELECT 1)",
    ],
)  # fmt: skip
def test_a_row_filter_is_a_plain_condition(condition: str) -> None:
    if condition == "k = 'NO' --":
        assert parse_filter(condition).sql(comments=False) == "\"k\" = 'NO'"
        return
    with pytest.raises(MillraceError, match="row filter"):
        parse_filter(condition)


def test_the_authorizer_alone_holds(tmp_path: Path) -> None:
    """Even SQL that passes the parser reads only the tables of its views."""
    from millrace.views.sqlite_limits import limit

    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.executescript("CREATE TABLE v__1 (k); CREATE TABLE t (k); CREATE VIEW v AS SELECT k FROM v__1")
        limit(connection, {"v": "v__1"}, lambda: False)
        connection.execute("SELECT count(*), max(k) FROM v").fetchall()
        for sql in ("SELECT * FROM t", "SELECT * FROM v__1", "WITH v AS (SELECT * FROM t) SELECT * FROM v",
                    "SELECT * FROM sqlite_master", "PRAGMA table_info(t)", "ATTACH ':memory:' AS m",
                    "SELECT printf('%d', 1)", "CREATE TABLE x (y)", "SELECT zeroblob(1)", "SELECT count(*) FROM t",
                    "SELECT * FROM pragma_table_info('t')"):  # fmt: skip
            with pytest.raises(sqlite3.DatabaseError):
                connection.execute(sql).fetchall()


def test_what_runs_is_written_from_what_was_checked() -> None:
    sql = "select H.k /* x */, count(*) from HOURLY as H where k = $1 group by 1 -- end"
    assert guard(sql, "postgres", VIEWS, EVERYTHING).sql == (
        'SELECT H.k, COUNT(*) FROM "hourly" AS H WHERE k = $1 GROUP BY 1'
    )
    filtered = guard("SELECT * FROM hourly", "sqlite", VIEWS, NORWAY)
    assert filtered.sql == (
        'SELECT * FROM (SELECT "k", "window_start", "n" FROM "hourly" WHERE "k" = \'NO\' LIMIT -1 OFFSET 0) AS hourly'
    )
    assert not guard("SELECT k, CURRENT_TIMESTAMP FROM hourly", "postgres", VIEWS, EVERYTHING).is_stable
    assert not guard("SELECT date('now')", "sqlite", VIEWS, EVERYTHING).is_stable


# PostgreSQL's sessions


def test_a_session_keeps_nothing_of_a_query(postgres: Postgres) -> None:
    """A local query may call functions; what it does to its session is gone before the session is used again."""
    with closing(open_store(postgres.empty())) as store, closing(open_store(store.url)) as other:
        store.open("p", [SHAPES["hourly"]])
        store.query("SELECT pg_advisory_lock(7265739)")
        store.query("SELECT set_config('timezone', 'Asia/Tokyo', false)")
        began = time.monotonic()
        assert other.query("SELECT count(*) FROM hourly").rows == [(0,)]
        other.swap("p", other.generations("p")[0].number)
        assert time.monotonic() - began < 5
        assert store.query("SELECT current_setting('timezone')").rows == [("UTC",)]


def test_the_time_limit_includes_the_wait_for_a_lock(postgres: Postgres) -> None:
    with closing(open_store(postgres.empty())) as store, psycopg.connect(store.url) as holder:
        store.open("p", [SHAPES["hourly"]])
        holder.execute("SELECT pg_advisory_lock(7265739)")
        with pytest.raises(MillraceError, match=r"longer than 0\.3 s"):
            store.query("SELECT 1", 0.3)


def test_the_number_of_readers_is_bounded(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.views import postgresql

    monkeypatch.setattr(postgresql, "_PATIENCE", 0.1)
    monkeypatch.setattr(postgresql, "_MOST_READERS", 2)
    with closing(open_store(postgres.empty())) as store:
        store.open("p", [SHAPES["hourly"]])
        with store.select("SELECT 1"), store.select("SELECT 1"):
            told: list[Exception] = []
            thread = threading.Thread(target=lambda: told.append(_error(store)))
            thread.start()
            thread.join()
        assert "2 queries are reading the store already" in str(told[0])
        assert store.query("SELECT 1").rows == [(1,)]


def _error(store: Store) -> Exception:
    try:
        store.query("SELECT 1")
    except MillraceError as error:
        return error
    return AssertionError("it was answered")


def test_the_login_of_the_page_may_only_read(postgres: Postgres) -> None:
    """Its statements are run, with the names of this test. It reads views that are made before and after."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "postgresql.md"
    statements = re.findall(r"^    ((?:CREATE ROLE|GRANT|ALTER) .*;)$", page.read_text(), re.MULTILINE)
    assert len(statements) == 5
    with closing(open_store(postgres.empty())) as store, psycopg.connect(store.url, autocommit=True) as owner:
        (schema,) = owner.execute("SELECT current_schema()").fetchone() or ("",)
        store.open("p", [SHAPES["hourly"]])
        for each in statements:
            owner.execute(each.replace("public", schema).replace("ROLE me ", "ROLE postgres ").encode())
        store.open("q", [SHAPES["secret"]])
        url = f"{postgres.url(user='reader')}&options=-csearch_path%3D{schema}"
        with closing(open_store(url)) as reader:
            assert selected(reader, "SELECT count(*) FROM hourly") == selected(reader, "SELECT count(*) FROM secret")
            with reader.stream("hourly") as rows:
                assert list(rows.batches) == []
            with psycopg.connect(url, autocommit=True) as plain:
                for sql in ("DELETE FROM hourly__1", "CREATE TABLE t (a INT)", "SELECT pg_read_file('/etc/passwd')"):
                    with pytest.raises(psycopg.Error):
                        plain.execute(sql.encode())


def test_seconds_are_seconds(store: Store) -> None:
    for seconds in (float("nan"), -1.0, 0.0, float("inf")):
        with pytest.raises(MillraceError, match="the time limit of a query is a number"):
            store.query("SELECT 1", seconds)
    assert store.query("SELECT 1", 1e300).rows == [(1,)]


def test_rights_are_plain_values() -> None:
    assert json.loads(json.dumps(ONE.scope)) == "read"
    assert not Rights(Scope.SEND).may_read("hourly")
    assert Rights(Scope.SEND, topics=frozenset(["plays"])).may_send("plays")
    assert not Rights(Scope.SEND, topics=frozenset(["plays"])).may_send("other")
    assert not Rights(Scope.READ).may_send("plays")
    assert Rights(Scope.READ).reads_all
    assert not ONE.reads_all
    assert EVERYTHING.is_admin
