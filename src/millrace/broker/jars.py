"""The jars of Kafka and of Spark's connector to it, pinned by hash and fetched from a Maven repository.

PySpark contains Ivy, with which Spark itself fetches packages: it knows Maven Central. A jar that the local Maven
repository or a folder of the user's already has is taken from there. Whatever the origin, a jar whose hash is not the
pinned one is not used.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import quoteattr

from millrace.model.errors import CorruptError, MachineError, NotFoundError
from millrace.spark.cache import caches

MAVEN = "MILLRACE_MAVEN"
"""The environment variable with the URL of a Maven repository to use in place of Maven Central."""
_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Jar:
    """An artifact of a Maven repository, and the hash of its jar."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """The name of the jar."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The path of the jar in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together."""

    name: str
    """What they are, in messages."""
    file: str
    """The file beside this one that pins them."""
    main: str
    """The beginning of the artifact whose version is theirs."""
    cache: str
    """The beginning of the name of their folder in the cache."""


KAFKA = JarSet("Kafka", "jars.txt", "kafka_", "kafka")
"""The jars that Kafka consists of."""
CONNECTOR = JarSet("Spark's Kafka connector", "connector.txt", "spark-sql-kafka", "spark-kafka")
"""The jars that Spark needs to read and write Kafka itself; decision 034 says why these versions."""


def pinned(of: JarSet = KAFKA) -> list[Jar]:
    """The jars of a set."""
    lines = Path(__file__).with_name(of.file).read_text(encoding="utf-8").split("\n")
    return [Jar(*line.replace(":", " ").split()) for line in lines if line]


def version(of: JarSet = KAFKA) -> str:
    """The version of a set: that of its main artifact."""
    return next(jar.version for jar in pinned(of) if jar.artifact.startswith(of.main))


def cache_of(environment: Mapping[str, str], of: JarSet = KAFKA) -> Path:
    """The folder that keeps fetched jars."""
    return caches(environment) / f"{of.cache}-{version(of)}"


def given(folder: Path, of: JarSet = KAFKA) -> list[Path]:
    """The jars in a folder of the user's. Raises MillraceError if one is missing or is not the pinned one."""
    jars = pinned(of)
    missing = [jar.file for jar in jars if not (folder / jar.file).is_file()]
    if missing:
        raise NotFoundError(
            f"{folder} lacks {len(missing)} of the {len(jars)} jars of {of.name} {version(of)}, such as {missing[0]}",
            "put them there, or leave --jars out to fetch them",
        )
    return [_checked(folder / jar.file, jar) for jar in jars]


def fetched(java: Path, environment: Mapping[str, str] = os.environ, of: JarSet = KAFKA) -> list[Path]:
    """The jars in the cache, after those that it lacks were copied from the local Maven repository or fetched."""
    cache, local = cache_of(environment, of), Path.home() / ".m2" / "repository"
    jars = pinned(of)
    cache.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in jars if not _is(cache / jar.file, jar)]
    for jar in missing:
        if _is(local / jar.path, jar):
            _keep(local / jar.path, cache / jar.file)
    missing = [jar for jar in missing if not _is(cache / jar.file, jar)]
    if missing:
        with TemporaryDirectory(prefix="millrace-jars-", dir=cache) as folder:
            _fetch(java, missing, Path(folder), environment.get(MAVEN), of)
            for jar in missing:
                _keep(_checked(Path(folder, jar.file), jar), cache / jar.file)
    return [cache / jar.file for jar in jars]


def _fetch(java: Path, jars: Iterable[Jar], into: Path, repository: str | None, of: JarSet) -> None:
    """Fetch jars with Ivy. Raises MachineError if one does not arrive, with Ivy's own output."""
    import pyspark  # slow, and not needed where the jars are there

    settings, wanted, said = into / "settings.xml", into / "ivy.xml", into / "said"
    settings.write_text(_settings(into / "ivy", repository), encoding="utf-8")
    wanted.write_text(_wanted(jars), encoding="utf-8")
    ivy = next(Path(pyspark.__path__[0], "jars").glob("ivy-*.jar"))
    command = [
        str(java), "-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(settings), "-ivy", str(wanted),
        "-retrieve", f"{into}/[artifact]-[revision].[ext]", "-warn",
    ]  # fmt: skip
    with said.open("wb") as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=output, check=False, timeout=_SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = -1
    missing = [jar for jar in jars if not (into / jar.file).is_file()]
    if code or missing:
        kept = into.parent / "fetch.log"
        said.replace(kept)
        where = repository or "Maven Central"
        what = f", such as {missing[0].group}:{missing[0].artifact}:{missing[0].version}" if missing else ""
        raise MachineError(
            f"the jars of {of.name} cannot be fetched from {where}{what}",
            f"the reason is in {kept}; check the network, name another Maven repository in {MAVEN}, or give a folder "
            "of jars: --jars FOLDER",
        )


def _settings(cache: Path, repository: str | None) -> str:
    root = "" if repository is None else f" root={quoteattr(repository.rstrip('/') + '/')}"
    return (
        '<ivysettings><settings defaultResolver="maven"/>'
        f"<caches defaultCacheDir={quoteattr(str(cache))}/>"
        f'<resolvers><ibiblio name="maven" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>\n'
    )


def _wanted(jars: Iterable[Jar]) -> str:
    each = "".join(
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false"/>\n'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="millrace" module="kafka"/>\n'
        f"<dependencies>\n{each}</dependencies></ivy-module>\n"
    )


def _is(path: Path, jar: Jar) -> bool:
    return path.is_file() and _hash(path) == jar.sha256


def _checked(path: Path, jar: Jar) -> Path:
    if _hash(path) != jar.sha256:
        raise CorruptError(
            f"{jar.file} has another hash than {jar.group}:{jar.artifact}:{jar.version} had when it was pinned",
            f"find out who changed it: {path.parent} or the repository that it is from cannot be trusted",
        )
    return path


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _keep(path: Path, target: Path) -> None:
    """Copy a jar as a whole, so that another process never sees a part of it."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(path, part)
    part.replace(target)


def classpath(jars: Sequence[Path]) -> str:
    """Jars as an argument of Java."""
    return os.pathsep.join(map(str, jars))
