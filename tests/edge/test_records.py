"""Records of every form: NOT NULL, unknown fields, and CSV as Python's csv module reads it."""

import bz2
import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace import Pipeline, PipelineError, agg, files, log, table, to_topic, window
from millrace.edge.records import RecordDecoder
from millrace.formats.csvfile import records_of
from millrace.formats.csvrows import rows_of
from millrace.model.schema import parse_schema
from millrace.model.stream import Source
from millrace.plan.fingerprint import fingerprint_of
from millrace.sources.bundle import Bundle
from millrace.sources.files import Files
from millrace.testing import Script, run_script

PLAYS = "user STRING NOT NULL, ms BIGINT NOT NULL, note STRING"


def of_texts(*texts: str) -> Bundle:
    return Bundle("t/0", np.arange(len(texts)), pa.array(texts, pa.string()))


def of_file(folder: Path, source: Source) -> Bundle:
    found = Files(source, folder.parent / "journal")
    (split,) = found.splits(0, found.end())
    return split.read()


def decoded(source: Source, bundle: Bundle, wanted: set[str] | None = None) -> tuple[list[Any], dict[int, str]]:
    rows, misfits = RecordDecoder(source, wanted).decode(bundle)
    return rows.to_pylist(), {each.row: each.reason for each in misfits}


GIVEN = [
    '{"user": "ann", "ms": 1, "note": null}',
    '{"ms": 1}',
    '{"user": null, "ms": 2}',
    '{"user": "7", "ms": "x"}',
    '{"user": "[", "ms": null}',
    '{"user": "", "ms": 0}',
]


@pytest.mark.parametrize("wanted", [None, {"note"}, {"user", "ms"}])
def test_a_record_without_a_value_for_a_column_that_is_not_null_is_set_aside(wanted: set[str] | None) -> None:
    rows, reasons = decoded(log("plays", PLAYS), of_texts(*GIVEN), wanted)
    assert [row["ms"] for row in rows] == [1, 0]
    assert reasons == {
        1: "user is missing or null, but NOT NULL",
        2: "user is missing or null, but NOT NULL",
        3: "ms is not BIGINT: 'x'",
        4: "ms is missing or null, but NOT NULL",
    }


def test_the_reference_sets_the_same_records_aside() -> None:
    source = log("plays", PLAYS, strict=True)
    pipeline = Pipeline("p", sinks=[source.to(to_topic("out"))])
    unknown: Any = {"user": "ann", "ms": 1, "usr": 2}
    answers = run_script(pipeline, Script().rows("plays", *GIVEN, unknown))
    assert [row["user"] for row in answers["topic out"]] == ["", "ann"]
    assert [each.reason for each in answers.dead_letters[-2:]] == [
        "ms is missing or null, but NOT NULL",
        "unknown field 'usr'; did you mean 'user'? (known: user, ms, note)",
    ]
    lenient = Pipeline("p", sinks=[log("plays", PLAYS).to(to_topic("out"))])
    with pytest.raises(PipelineError, match="unknown column 'usr'; did you mean 'user'"):
        run_script(lenient, Script().rows("plays", unknown))


def test_a_strict_source_sets_records_with_unknown_fields_aside_and_names_the_field() -> None:
    texts = [
        '{"user": "a", "ms": 1, "notes": 1}',
        "no JSON",
        '{"user": "a", "\\u006ds": 1}',
        '{"user": "a", "ms": 1, "x": {"user": [1,]}}',
    ]
    rows, reasons = decoded(log("plays", PLAYS, strict=True), of_texts(*texts))
    assert [row["ms"] for row in rows] == [1]
    assert reasons == {
        0: "unknown field 'notes'; did you mean 'note'? (known: user, ms, note)",
        1: "it is not a JSON object: 'no JSON'",
        3: "unknown field 'x' (known: user, ms, note)",
    }
    assert decoded(log("plays", PLAYS), of_texts(*texts))[1] == {1: "it is not a JSON object: 'no JSON'"}


def test_not_null_holds_in_files_of_columns_also_if_nothing_reads_the_column(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"user": ["a", None, "c"], "ms": [1, 2, None], "more": [1, 2, 3]}), folder / "a.parquet")
    rows, reasons = decoded(files(str(folder), PLAYS, "parquet"), of_file(folder, files(str(folder), PLAYS, "parquet")))
    assert [row["user"] for row in rows] == ["a"]
    assert reasons == {1: "user is missing or null, but NOT NULL", 2: "ms is missing or null, but NOT NULL"}
    with pytest.raises(PipelineError, match=r"a.parquet: unknown column 'more'"):
        of_file(folder, files(str(folder), PLAYS, "parquet", strict=True))


MISTAKES = [
    (lambda: log("t", "a INT DEFAULT 5"), "column 'a' has DEFAULT 5, which no source can promise; leave it out"),
    (lambda: log("t", "a INT PRIMARY KEY"), "a column can only be NOT NULL"),
    (lambda: table("t", "a INT NOT NULL", rows=[{"a": 1}]), "column 'a' is NOT NULL, which only a source can be"),
    (lambda: files("f", "a INT", "cvs"), "unknown file format 'cvs' (known: json, csv, parquet)"),
    (lambda: files("f", "a INT", "json", delimiter=";"), "delimiter= is for CSV files, and these are json"),
    (lambda: files("f", "a INT", "csv", delimiter="::"), "one ASCII character"),
    (lambda: files("f", "a INT", "csv", delimiter='"'), "one ASCII character"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "said"), MISTAKES)
def test_what_a_source_refuses(mistake: Any, said: str) -> None:
    with pytest.raises(PipelineError) as error:
        mistake()
    assert said in error.value.message


def test_not_null_is_part_of_the_schema_but_not_of_the_computation() -> None:
    assert str(parse_schema({"a": "INT NOT NULL", "b": "STRING NULL COMMENT 'x'"})) == "a INT NOT NULL, b STRING"
    one, other = (log(name, f"a INT {null}") for name, null in (("x", "NOT NULL"), ("y", "")))
    both = one.union(other).window(window.all_time()).aggregate(n=agg.count())
    assert "log x (a INT NOT NULL)" in both.explain()
    strict, lax = (log("x", f"a INT {null}", strict=bool(null)) for null in ("NOT NULL", ""))
    assert fingerprint_of(strict.where("a > 1")) == fingerprint_of(lax.where("a > 1"))


# --- CSV ---


def csv_source(folder: Path, data: bytes, schema: str, name: str = "a.csv", **options: Any) -> tuple[Source, Bundle]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    source = files(str(folder), schema, "csv", **options)
    return source, of_file(folder, source)


def test_bad_lines_of_csv_are_set_aside_with_the_line(tmp_path: Path) -> None:
    data = b'id;name;at\r\n1;"a;""b\r\nc";2026-01-01\r\n\r\nx;d;\r\n2;e\r\n3;\xff;\r\n4;;"";\r\n5;"open;\r\n6;x;\r\n'
    schema = "at TIMESTAMP, id BIGINT NOT NULL, name STRING, other STRING"
    compressed = {
        "a.csv": data, "a.csv.gz": gzip.compress(data), "a.csv.bz2": bz2.compress(data),
        "a.csv.zst": pa.compress(data, "zstd", asbytes=True),
    }  # fmt: skip
    for name, stored in compressed.items():
        (tmp_path / name).mkdir()
        source, bundle = csv_source(tmp_path / name / "in", stored, schema, name)
        assert bundle.texts is not None
        rows, reasons = decoded(source, bundle)
        assert [(row["id"], row["name"], row["at"] is not None, row["other"]) for row in rows] == [
            (1, 'a;"b\r\nc', True, None)
        ]
        assert {bundle.texts[place].as_py(): reason for place, reason in reasons.items()} == {
            "x;d;\r\n": "id is not BIGINT: 'x'",
            "2;e\r\n": "it has 2 fields, not 3 as the first row",
            None: "it is not text in UTF-8",
            '4;;"";\r\n': "it has 4 fields, not 3 as the first row",
            '5;"open;\r\n6;x;\r\n': "a quote is opened and never closed",
        }
        assert [data[at:][:1] for at in bundle.offsets.tolist()] == [b"1", b"x", b"2", b"3", b"4", b"5"]


def test_an_empty_field_of_csv_is_null_and_an_empty_text_is_not(tmp_path: Path) -> None:
    source, bundle = csv_source(tmp_path / "in", b'a|b\n|""\n', "a STRING, b STRING NOT NULL", delimiter="|")
    assert decoded(source, bundle) == ([{"a": None, "b": ""}], {})


@pytest.mark.parametrize("data", [b"a,b\r1,2\r", b"\xef\xbb\xbfa,b\n1,2", b"\r\na,b\r\n1,2\r\n", b'"a",b\n1,"2"'])
def test_line_ends_and_byte_order_marks_of_csv(tmp_path: Path, data: bytes) -> None:
    source, bundle = csv_source(tmp_path / "in", data, "a INT, b INT")
    assert decoded(source, bundle) == ([{"a": 1, "b": 2}], {})


def test_a_strict_csv_file_has_no_other_columns(tmp_path: Path) -> None:
    source, bundle = csv_source(tmp_path / "in", b"a,bb\n1,2\n", "a INT, b INT", strict=True)
    assert decoded(source, bundle) == ([], {0: "unknown field 'bb' (known: a, b)"})


@pytest.mark.parametrize("data", [b"", b"\n\r\n", b"a,b\n", b"a,b"])
def test_a_csv_file_without_rows_has_none(tmp_path: Path, data: bytes) -> None:
    source, bundle = csv_source(tmp_path / "in", data, "a INT, b INT")
    assert decoded(source, bundle) == ([], {})


def test_a_csv_file_whose_first_row_names_no_columns_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="names column 'a' twice; correct the file, or move it away and go on"):
        csv_source(tmp_path / "in", b"a,a\n1,2\n", "a INT")


signs = st.sampled_from("a\"',;\n\r é5 ") | st.characters(codec="utf-8", exclude_characters="\0\ufeff")
values = st.text(signs, max_size=6)
csv_tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(values, min_size=width, max_size=width), max_size=8)
)


@given(csv_tables, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.sampled_from(["\n", "\r\n"]))
def test_csv_that_python_writes_is_read_as_python_wrote_it(rows: list[list[str]], quoting: Any, ends: str) -> None:
    names = [f"c{number}" for number in range(len(rows[0]) if rows else 1)]
    text = io.StringIO()
    writer = csv.writer(text, quoting=quoting, lineterminator=ends)
    writer.writerow(names)
    writer.writerows(rows)
    found = records_of("a file", text.getvalue().encode())
    assert found.wrong == {}
    assert [[value or "" for value in row.values()] for row in found.cells.to_pylist()] == rows


@given(st.text(alphabet='ab,"\n\r', max_size=30))
@example('5" pipe,"a"b"c"\n"x\ny",\r"')
def test_records_of_any_csv_are_those_of_python(text: str) -> None:
    expected = [row for row in csv.reader(io.StringIO(text, newline=""), strict=False) if row]
    rows = rows_of(text.encode(), ",")
    assert rows.fields.tolist() == [len(row) for row in expected]
    names = ",".join(f"c{number}" for number in range(len(expected[0]) if expected else 1))
    found = records_of("a file", f"{names}\n{text}".encode(), ",")
    kept = [row for place, row in enumerate(expected) if place not in found.wrong]
    assert [[value or "" for value in row.values()] for row in found.cells.to_pylist()] == kept
