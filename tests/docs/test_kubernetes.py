"""The manifests for Kubernetes: what they run is a command of Millrace that a cluster accepts."""

from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from millrace import Pipeline, agg, kafka, on, window
from millrace.cli import app
from millrace.cli.options import parsed_conf
from millrace.running.placement import misplaced
from millrace.running.settings import Settings

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"


def manifests() -> list[dict[str, Any]]:
    return [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


def test_the_parts_fit_together() -> None:
    kinds = {each["kind"]: each for each in manifests()}
    pod = kinds["Deployment"]["spec"]["template"]
    assert kinds["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert pod["spec"]["serviceAccountName"] == kinds["ServiceAccount"]["metadata"]["name"]
    (volume,) = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == kinds["PersistentVolumeClaim"]["metadata"]["name"]
    (driver,) = pod["spec"]["containers"]
    conf = dict(each.removeprefix("--conf=").split("=", 1) for each in driver["args"] if each.startswith("--conf="))
    ports = {str(each["port"]) for each in kinds["Service"]["spec"]["ports"]}
    assert ports == {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]}
    assert conf["spark.kubernetes.container.image"] == driver["image"]
    assert conf["spark.driver.host"].startswith(kinds["Service"]["metadata"]["name"])


def test_the_command_is_accepted_on_a_cluster() -> None:
    (deployment,) = [each for each in manifests() if each["kind"] == "Deployment"]
    (driver,) = deployment["spec"]["template"]["spec"]["containers"]
    assert driver["command"] == ["millrace"]
    name, *arguments = driver["args"]
    command: Any = get_command(app)
    given = command.commands[name].make_context(name, arguments).params
    settings = Settings(
        checkpoint=given["checkpoint"], shards=given["shards"], master=given["master"],
        conf=parsed_conf(given["conf"]), shared=given["shared"],
    )  # fmt: skip
    plays = kafka("kafka://broker:9092/plays", "k STRING")
    counted = plays.window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())
    assert list(misplaced(Pipeline("charts", views={"counts": counted}), settings.home("charts"))) == []
    conf = settings.conf or {}
    cores = int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    assert settings.shards == cores
