"""The files of a checkpoint that are checked before Spark is started."""

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.eventlog.sealed import sealed, unsealed
from millrace.spark.checkpoint import FUSED, Checkpoint, journal_of
from millrace.spark.damage import damage_of, state_damage
from millrace.spark.history import FORMAT
from millrace.spark.logged import Logged, batches_of, discard_unusable
from millrace.spark.writers import Delivery, Guarantee, begun_batch

TABLE = b"the rows of a table"
SNAPSHOT = f"0123456789abcdef-{hashlib.sha256(TABLE).hexdigest()[:16]}.arrow"
VIEW = "view counts"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """A checkpoint of a fused source of files and a native one of a topic; its last batch is not committed."""
    made = Checkpoint(tmp_path / "charts")
    about = {
        "format": FORMAT, "id": "a", "labels": [0], "pipeline": "charts", "spark_sources": [FUSED, VIEW], "stages": {},
        "words": {}, "left": [], "generation": 1, "outputs": {},
    }  # fmt: skip
    write(made.folder / "millrace.json", json.dumps(sealed(about)))
    write(made.spark / "metadata", '{"id":"b"}')
    for batch in (5, 6, 7):
        fused = {"now": 1, "at": {"files in": batch - 5}, "tables": {"prices": SNAPSHOT}}
        native = {"now": 1, "at": {"log plays": [batch]}, "tables": {}}
        lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(fused), json.dumps(native)]
        write(made.offsets(batch), "\n".join(lines))
    write(made.commits(6), 'v1\n{"nextBatchWatermarkMs":0}')
    write(made.spark / "state" / "0" / "_metadata" / "v2" / "6", 'v2\n{"stateStoreInfo":[]}')
    listed = [json.dumps(sealed({"name": name, "size": 3})) + "\n" for name in ("1.json", "2.json")]
    write(files_journal(made), "".join(listed) + '{"name": "a line that a crash cut o')
    write(topic_journal(made), json.dumps(sealed({"topic": 1, "start": [0]})))
    write(made.folder / "tables" / SNAPSHOT, TABLE.decode())
    write(made.begun, json.dumps(sealed({"batch": 7})))
    write(made.folder / "status.json", json.dumps(sealed({"progress": {"batch": 6}})))
    return made


def write(file: Path, text: str) -> None:
    """Write a file with the checksums that Hadoop writes beside it in Spark's folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    file.write_bytes(data)
    if "spark" in file.parts:
        sums = [zlib.crc32(data[start : start + 512]) for start in range(0, len(data), 512)]
        file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + struct.pack(f">{len(sums) + 1}I", 512, *sums))


def files_journal(checkpoint: Checkpoint) -> Path:
    return journal_of(checkpoint.folder, FUSED, "in", "jsonl")


def topic_journal(checkpoint: Checkpoint) -> Path:
    return journal_of(checkpoint.folder, VIEW, "plays", "json")


def problem(checkpoint: Checkpoint) -> str:
    found = damage_of(checkpoint)
    assert found is not None
    return found.problem.removeprefix(f"checkpoint {checkpoint.folder} is damaged: ")


def test_a_whole_checkpoint_has_no_damage(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert damage_of(checkpoint) is None
    assert damage_of(Checkpoint(tmp_path / "none yet")) is None


def test_a_started_checkpoint_without_a_batch_has_no_damage(tmp_path: Path) -> None:
    made = Checkpoint(tmp_path)
    (tmp_path / "spark.log").touch()
    (tmp_path / "lock").touch()
    assert damage_of(made) is None


def test_damage_names_the_file_and_the_way_on(checkpoint: Checkpoint) -> None:
    checkpoint.offsets(6).write_text("v1\n{}\n")
    told = f"checkpoint {checkpoint.folder} is damaged: spark/offsets/6 is damaged"
    assert str(damage_of(checkpoint)) == f"{told}; compute it again from the log: millrace replay FILE"


def test_a_journal_that_lists_fewer_files_than_were_read_is_damaged(checkpoint: Checkpoint) -> None:
    file = files_journal(checkpoint)
    whole = file.read_text()
    file.write_text(whole[: whole.index("\n") + 1])
    assert problem(checkpoint) == f"sources/{file.name} lists 1 files, but 2 were read"
    file.write_text(whole.replace("2.json", "3.json"))
    assert problem(checkpoint) == f"sources/{file.name} is damaged"
    file.unlink()
    assert problem(checkpoint) == f"sources/{file.name} is missing"


def test_a_missing_journal_of_a_topic_is_damage(checkpoint: Checkpoint) -> None:
    topic_journal(checkpoint).unlink()
    assert problem(checkpoint).endswith(".json is missing")


def test_the_tables_of_a_batch_that_is_run_again_are_checked(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "tables" / SNAPSHOT).write_text("the rows of another")
    assert problem(checkpoint) == f"tables/{SNAPSHOT} is damaged"
    (checkpoint.folder / "tables" / SNAPSHOT).unlink()
    assert problem(checkpoint) == f"tables/{SNAPSHOT} is missing"
    write(checkpoint.commits(7), 'v1\n{"nextBatchWatermarkMs":0}')
    assert damage_of(checkpoint) is None


@pytest.mark.parametrize("text", ["", "x", '{"batch": 8, "checksum": "0"}', "9"])
def test_a_damaged_record_of_the_batch_begun_is_damage(checkpoint: Checkpoint, text: str) -> None:
    checkpoint.begun.write_text(text)
    assert problem(checkpoint).startswith("begun ")


def test_a_report_of_a_batch_without_offsets_is_damage(checkpoint: Checkpoint) -> None:
    write(checkpoint.folder / "status.json", json.dumps(sealed({"progress": {"batch": 8}})))
    assert problem(checkpoint) == "spark/offsets/8 is missing"
    (checkpoint.folder / "status.json").write_text('{"progress": {"batch": 8}, "checksum": "0"}')
    assert damage_of(checkpoint) is None


def test_state_that_spark_cannot_load_is_named_by_its_checksum(checkpoint: Checkpoint) -> None:
    assert "Spark cannot load the state in spark/state" in str(state_damage(checkpoint))
    state = checkpoint.spark / "state" / "0" / "0"
    write(state / "1.zip", "x" * 2000)
    write(state / "2.zip.tmp", "x")
    (state / "2.zip.tmp").unlink()
    assert "Spark cannot load" in str(state_damage(checkpoint))
    (state / "1.zip").write_text("x" * 1024)  # whole pieces, each with the right checksum
    assert "spark/state/0/0/1.zip is damaged" in str(state_damage(checkpoint))
    (state / "1.zip").unlink()
    assert "spark/state/0/0/1.zip is missing" in str(state_damage(checkpoint))


def test_at_most_once_records_the_batch_with_a_checksum(tmp_path: Path) -> None:
    file = tmp_path / "begun"
    delivered: list[int] = []
    delivery = Delivery("p", "c", Guarantee.AT_MOST_ONCE, file)
    for batch in (0, 0, 1):
        answers = {"out": pa.table({"k": [batch]})}
        delivery.deliver(batch, "", answers, [lambda answers, *_: delivered.extend(answers["out"]["k"].to_pylist())])
    assert (delivered, begun_batch(file)) == ([0, 1], 1)


@pytest.mark.parametrize("content", [{}, {"a": [1, {"b": None}], "ä": 1.5}])
def test_a_sealed_object_notices_any_change(content: dict[str, Any]) -> None:
    text = json.dumps(sealed(content))
    assert unsealed(text) == content
    assert unsealed(json.dumps(content)) == content  # earlier releases wrote no checksum
    assert sealed(sealed(content)) == sealed(content)
    with pytest.raises(ValueError, match="checksum"):
        unsealed(json.dumps({**sealed(content), "a": 2}))
    for text in ("[]", "1", "", '{"a'):
        with pytest.raises(ValueError, match=r"."):
            unsealed(text)


def test_a_damaged_commit_is_discarded_because_spark_writes_it_again(checkpoint: Checkpoint) -> None:
    write(checkpoint.commits(7), 'v1\n{"nextBatchWatermarkMs":0}')
    assert batches_of(checkpoint.spark) == Logged((5, 6, 7), (6, 7))
    for batch in (6, 7):
        checkpoint.commits(batch).write_text("")
    assert damage_of(checkpoint) is None
    unusable = (checkpoint.commits(6), checkpoint.commits(7))
    assert batches_of(checkpoint.spark) == Logged((5, 6, 7), (), unusable)
    history = checkpoint.history()
    assert history is not None
    assert (history.planned, history.committed, history.done) == (7, -1, 6)
    discard_unusable(checkpoint.spark)
    assert list((checkpoint.spark / "commits").iterdir()) == []
    assert damage_of(checkpoint) is None


@pytest.mark.parametrize("text", ["", "v1\n{", "v1\n{}\n"])
def test_offsets_of_a_batch_that_was_not_delivered_are_planned_again(checkpoint: Checkpoint, text: str) -> None:
    checkpoint.begun.unlink()
    checkpoint.offsets(7).write_text(text)
    assert damage_of(checkpoint) is None
    history = checkpoint.history()
    assert history is not None
    assert (history.planned, history.done) == (6, 6)
    state = checkpoint.spark / "state" / "0" / "1"
    kept = [state / "7.changelog", state / "default" / "6.zip", state / "SSTs" / "8.sst"]
    gone = [state / "8.changelog", state / "default" / "8.zip", state / "8_1f.zip"]
    for file in [*kept, *gone]:
        write(file, "x")
    discard_unusable(checkpoint.spark)
    assert [file.exists() for file in [*kept, *gone]] == [True] * 3 + [False] * 3
    assert not checkpoint.offsets(7).exists()
    assert not checkpoint.offsets(7).with_name(".7.crc").exists()
    assert batches_of(checkpoint.spark) == Logged((5, 6), (6,))
    assert damage_of(checkpoint) is None


def test_offsets_of_a_batch_that_may_have_been_delivered_are_damage(checkpoint: Checkpoint) -> None:
    checkpoint.offsets(7).write_text("")
    assert problem(checkpoint) == "begun names batch 7, but the last batch is 6"
    checkpoint.begun.unlink()
    write(checkpoint.folder / "status.json", json.dumps(sealed({"progress": {"batch": 7}})))
    assert problem(checkpoint) == "spark/offsets/7 is damaged"
    (checkpoint.folder / "status.json").unlink()
    write(checkpoint.commits(7), 'v1\n{"nextBatchWatermarkMs":0}')
    assert problem(checkpoint) == "spark/offsets/7 is damaged"
