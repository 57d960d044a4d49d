"""Dead letters as a thing to work with: listed once each, fixed, sent again exactly once, dropped."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace import ConflictError, CorruptError, MillraceError, NotFoundError, PipelineError
from millrace.eventlog.sealed import sealed
from millrace.eventlog.topics import Log
from millrace.letters.box import LetterBox, box_of, find_box
from millrace.letters.editing import edited, to_edit
from millrace.letters.fixing import assigned, fix, fix_texts
from millrace.letters.letter import Chosen, LetterSource, Rejected, State
from millrace.letters.resending import HEADER, resend
from millrace.model.schema import parse_schema

SCHEMA = parse_schema("user STRING, ms BIGINT, at TIMESTAMP")
OUTPUTS = ("view hourly", "view daily")
BAD_TIME = "at is not TIMESTAMP"


def never(rejected: Rejected, uid: str) -> bool:
    return False


def rejected(offset: int | None, value: str | None, output: str | None = None, problem: str = BAD_TIME) -> Rejected:
    return Rejected("plays", "plays/0", 0, offset, output, problem, f"{problem}: {value}", "a hint", value)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "log.db")
    log.create("plays", partitions=2)
    return log


class Run:
    """A pipeline that sets records aside."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.box = box_of(folder, "charts")
        self.log = log
        self.source = LetterSource("plays", "log", SCHEMA, OUTPUTS, log.uid_of("plays"))

    def put(self, batch: int, *letters: Rejected, checkpoint: str = "one", now: int = 1) -> int:
        many = self.box.put(letters, {"plays": self.source}, checkpoint, batch, now)
        if checkpoint == "one":
            self.serve("one")
        return many

    def serve(self, checkpoint: str, is_unread: Callable[[Rejected, str], bool] = never) -> None:
        self.box.serve(checkpoint, {"plays": self.source}, is_unread)

    def values(self) -> list[Any]:
        read = [self.log.read("plays", part, 0, end).to_pylist() for part, end in enumerate(self.log.ends("plays"))]
        return [record for part in read for record in part]


@pytest.fixture
def run(tmp_path: Path, log: Log) -> Run:
    return Run(tmp_path, log)


def shown(box: LetterBox) -> list[tuple[int | None, str | None, str]]:
    return [(each.rejected.offset, each.rejected.output, each.state) for each in box.letters()]


def test_a_record_is_listed_once_however_often_it_is_met(run: Run) -> None:
    bad = rejected(7, "x")
    assert run.put(0, bad, rejected(8, "y")) == 2
    assert run.put(0, bad, rejected(8, "y")) == 2, "a repeated micro-batch reports what it reported"
    assert run.put(1, bad, rejected(9, "z")) == 1, "another edge reads the record one micro-batch later"
    assert [offset for offset, _, _ in shown(run.box)] == [7, 8, 9]


def test_outputs_that_have_no_value_for_a_record_have_a_letter_each(run: Run) -> None:
    run.put(0, *(rejected(7, "{}", output, "1 / ms has no value") for output in OUTPUTS))
    assert shown(run.box) == [(7, "view hourly", "dead"), (7, "view daily", "dead")]


def test_answers_without_a_value_are_listed_by_micro_batch(run: Run) -> None:
    answer = Rejected("plays", "view hourly", None, None, "view hourly", "too big", "too big", None, '{"user": "ann"}')
    assert [run.put(0, answer), run.put(0, answer), run.put(1, answer)] == [1, 1, 1]
    assert len(run.box.letters()) == 2


def test_reasons_are_counted_with_their_first_and_last_time(run: Run) -> None:
    run.put(0, rejected(1, "x"), rejected(2, "y"), now=5)
    run.put(1, rejected(3, "z"), rejected(4, "{", problem="it is not a JSON object"), now=9)
    found = [(each.problem, each.letters, each.first, each.last) for each in run.box.problems()]
    assert found == [(BAD_TIME, 3, 5, 9), ("it is not a JSON object", 1, 9, 9)]


def test_a_replay_lists_what_it_meets_when_it_is_served_and_a_rollback_what_was_before(run: Run) -> None:
    run.put(0, rejected(1, "x"), rejected(2, "y"))
    run.put(0, rejected(2, "y"), rejected(5, "new"), checkpoint="two", now=50)
    assert [offset for offset, _, _ in shown(run.box)] == [1, 2], "the replay is not served yet"
    run.serve("two")
    assert [(each.rejected.offset, each.at) for each in run.box.letters()] == [(2, 1), (5, 50)]
    run.serve("one")
    assert [offset for offset, _, _ in shown(run.box)] == [1, 2]


def test_a_replay_takes_over_the_letters_of_records_that_it_cannot_read(run: Run) -> None:
    run.put(0, rejected(1, "x"), rejected(2, "y"))
    run.box.fix({1: '{"ms": 1}'})
    run.serve("two", lambda letter, uid: uid == run.source.uid and letter.offset == 1)
    assert shown(run.box) == [(1, None, "fixed")]
    assert resend(run.box, run.log, Chosen()) == 1, "its source is known although the replay has set nothing aside"


def test_a_batch_takes_the_place_of_the_batch_before_it_and_the_stream_keeps_its_letters(run: Run) -> None:
    run.put(0, rejected(1, "x"), rejected(2, "y"))
    for number, batch in enumerate(("batch a", "batch b", "batch c")):
        run.put(0, rejected(10 + number, "z"), checkpoint=batch)
        run.serve(batch, lambda letter, uid: letter.offset == 1)
        assert [offset for offset, _, _ in shown(run.box)] == [1, 10 + number]
    run.serve("one")
    assert [offset for offset, _, _ in shown(run.box)] == [1, 2]


def test_a_rollback_after_another_replay_shows_what_was_served_before_it(run: Run) -> None:
    for number, checkpoint in enumerate(("one", "two", "one", "three", "one")):
        run.put(0, rejected({"one": 1, "two": 2, "three": 3}[checkpoint], "x"), checkpoint=checkpoint, now=number)
        run.serve(checkpoint)
    assert [offset for offset, _, _ in shown(run.box)] == [1]


def test_letters_are_checked_against_the_schema_that_is_served(run: Run) -> None:
    run.put(0, rejected(1, '{"ms": "5 s"}'))
    run.source = replace(run.source, schema=parse_schema("ms STRING"))
    run.serve("two", lambda letter, uid: True)
    assert resend(run.box, run.log, Chosen(), unchanged=True) == 1


def test_a_file_that_was_replaced_has_other_records_at_its_places(tmp_path: Path) -> None:
    box, source = box_of(tmp_path, "charts"), LetterSource("in", "files", SCHEMA, OUTPUTS)
    bad = Rejected("in", "in/1.json", None, 0, None, BAD_TIME, BAD_TIME, None, "old")
    box.put([bad], {"in": source}, "one", 0, 1)
    box.serve("one", {"in": source}, never)
    box.fix({1: '{"ms": 1}'})
    box.put([replace(bad, value="new")], {"in": source}, "one", 1, 2)
    ((letter),) = box.letters()
    assert (letter.rejected.value, letter.state, letter.fixed) == ("new", State.DEAD, None)


def test_a_topic_that_was_made_again_has_letters_of_its_own(run: Run) -> None:
    run.put(0, rejected(1, "x"))
    run.source = replace(run.source, uid="another")
    assert run.put(1, rejected(1, "x")) == 1


def test_a_field_is_set_by_an_expression_over_the_fields_of_the_record(run: Run) -> None:
    run.put(0, rejected(1, '{"user": "ann", "ms": 1, "at": 1700000000000, "more":  [1.50]}'))
    assert fix(run.box, Chosen(), {"at": "timestamp_millis(at)", "user": "upper(user)"}).fixed == 1
    (letter,) = run.box.letters()
    assert letter.state is State.FIXED
    assert letter.fixed == '{"user": "ANN", "ms": 1, "at": "2023-11-14T22:13:20+00:00", "more":  [1.50]}'.replace(
        ': "ANN"', ':"ANN"'
    ).replace(': "2023', ':"2023')


@pytest.mark.parametrize(
    ("text", "sql", "made"),
    [
        ('{"ts": 1}', "timestamp_seconds(ts)", "1970-01-01T00:00:01+00:00"),
        ('{"a": "x"}', "coalesce(ms, 5)", 5),
        ('{"a": "12"}', "CAST(a AS BIGINT) + 1", 13),
        ('{"a": true}', "if(a, 1, 0)", 1),
        ('{"a": 2.5}', "a * 2", 5.0),
        ('{"a": null, "ms": "x"}', "length(ms)", 1),
        ('{"a": {"b": 1}}', "a", '{"b": 1}'),
        ('{"a": 99999999999999999999}', "substring(a, 1, 2)", "99"),
        ('{"a": "31/01/2026 12:30"}', "to_timestamp(a, 'dd/MM/yyyy HH:mm')", "2026-01-31T12:30:00"),
    ],
)
def test_a_field_has_the_type_of_its_json_value(text: str, sql: str, made: object) -> None:
    source = LetterSource("plays", "log", SCHEMA, OUTPUTS)
    assert json.loads(assigned(text, {"new": sql}, source))["new"] == made


def test_only_letters_that_then_fit_are_fixed(run: Run) -> None:
    run.put(0, rejected(1, '{"ms": "5 s"}'), rejected(2, '{"ms": "x"}'), rejected(3, "no JSON"))
    done = fix(run.box, Chosen(), {"ms": "replace(ms, ' s', '')"})
    assert done.fixed == 1
    assert done.failed == {2: "ms is not BIGINT: 'x'", 3: "it is not a JSON object, so it has no fields"}
    assert [each.fixed is not None for each in run.box.letters()] == [True, False, False]
    with pytest.raises(PipelineError, match="dead letter 2 does not fit: ms is not BIGINT: 'x'"):
        fix(run.box, Chosen((2,)), {"user": "'ann'"})


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("timestamp_milis(ms)", "timestamp_milis"),
        ("nosuch + 1", "unknown column 'nosuch'"),
        ("1 / 0 +", "dead letter 1 does not fit"),
        ("sha2(user, 256)", "ms is not BIGINT"),
        ("CAST(user AS BIGINT)", "has no value"),
    ],
)
def test_an_expression_that_gives_nothing_is_refused_and_nothing_changes(sql: str, said: str, run: Run) -> None:
    run.put(0, rejected(1, '{"user": "ann", "ms": "x"}'))
    with pytest.raises(PipelineError, match=said.replace("+", r"\+")):
        fix(run.box, Chosen(), {"ms": sql})
    assert shown(run.box) == [(1, None, "dead")]


def test_required_columns_and_strict_sources_hold_for_fixed_records(run: Run) -> None:
    run.source = replace(run.source, schema=parse_schema("user STRING NOT NULL, ms BIGINT"), is_strict=True)
    run.put(0, rejected(1, '{"user": "ann", "ms": "x"}'))
    for text in ('{"ms": 1}', '{"user": "ann", "more": 1}'):
        with pytest.raises(PipelineError, match="dead letter 1 does not fit"):
            fix_texts(run.box, {1: text})
    assert fix_texts(run.box, {1: '{"user": "ann", "ms": 1}'}).fixed == 1


def test_an_editor_changes_records_and_leaves_the_others(run: Run) -> None:
    texts = ["not\nJSON", '{"ms": "x"}', '{"ms": "y"}']
    run.put(0, *(replace(rejected(n, text), reason="it does not fit") for n, text in enumerate(texts)))
    letters = run.box.letters()
    text = to_edit(letters)
    assert edited(letters, text) == {}
    changed = text.replace("not\nJSON", '{"ms": 1}\n\n').replace('{"ms": "y"}', "")
    assert edited(letters, changed) == {1: '{"ms": 1}'}
    assert fix_texts(run.box, edited(letters, changed)).fixed == 1
    assert [each.text for each in run.box.letters()] == ['{"ms": 1}', '{"ms": "x"}', '{"ms": "y"}']


def test_a_value_may_be_replaced_in_the_reasons_as_well(run: Run) -> None:
    texts = ['{"ms": "long"}', '{"ms": "x"}']
    run.put(0, *(replace(rejected(n, text), reason=f"ms is not BIGINT: {text[7:-1]}") for n, text in enumerate(texts)))
    letters = run.box.letters()
    assert edited(letters, to_edit(letters).replace('"long"', "5")) == {1: '{"ms": 5}'}


def test_a_letter_is_sent_once_with_its_key_and_marked(run: Run) -> None:
    run.log.append("plays", ['{"ms": "x"}', '{"ms": "y"}'], keys=["ann", "ann"])
    (part,) = [part for part, end in enumerate(run.log.ends("plays")) if end]
    run.put(0, *(replace(rejected(n, "x"), origin=f"plays/{part}", partition=part) for n in (0, 1)))
    fix_texts(run.box, {1: '{"ms": 1}', 2: '{"ms": 2}'})
    assert resend(run.box, run.log, Chosen((1,))) == 1
    assert resend(run.box, run.log, Chosen()) == 1, "the other one"
    assert resend(run.box, run.log, Chosen()) == 0
    assert {each.state for each in run.box.letters()} == {State.RESENT}
    sent = run.values()[2:]
    assert [(each["value"], each["key"]) for each in sent] == [(b'{"ms": 1}', b"ann"), (b'{"ms": 2}', b"ann")]
    assert sent[0]["headers"] == [{"key": HEADER, "value": f"plays/{part}:0".encode()}]
    with pytest.raises(PipelineError, match="there is no dead letter to fix"):
        fix_texts(run.box, {1: '{"ms": 9}'})


class CrashError(Exception):
    """A kill."""


@pytest.mark.parametrize("point", ["append", "finish_sending"])
def test_a_crash_while_sending_sends_nothing_twice(point: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.put(0, rejected(1, "x"), rejected(2, "y"))
    fix_texts(run.box, {1: '{"ms": 1}', 2: '{"ms": 2}'})
    owner: Any = Log if point == "append" else LetterBox

    def crash(*_: Any, **__: Any) -> None:
        raise CrashError

    whole = getattr(owner, point)
    monkeypatch.setattr(owner, point, crash)
    with pytest.raises(CrashError):
        resend(run.box, run.log, Chosen())
    monkeypatch.setattr(owner, point, whole)
    with pytest.raises(ConflictError, match="was sent again already"):
        run.box.fix({1: '{"ms": 9}'})
    assert resend(run.box, run.log, Chosen()) == 2
    assert sorted(each["value"] for each in run.values()) == [b'{"ms": 1}', b'{"ms": 2}']
    assert resend(run.box, run.log, Chosen()) == 0


def test_a_record_that_several_outputs_rejected_is_sent_once(run: Run) -> None:
    run.put(0, *(rejected(7, '{"ms": 0}', output, "1 / ms has no value") for output in OUTPUTS))
    fix_texts(run.box, {1: '{"ms": 1}'})
    assert resend(run.box, run.log, Chosen()) == 1
    assert shown(run.box) == [(7, "view hourly", "resent"), (7, "view daily", "resent")]


def test_a_record_that_an_output_has_read_is_refused_unless_anyway(run: Run) -> None:
    run.put(0, rejected(7, '{"ms": 0}', "view hourly", "1 / ms has no value"))
    fix_texts(run.box, {1: '{"ms": 1}'})
    with pytest.raises(PipelineError, match="view daily has read the record of dead letter 1"):
        resend(run.box, run.log, Chosen())
    assert resend(run.box, run.log, Chosen(), anyway=True) == 1


def test_what_cannot_be_sent_is_refused_with_what_to_do(run: Run) -> None:
    answer = Rejected("plays", "view hourly", None, None, "view hourly", "too big", "too big", None, "{}")
    run.put(0, answer, rejected(3, '{"ms": "x"}'))
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: resend(run.box, run.log, Chosen()), "no dead letter is fixed; fix some first"),
        (lambda: resend(run.box, run.log, Chosen((1,)), unchanged=True), "not a record but a value of view hourly"),
        (lambda: resend(run.box, run.log, Chosen((2,)), unchanged=True), "does not fit: ms is not BIGINT: 'x'; fix it"),
        (lambda: fix_texts(run.box, {1: "{}"}), "not a record but a value of view hourly"),
        (lambda: run.box.letters(Chosen((9,))), "there is no dead letter 9"),
        (lambda: run.box.letters(Chosen(problem="at is not a TIMESTAMP")), "did you mean 'at is not TIMESTAMP'"),
    ]
    for act, said in refusals:
        with pytest.raises(MillraceError, match=said):
            act()
    assert run.values() == []


def test_a_letter_of_a_file_is_written_to_a_new_file_instead(tmp_path: Path, log: Log) -> None:
    box, source = box_of(tmp_path, "charts"), LetterSource("in", "files", SCHEMA, OUTPUTS)
    box.put([Rejected("in", "in/1.json", None, 0, None, BAD_TIME, BAD_TIME, None, "x")], {"in": source}, "one", 0, 1)
    box.serve("one", {"in": source}, never)
    fix_texts(box, {1: '{"ms": 1}'})
    with pytest.raises(PipelineError, match=r"from in/1\.json, not from a topic; write its value to a new file"):
        resend(box, log, Chosen())


def test_a_dropped_letter_is_not_listed_again(run: Run) -> None:
    run.put(0, rejected(1, "x"), rejected(2, "y"))
    assert run.box.drop(Chosen((1,))) == 1
    run.put(1, rejected(1, "x"))
    run.put(0, rejected(1, "x"), checkpoint="two")
    run.serve("two")
    assert shown(run.box) == []


def test_reading_makes_no_file_and_an_unknown_pipeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "millrace.json").write_text(json.dumps(sealed({"pipeline": "charts"})))
    assert find_box(tmp_path, "charts").letters() == []
    assert not list(tmp_path.glob("*.db"))
    with pytest.raises(NotFoundError, match="did you mean 'charts'"):
        find_box(tmp_path, "chart")


def test_a_damaged_file_is_named_with_what_to_do(run: Run) -> None:
    run.put(0, *(rejected(n, "x" * 2000) for n in range(50)))
    with closing(sqlite3.connect(run.box.file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(run.box.file.read_bytes())
    data[5000:] = b"\xa5" * (len(data) - 5000)
    run.box.file.write_bytes(data)
    with pytest.raises(CorruptError, match=r"charts\.dead\.db is damaged; move it aside: millrace repair FILE --yes"):
        run.box.letters()
