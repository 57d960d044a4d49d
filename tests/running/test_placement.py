"""What executors on other machines cannot reach is refused before Spark starts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace import Pipeline, agg, files, kafka, log, on, window
from millrace.cli import app
from millrace.model.errors import ConflictError, PipelineError
from millrace.model.stream import Source
from millrace.running.placement import check_placement, is_shared, misplaced
from millrace.running.settings import Settings
from millrace.spark.master import Reach, reach_of

AWAY = "spark://head:7077"
TOPIC = kafka("kafka://broker:9092/plays", "k STRING")


def counting(source: Source) -> Pipeline:
    counted = source.window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())
    return Pipeline("charts", views={"counts": counted})


def refused(source: Source, **settings: object) -> list[str]:
    home = Settings(**{"checkpoint": "/shared/c", "shared": ["/shared"], **settings}).home("charts")  # type: ignore[arg-type]
    return [str(error) for error in misplaced(counting(source), home)]


@pytest.mark.parametrize(
    ("master", "reach"),
    [
        ("local", Reach.LOCAL),
        ("local[*,4]", Reach.LOCAL),
        ("spark://127.0.0.1:7077", Reach.MACHINE),
        ("spark://localhost:7077", Reach.MACHINE),
        ("spark://[::1]:7077", Reach.MACHINE),
        ("spark://127.0.0.1:7077,head:7077", Reach.CLUSTER),
        (AWAY, Reach.CLUSTER),
        ("local-cluster[2,1,1024]", Reach.CLUSTER),
        ("yarn", Reach.CLUSTER),
        ("k8s://https://127.0.0.1:6443", Reach.CLUSTER),
    ],
)
def test_how_far_away_tasks_run(master: str, reach: Reach) -> None:
    assert reach_of(master) is reach


def test_kafka_and_a_shared_checkpoint_are_fine() -> None:
    assert refused(TOPIC, master=AWAY) == []


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:7077"])
def test_on_this_machine_everything_is_reached(master: str, tmp_path: Path) -> None:
    for source in (log("plays", "k STRING"), files(str(tmp_path), "k STRING"), TOPIC):
        assert refused(source, master=master, checkpoint="c", shared=()) == []


def test_the_embedded_log_is_refused_wherever_it_is() -> None:
    (said,) = refused(log("plays", "k STRING"), master=AWAY, log="/shared/log.db")
    assert "cannot read topic 'plays' of the embedded log /shared/log.db" in said
    assert 'kafka("kafka://host:9092/plays", ...)' in said


def test_files_must_be_shared(tmp_path: Path) -> None:
    (said,) = refused(files(str(tmp_path), "k STRING"), master=AWAY)
    assert f"read the files in {tmp_path}; put them in a folder that all machines have" in said
    assert refused(files(str(tmp_path), "k STRING"), master=AWAY, shared=["/shared", tmp_path]) == []


def test_a_checkpoint_must_be_shared() -> None:
    (said,) = refused(TOPIC, master="yarn", checkpoint="/home/me/c")
    assert "read and write the checkpoint /home/me/c; choose a folder that all machines have" in said


def test_a_broker_of_this_machine_is_not_reached_from_others() -> None:
    (said,) = refused(kafka("kafka://localhost:9092/plays", "k STRING"), master=AWAY)
    assert "cannot reach a Kafka at localhost:9092; name the brokers by addresses" in said
    assert refused(kafka("kafka://localhost:9092,broker:9092/plays", "k STRING"), master=AWAY) == []


def test_a_folder_is_shared_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    assert is_shared(tmp_path / "link" / "c", (tmp_path / "shared",))
    assert not is_shared(tmp_path / "shared-not", (tmp_path / "shared",))
    assert not is_shared(tmp_path / "shared" / ".." / "c", (tmp_path / "shared",))


def test_a_run_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "charts.py").write_text(
        "from millrace import Pipeline, agg, files, on, window\n"
        "rows = files('in', 'k STRING').window(window.all_time()).trigger(on.each()).accumulating()\n"
        "charts = Pipeline('charts', views={'counts': rows.aggregate(n=agg.count())})\n"
    )
    for mode in ("micro-batch", "batch"):
        done = CliRunner().invoke(app, ["run", "charts.py", "--master", AWAY, "--mode", mode])
        assert done.exit_code == 2
        assert "charts.py:2: executors of spark://head:7077 may run on other machines" in done.stderr
    with pytest.raises(PipelineError, match="may run on other machines"):
        counting(files(str(tmp_path / "in"), "k STRING")).run(master=AWAY)
    with pytest.raises(ConflictError, match="read and write the checkpoint"):
        check_placement(counting(TOPIC), Settings(master=AWAY).home("charts"))
    assert not (tmp_path / ".millrace").exists()


@pytest.mark.parametrize("given", ["executor.memory=1g", "spark.executor.memory"])
def test_conf_takes_settings_of_spark(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "charts.py", "--conf", given])
    assert done.exit_code == 2
    assert "--conf takes a setting of Spark, such as spark.executor.memory=4g" in done.stderr
    with pytest.raises(PipelineError, match="conf has settings of Spark as text"):
        Settings(conf={"spark.executor.cores": 1})  # type: ignore[dict-item]
