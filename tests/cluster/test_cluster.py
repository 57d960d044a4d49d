"""A cluster for development: processes of their own, on this machine only, found again by their folder."""

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusters import LocalCluster
from listening import LOOPBACK, listening_on
from millrace.cli import app
from millrace.cluster import cluster
from millrace.model.errors import ConflictError, MachineError, NotFoundError, PipelineError

pytestmark = pytest.mark.spark


def test_the_processes_listen_on_this_machine_only(cluster_: LocalCluster) -> None:
    pids = [cluster_.master.pid, *(cluster_.worker(number).pid for number in (1, 2))]
    for pid in pids:
        assert pid is not None
        found = listening_on(pid)
        assert found
        assert found <= LOOPBACK


def test_the_commands_tell_of_the_cluster(cluster_: LocalCluster) -> None:
    folder = str(cluster_.folder)
    told = CliRunner().invoke(app, ["cluster", "status", "--folder", folder, "--json"])
    assert told.exit_code == 0
    assert json.loads(told.stdout)["url"] == cluster_.url
    assert "worker 2: cores 1" in CliRunner().invoke(app, ["cluster", "status", "--folder", folder]).stdout
    second = CliRunner().invoke(app, ["cluster", "start", "--folder", folder])
    assert second.exit_code == 6
    assert f"already runs in {folder} on {cluster_.url}" in second.stderr
    with pytest.raises(ConflictError, match="millrace cluster stop"):
        cluster.start(cluster_.folder, 1)


def test_a_worker_that_has_ended_is_told(cluster_: LocalCluster) -> None:
    cluster_.kill_worker(2)
    try:
        told = CliRunner().invoke(app, ["cluster", "status", "--folder", str(cluster_.folder)])
        assert told.exit_code == 1
        assert "worker 2: cores 1, memory 512m, has ended" in told.stdout
    finally:
        cluster_.start_worker(2)
    told = CliRunner().invoke(app, ["cluster", "status", "--folder", str(cluster_.folder)])
    assert told.exit_code == 0


def test_where_no_cluster_runs(tmp_path: Path) -> None:
    assert cluster.running(tmp_path) is None
    assert CliRunner().invoke(app, ["cluster", "status", "--folder", str(tmp_path)]).exit_code == 3
    with pytest.raises(NotFoundError, match="no cluster runs"):
        cluster.stop(tmp_path)
    with pytest.raises(PipelineError, match="at least one worker"):
        cluster.start(tmp_path, 0)


def test_a_master_that_does_not_start_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(
        f"#!{sys.executable}\nimport sys\nprint('version \"17\"', file=sys.stderr)\nexit(9)\n"
    )
    (home / "bin" / "java").chmod(0o755)
    with pytest.raises(MachineError, match=r"the master of the cluster did not start; .*output.log"):
        cluster.start(tmp_path / "cluster", 1, port=0, environment={**os.environ, "JAVA_HOME": str(home)})
    assert cluster.running(tmp_path / "cluster") is None
