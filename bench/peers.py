"""Other systems on the Yahoo benchmark's JSON, each in an environment of its own, beside Millrace in the same run.

The clock of a peer runs from its start of the pipeline to the last answer, the start of its engine included and
that of Python left out; each must count every view. A peer that cannot be installed or run is left out, with the
reason.
"""

import json
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from bench import engine
from bench.figures import Figure, figure
from millrace.spark import session
from millrace.testing import yahoo

ENVIRONMENTS = Path(__file__).parent / ".peers"
PATIENCE = 900


@dataclass(frozen=True, slots=True)
class Peer:
    """A system, and how many of the files it is given: a slow one fewer, as its rate is what counts."""

    name: str
    package: str
    script: str
    files: int = engine.FILES


PEERS = (
    Peer("bytewax, two workers", "bytewax==0.21.1", "bytewax_.py", 5),
    Peer("pathway, two threads", "pathway", "pathway_.py", 10),
    Peer("Flink SQL, parallelism 2", "apache-flink", "flink_.py"),
    Peer("Beam, direct runner, two processes", "apache-beam", "beam_.py", 1),
)


def run() -> tuple[list[Figure], list[str]]:
    """Millrace a few times, then each of them."""
    with TemporaryDirectory(prefix="millrace-peers-") as name:
        folder = Path(name)
        yahoo.write(folder / "json", "json", engine.FILES, engine.ROWS)
        small = folder / "ads.json"
        small.write_text(json.dumps({ad["ad_id"]: ad["campaign_id"] for ad in yahoo.ADS}))
        spark = session.start("bench", "local[2]")
        ours = [
            engine.rate(engine.millrace(spark, folder / "json", "json", folder / f"checkpoint {turn}"))
            for turn in range(1 + engine.ROUNDS)
        ]
        session.stop(spark)
        figures, notes = [], []
        for peer in PEERS:
            try:
                theirs = _run(peer, folder, small)
            except (subprocess.SubprocessError, ValueError, OSError) as error:
                notes.append(f"- {peer.name}: left out, {error}")
                print(notes[-1], flush=True)
                continue
            figures.append(
                figure(f"Yahoo, json, stream, beside {peer.name}", statistics.median(ours[1:]), theirs, "rows/s")
            )
    return figures, notes


def _run(peer: Peer, folder: Path, small: Path) -> float:
    python = ENVIRONMENTS / peer.script.removesuffix("_.py") / "bin" / "python"
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "setuptools<81", peer.package],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if installed.returncode:
        raise ValueError(f"pip cannot install it: {(installed.stderr.strip().splitlines() or ['no reason'])[-1]}")
    given = folder / peer.script.removesuffix("_.py") / "json"
    given.mkdir(parents=True)
    for number in range(peer.files):
        (given / f"{number:04}.json").hardlink_to(folder / "json" / f"{number:04}.json")
    script = Path(__file__).parent / "others" / peer.script
    ran = subprocess.run(
        [python, script, given, small], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PATHWAY_THREADS": "2"},
    )  # fmt: skip
    if ran.returncode:
        raise ValueError(f"it fails: {(ran.stderr.strip().splitlines() or ['no reason'])[-1]}")
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    expected = _views(given)
    if told["views"] != expected:
        raise ValueError(f"it counts {told['views']:,} views, not {expected:,}")
    return peer.files * engine.ROWS / float(told["seconds"])


def _views(folder: Path) -> int:
    asked = f"SELECT count(*) FROM read_json('{folder}/*.json') WHERE event_type = 'view'"
    ((many,),) = duckdb.connect().execute(asked).fetchall()
    return int(many)


if __name__ == "__main__":
    sys.exit("run it with: make bench-peers")
