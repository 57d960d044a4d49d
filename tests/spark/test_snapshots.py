"""What a table held is found again, also where the checkpoint was moved to."""

from pathlib import Path

import pytest

from millrace import table
from millrace.spark.snapshots import FileLookup, Snapshots, read_snapshot


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    path = tmp_path / "plans.csv"
    path.write_text("user,plan\nann,free\n")
    return path


def snapshots(plans: Path, folder: Path) -> Snapshots:
    return Snapshots(folder, {"plans": FileLookup(table("plans", "user STRING, plan STRING", path=str(plans)))})


def test_a_snapshot_outlives_the_change_of_its_table(plans: Path, tmp_path: Path) -> None:
    kept = snapshots(plans, tmp_path / "tables")
    before = kept.now()
    assert kept.now() == before == snapshots(plans, tmp_path / "tables").now()
    plans.write_text("user,plan\nann,paid\n")
    after = kept.now()
    held = [read_snapshot(kept.paths(names)["plans"]).to_pylist() for names in (before, after)]
    assert held == [[{"user": "ann", "plan": "free"}], [{"user": "ann", "plan": "paid"}]]


def test_a_snapshot_is_found_where_the_checkpoint_was_moved_to(plans: Path, tmp_path: Path) -> None:
    names = snapshots(plans, tmp_path / "tables").now()
    (tmp_path / "tables").rename(tmp_path / "moved")
    found = snapshots(plans, tmp_path / "moved").paths(names)
    assert read_snapshot(found["plans"]).to_pylist() == [{"user": "ann", "plan": "free"}]


def test_tables_may_be_called_anything_and_keep_their_own(plans: Path, tmp_path: Path) -> None:
    names = ("a", "a-b", "../dims/users")
    lookups = {name: FileLookup(table(name, "user STRING, plan STRING", path=str(plans))) for name in names}
    held = Snapshots(tmp_path / "tables", {name: lookups[name] for name in names[1:]})
    before = held.now()
    often = Snapshots(tmp_path / "tables", {"a": lookups["a"]})
    for number in range(12):
        plans.write_text(f"user,plan\nann,{number}\n")
        often.now()
    for path in held.paths(before).values():
        assert read_snapshot(path).to_pylist() == [{"user": "ann", "plan": "free"}]
