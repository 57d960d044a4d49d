"""Measure, print a JSON line a figure, and write bench/RESULTS.md. With `peers`, the other systems, too."""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from bench import engine, formats, ingest, live, logs, nexmark, peers, pure, real_time, shapes, stages, stores
from bench.figures import Figure

RESULTS = Path(__file__).parent / "RESULTS.md"
OTHERS = Path(__file__).parent / "PEERS.md"
_LINE = '{"bench"'
_PACKAGES = ("millrace", "pyspark", "duckdb", "pyarrow")


_PARTS = {
    "engine": engine.run,
    "growth": engine.run_growth,
    "nexmark": nexmark.run,
    "stages": stages.run,
    "logs": logs.run,
    "stores": stores.run,
    "ingest": ingest.run,
    "pure": pure.run,
    "shapes": shapes.run,
    "formats": formats.run,
    "live": live.run,
    "real_time": real_time.run,
}


def main() -> None:
    """Run everything, some parts, or the peers; or write the results from the lines that such runs have printed."""
    match sys.argv[1:]:
        case ["peers"]:
            figures, notes = peers.run()
            OTHERS.write_text(_report("make bench-peers", figures, [*_PEERS, *notes]))
        case ["report", *files]:
            lines = [line for file in files for line in Path(file).read_text().splitlines()]
            found = {
                each["bench"]: each for each in map(json.loads, (line for line in lines if line.startswith(_LINE)))
            }
            RESULTS.write_text(_report("make bench", list(found.values()), _LIMITS))
        case parts:
            figures = [each for part in parts or _PARTS for each in _PARTS[part]()]
            if not parts:
                RESULTS.write_text(_report("make bench", figures, _LIMITS))


def _report(command: str, figures: list[Figure], notes: list[str]) -> str:
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    lines = [
        "# Results",
        "",
        f"Written by `{command}`; not edited by hand. The machine is shared and noisy: trust the ratios.",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}. Each figure "
        "and its peer are of the same run, after a warm-up; bench/ says what each is.",
        "",
        "| bench | unit | millrace | peer | ratio |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for each in figures:
        lines.append(
            f"| {each['bench']} | {each['unit']} | {each['millrace']:,} | {each['peer']:,} | {each['ratio']} |"
        )
    return "\n".join([*lines, "", *notes]) + "\n"


_PEERS = [
    "How to read this:",
    "",
    "- The clock of a peer runs from the start of its pipeline to its last answer, the start of its engine included,",
    "  on as many of the files as give it a minute or so; that of Millrace over the micro-batches after the first.",
    "- Each is written as its documentation has it, on both cores, and must count every view. bytewax and Flink read",
    "  files in no order, so they wait as long as all of them span, and answer at the end.",
    "- Beam's direct runner is for trying pipelines out, and says so.",
]
_LIMITS = [
    "What limits each:",
    "",
    "- Stream and batch on JSON: decoding by shape, half of the edge; without Numba, decoding in DuckDB, most of it.",
    "- JSON by shape: comparing and copying bytes; of records that do not match, DuckDB, and putting rows in order.",
    "- Stream on Parquet: the fixed cost of a micro-batch (decision 006), as there is little left to decode.",
    "- Latency: the same fixed cost: two Spark stages, a Python worker each, and the commit of the state.",
    "- The log beside plain files: SQLite's own writing, and lz4; in reading, taking the blocks apart.",
    "- Stores: writing the changes beside the rows, which the peer does not do.",
    "- Growth on Spark: the panes of the keys that changed, and writing their state.",
    "- Growth: finding changed keys in sorted segments, and putting segments together.",
    "- Live matching: evaluating what the indexes leave, and Python for each match; of few queries, the fixed cost of",
    "  a batch, so that a loop over rows is as fast.",
]


if __name__ == "__main__":
    main()
