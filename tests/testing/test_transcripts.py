"""Every transcript passes, and the checker that says so can be trusted."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from documents import DOCUMENTS, FOLDER, STAGES
from millrace.cli import app
from millrace.testing.check import check
from millrace.testing.transcript import Document


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: f"{Path(document.file).stem}: {document.name}")
def test_transcript(document: Document) -> None:
    verdict = check(document)
    assert verdict.passed, verdict.failure


def test_there_are_enough_and_no_name_is_there_twice() -> None:
    names = [document.name for document in [*DOCUMENTS, *STAGES]]
    assert len(DOCUMENTS) >= 60
    assert len(STAGES) >= 60
    assert len(set(names)) == len(names)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def write(folder: Path, text: str) -> str:
    path = folder / "transcript.yaml"
    path.write_text(text)
    return str(path)


def test_all_pass_with_a_line_each_and_a_count() -> None:
    code, output = run(*map(str, sorted(FOLDER.glob("*.yaml"))))
    assert code == 0
    assert output.splitlines()[-1] == f"{len(DOCUMENTS) + len(STAGES)} passed, 0 failed"
    assert len(output.splitlines()) == len(DOCUMENTS) + len(STAGES) + 1


def test_a_failure_shows_the_step_and_the_difference(tmp_path: Path) -> None:
    code, output = run(
        write(
            tmp_path,
            "name: wrong\nwindow: fixed(10s)\naggregate: {total: sum(v)}\n"
            "steps:\n- input: [3]\n- watermark: 10\n- expect: [{total: 4, timing: on-time}]\n"
            "---\nname: right\nwindow: fixed(10s)\nsteps: []\n",
        )
    )
    assert code == 1
    assert "wrong" in output
    assert "step 3, expect: 1 missing, 1 unexpected" in output
    assert "expected total: 4, got 3" in output
    assert "transcript.yaml:7)" in output  # the line of the step
    assert output.splitlines()[-1] == "1 passed, 1 failed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [", "is not valid YAML"),
        ("window: fixed(10s)\n\tsteps: []", "is not valid YAML"),
        ("", "contains no transcript"),
        ("# nothing but a comment\n---\n", "contains no transcript"),
        ("window: fixed(10s)\nsteps: []\nsteps: []", "'steps' is given twice"),
        ("window: fixed(10s)\nsteps: [{input: [1], input: [2]}]", "'input' is given twice"),
        ("name: 2020-99-99", "is not valid YAML"),
        ("name: !!int foo", "is not valid YAML"),
        ("[" * 3000, "is not valid YAML"),
    ],
)
def test_a_file_that_is_not_yaml_ends_with_2(tmp_path: Path, text: str, says: str) -> None:
    code, output = run(write(tmp_path, text))
    assert code == 2
    assert says in output


def test_a_file_that_cannot_be_read_ends_with_2_after_the_others_ran(tmp_path: Path) -> None:
    code, output = run(str(tmp_path / "none.yaml"), write(tmp_path, "window: fixed(10s)\nsteps: []"))
    assert code == 2
    assert f"there is no file {tmp_path / 'none.yaml'}" in output
    assert output.splitlines()[-1] == "1 passed, 0 failed"
    code, output = run(str(tmp_path))
    assert code == 2
    assert "Is a directory" in output


def test_a_number_with_an_exponent_needs_no_point(tmp_path: Path) -> None:
    steps = "[{input: [1e0, {v: 2.e+0, at: 2E-6}]}, {watermark: 1e9}, {expect: [{values: [1, 2]}]}]"
    assert run(write(tmp_path, f"window: fixed(10s)\nsteps: {steps}")) == (
        0,
        "ok      transcript at line 1\n1 passed, 0 failed\n",
    )


def test_bytes_that_are_not_text_end_with_2(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00steps")
    code, output = run(str(tmp_path / "binary.yaml"))
    assert code == 2
    assert "is not text in UTF-8" in output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "a transcript must be a mapping"),
        ("just words", "a transcript must be a mapping"),
        ("window: fixed(10s)", "needs steps:"),
        ("steps: []", "needs window:"),
        ("window: fixed(10s)\nsteps: 7", "steps: must be a list"),
        ("window: 10\nsteps: []", "window 10 does not parse"),
        ("window: fixed\nsteps: []", "does not parse"),
        ("window: fixed(10s\nsteps: []", "does not parse"),
        ("window: fixed(10s))\nsteps: []", "parentheses or quotes are not balanced"),
        ("window: fixed(10s, colour=red)\nsteps: []", "unexpected keyword argument 'colour'"),
        ("window: fixed(-10s)\nsteps: []", "does not parse"),
        ("window: fixed(0s)\nsteps: []", "must be longer than 0"),
        ("window: count(0)\nsteps: []", "at least 1"),
        ("window: calendar(fortnight)\nsteps: []", "unknown calendar unit"),
        ("window: calendar(day, zone=Mars)\nsteps: []", "unknown time zone"),
        ("window: fixed(10s)\ntrigger: elements(many)\nmode: discarding\nsteps: []", "whole number"),
        ("window: fixed(10s)\ntrigger: repeat(10s)\nmode: discarding\nsteps: []", "takes a trigger"),
        ("window: fixed(10s)\ntrigger: any_of()\nmode: discarding\nsteps: []", "at least one trigger"),
        ("window: fixed(10s)\nlateness: soon\nsteps: []", "lateness 'soon' does not parse"),
        ("window: fixed(10s)\nlateness: 5\nsteps: []", "has no unit"),
        ("window: fixed(10s)\naggregate: sum(v)\nsteps: []", "must map names to aggregates"),
        ("window: fixed(10s)\naggregate: {x: top_k(v)}\nsteps: []", "missing a required argument"),
        ("window: fixed(10s)\nwatermarks: percentile(2)\nsteps: []", "at most 1"),
        ("window: fixed(10s)\nsteps: [1]", "step 1 must have exactly one of the keys"),
        ("window: fixed(10s)\nsteps: [{input: 5}]", "the value must be a list"),
        ("window: fixed(10s)\nsteps: [{input: [five]}]", "an element must be like"),
        ("window: fixed(10s)\nsteps: [{input: [{value: 5, at: 3}]}]", "unknown attribute 'value'"),
        ("window: fixed(10s)\nsteps: [{input: [{at: soon}]}]", "a time in seconds"),
        ("window: fixed(10s)\nsteps: [{input: [{at: .nan}]}]", "outside the supported range of times"),
        ("window: fixed(10s)\nsteps: [{input: [.inf]}]", "must be finite"),
        ("window: fixed(10s)\nsteps: [{input: [-70000000000]}]", "outside the supported range of times"),
        ("window: fixed(999999999d)\nsteps: []", "is longer than the maximum"),
        ("window: sliding(1d, every=1ms)\nsteps: []", "86,400,000 windows"),
        (f"window: fixed(10s)\nsteps: [{{input: [{{v: 1{'0' * 400}, at: 1}}]}}]", "must fit into 64 bits"),
        (f"window: fixed(10s)\nsteps: [{{expect: [{{values: [1{'0' * 400}]}}]}}]", "1 missing"),
        (f"window: fixed({'repeat(' * 3000}\nsteps: []", "does not parse"),
        ("window: fixed(10s)\nlateness: []\nsteps: []", "has no unit"),
        ("window: fixed(10s)\naggregate: {}\nsteps: []", "must map names to aggregates"),
        ("window: fixed(10s)\naggregate: {1: sum(v)}\nsteps: []", "the name of an aggregate must be text"),
        ("window: fixed(10s)\nsteps: [{expect: [{index: x}]}]", "index must be a whole number"),
        ("window: fixed(10s)\nsteps: [{expect: [{last: maybe}]}]", "last must be true or false"),
        ("window: fixed(10s)\nsteps: []\nerror: 'a{99999999999999}'", "not a regular expression"),
        (f"window: fixed(10s)\naggregate: {{x: sum({'v+' * 3000}v)}}\nsteps: []", "does not parse"),
        ("window: fixed(10s)\nsteps: [{expect: [{values: &a [*a]}]}]", "fails with RecursionError"),
        ("window: fixed(10s)\nsteps: [{input: [1.0e+300]}]", "outside the supported range of times"),
        ("window: fixed(10s)\nsteps: [{watermark: later}]", "a time in seconds"),
        ("window: fixed(10s)\nsteps: [{dropped: some}]", "a number of elements"),
        ("window: fixed(10s)\nsteps: [{expect: [7]}]", "a pane must be a mapping of attributes"),
        ("window: fixed(10s)\nsteps: [{expect: [{diff: 2}]}]", "diff must be +1 or -1"),
        ("window: fixed(10s)\nsteps: [{expect: [{timing: soon}]}]", "unknown timing"),
        ("window: fixed(10s)\nsteps: [{expect: [{window: 5}]}]", "a window must be [start, end]"),
        ("window: fixed(10s)\nsteps: [{input: [1], expect: []}]", "step 1 must have exactly one of the keys"),
        ("window: fixed(10s)\nsteps: []\nerror: '['", "not a regular expression"),
        ("window: fixed(10s)\nsteps: []\nerror: boom", "it must fail with 'boom', but it passes"),
        ("window: fixd(10s)\nsteps: []\nerror: boom", "but it fails with: unknown window 'fixd'"),
    ],
)
def test_a_mistake_gets_a_clear_message(tmp_path: Path, text: str, says: str) -> None:
    code, output = run(write(tmp_path, text))
    assert code == 1
    assert says in output
    assert "Traceback" not in output
    assert output.splitlines()[-1] == "0 passed, 1 failed"


def test_a_strange_name_takes_one_line(tmp_path: Path) -> None:
    code, output = run(write(tmp_path, 'name: "a\\nok      fake \\ud800"\nwindow: fixed(10s)\nsteps: []\n'))
    assert code == 0
    assert output.splitlines() == ["ok      a ok fake \\ud800", "1 passed, 0 failed"]


@pytest.mark.parametrize("engine", ["reference", "panes"])
@pytest.mark.parametrize("name", ["self", "last", "index", "diff", "start", "key0", "hash"])
def test_an_aggregate_may_be_called_anything(tmp_path: Path, name: str, engine: str) -> None:
    text = (
        f"window: fixed(10s)\ntrigger: each()\nmode: retracting\naggregate: {{{name}: sum(v)}}\n"
        f"steps: [{{input: [7]}}, {{expect: [{{{name}: 7}}]}}, {{input: [1]}}, {{expect: [{{{name}: 8}}, {{}}]}}]"
    ).replace("{}]", "{diff: -1}]" if name != "diff" else "{diff: 7}]")
    assert run(write(tmp_path, text), "--engine", engine)[0] == 0
    assert run(write(tmp_path, text.replace(": 8", ": 9")), "--engine", engine)[0] == 1


@pytest.mark.no_cover
def test_many_panes_are_matched(tmp_path: Path) -> None:
    keys = ", ".join(f"{{k: {key}, at: 1}}" for key in range(1500))
    wanted = ", ".join(["{}"] * 1499)
    text = f"window: fixed(10s)\nsteps: [{{input: [{keys}]}}, {{watermark: 10}}, {{expect: [{wanted}, {{k: 0}}]}}]"
    assert run(write(tmp_path, text))[0] == 0


def test_an_unknown_engine_ends_with_2() -> None:
    code, output = run("--engine", "flink", str(FOLDER / "modes.yaml"))
    assert code == 2
    assert "unknown engine 'flink'" in output


def test_expectations_that_fit_several_panes_find_one_each(tmp_path: Path) -> None:
    # The first expectation fits both panes; it has to leave {k: a} to the second.
    text = (
        "window: fixed(10s)\nsteps:\n- input: [{k: a, at: 1}, {k: b, at: 1}]\n- watermark: 10\n"
        "- expect: [{values: [1]}, {k: a}]\n"
    )
    assert run(write(tmp_path, text))[0] == 0
