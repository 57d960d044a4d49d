"""Pins the jars of a version of Kafka: resolves them with Maven, and records their hashes.

Those of Spark's Kafka connector are in `connector.txt`, by hand: their versions are not those that Maven would resolve
(decision 034).

Usage: python tools/kafka_jars.py 4.3.1
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PINNED = Path(__file__).parents[1] / "src" / "millrace" / "broker" / "jars.txt"
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>millrace</groupId><artifactId>kafka</artifactId>
<version>1</version><dependencies>{dependencies}</dependencies></project>"""
LISTED = re.compile(r"^\s+([\w.-]+):([\w.-]+):jar:([\w.-]+)(?:\s|$)", re.MULTILINE)


def main(version: str) -> None:
    """Write `jars.txt`: Kafka's server with what it depends on, and what joins its log4j to SLF4J."""
    kafka = ("org.apache.kafka", "kafka_2.13", version)
    log4j = next(number for _, artifact, number in resolved(kafka) if artifact == "log4j-core")
    repository = Path.home() / ".m2" / "repository"
    lines = []
    for group, artifact, number in sorted(resolved(kafka, ("org.apache.logging.log4j", "log4j-slf4j-impl", log4j))):
        jar = repository / group.replace(".", "/") / artifact / number / f"{artifact}-{number}.jar"
        lines.append(f"{group}:{artifact}:{number} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n")
    PINNED.write_text("".join(lines))


def resolved(*roots: tuple[str, str, str]) -> set[tuple[str, str, str]]:
    """The runtime dependencies of artifacts, and they themselves."""
    tags = ("groupId", "artifactId", "version")
    dependencies = "".join(
        f"<dependency>{''.join(f'<{tag}>{part}</{tag}>' for tag, part in zip(tags, root, strict=True))}</dependency>"
        for root in roots
    )
    with TemporaryDirectory() as folder:
        Path(folder, "pom.xml").write_text(POM.format(dependencies=dependencies))
        listed = Path(folder, "list.txt")
        options = ["-DincludeScope=runtime", "-Dmdep.outputScope=false", f"-DoutputFile={listed}"]
        subprocess.run(["mvn", "-q", "-B", "dependency:list", *options], cwd=folder, check=True)
        found = LISTED.findall(listed.read_text())
    return {(group, artifact, number) for group, artifact, number in found}


if __name__ == "__main__":
    main(sys.argv[1])
