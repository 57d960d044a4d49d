import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

import kills
import postgres as servers
from examples import FULL
from killed import Clean, clean_run
from millrace.spark import session

# The same cases on every run, so that a red build is about the change and not about luck; CI_SEEDS=random
# looks for new ones. A failure prints how to see it again.
# How fast cases are drawn says how busy the machine is, not whether the code is right.
patient = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=FULL)
settings.register_profile("fixed", patient, derandomize=True)
settings.register_profile("random", patient)
settings.register_profile("quick", patient, derandomize=True, max_examples=FULL // 10)
settings.load_profile("random" if os.environ.get("CI_SEEDS") == "random" else "fixed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests in one worker process that share what is dear to start: Spark, or the archive of Java's classes.

    Who takes the session is marked `spark`, so that `make quick` cannot start Spark by mistake.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif "clean" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("kills"))


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """End what a test has started and left running."""
    yield
    while kills.STARTED:
        kills.STARTED.pop().end()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of all tests."""
    started = session.start("millrace-tests", "local[2]")
    yield started
    assert started.sparkContext._jsc is not None, "a test has stopped the Spark session of all tests"
    session.stop(started)


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.Postgres]:
    """The one PostgreSQL server of all tests; a test that kills it starts it again."""
    with servers.server() as started:
        yield started


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """One run that nobody disturbs, for all tests that kill."""
    return clean_run(tmp_path_factory.mktemp("clean"))
