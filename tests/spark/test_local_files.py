"""Files that Spark makes on this machine: as Hadoop makes them, without a process for each."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def file_system(spark: SparkSession, **settings: str) -> Any:
    hadoop = spark._jvm.org.apache.hadoop  # type: ignore[union-attr]
    conf = hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())
    for name, value in settings.items():
        conf.set(name.replace("_", "."), value)
    return hadoop.fs.FileSystem.newInstance(spark._jvm.java.net.URI("file:///"), conf)  # type: ignore[union-attr]


@pytest.fixture
def ours(spark: SparkSession) -> Any:
    found = file_system(spark)
    assert found.getClass().getName() == "millrace.LocalFiles"
    return found


@pytest.fixture
def hadoops(spark: SparkSession) -> Any:
    return file_system(spark, fs_file_impl="org.apache.hadoop.fs.LocalFileSystem")


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o400, 0o000, 0o777, 0o641, 0o1777])
def test_permissions_are_those_that_hadoop_sets(mode: int, spark: SparkSession, ours: Any, tmp_path: Path,
                                                hadoops: Any) -> None:  # fmt: skip
    hadoop = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    permission = hadoop.permission.FsPermission(f"{mode:03o}")
    modes = []
    for name, files in (("ours", ours), ("hadoop's", hadoops)):
        path = tmp_path / name
        path.mkdir()
        files.setPermission(hadoop.Path(str(path)), permission)
        modes.append(path.stat().st_mode)
    assert modes[0] == modes[1]


def test_files_are_those_that_hadoop_makes(spark: SparkSession, ours: Any, hadoops: Any, tmp_path: Path) -> None:
    hadoop = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    made = []
    for name, files in (("ours", ours), ("hadoop's", hadoops)):
        folder = tmp_path / name
        written = files.create(hadoop.Path(str(folder / "a b" / "file")), True)
        written.write(bytearray(b"content"))
        written.close()
        made.append(
            {
                (str(path.relative_to(folder)), path.stat().st_mode, path.read_bytes() if path.is_file() else None)
                for path in [folder, *folder.rglob("*")]
            }
        )
    assert made[0] == made[1]
    assert {path for path, _, _ in made[0]} == {".", "a b", "a b/file", "a b/.file.crc"}


def test_a_missing_file_is_an_error(spark: SparkSession, ours: Any, tmp_path: Path) -> None:
    hadoop = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    with pytest.raises(Exception, match="NoSuchFileException"):
        ours.setPermission(hadoop.Path(str(tmp_path / "none")), hadoop.permission.FsPermission("644"))
