import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

import brokers
import clusters
import kills
import postgres as servers
import quick_java
from covered import first_examples
from examples import FULL
from killed import Answers, clean_run
from millrace.spark import session
from processes import ByFixture

pytest_plugins = ["page_fixtures"]

# The same cases on every run, so that a red build is about the change and not about luck; CI_SEEDS=random, which
# `make soak` sets, looks for new ones, twice as many. A failure prints how to see it again.
# How fast cases are drawn says how busy the machine is, not whether the code is right.
patient = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=FULL)
settings.register_profile("fixed", patient, derandomize=True, max_examples=FULL // 2)
settings.register_profile("random", patient)
settings.register_profile("quick", patient, derandomize=True, max_examples=FULL // 10)
settings.load_profile("random" if os.environ.get("CI_SEEDS") == "random" else "fixed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFixture | None:
    """Let `make test` keep tests in one process that share what is dear to start."""
    return ByFixture(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark who takes Spark, the browser or a service, so that `make quick` cannot start them by mistake.

    Where tests run in several processes, those that start Spark come first: a long test at the end would run alone.
    """
    for item in items:
        if {"spark", "millrace_spark"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        if {"kafka_", "postgres", "cluster_"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)
    if hasattr(config, "workerinput"):  # a process of xdist
        items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Measure the coverage of random tests sparingly."""
    return (yield from first_examples(item))


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """End what a test has started and left running."""
    yield
    while kills.STARTED:
        kills.STARTED.pop().end()


@pytest.fixture(scope="session")
def java() -> None:
    """The quick Java, for Spark sessions of this process and of those that it starts."""
    os.environ.update(quick_java.variables())


@pytest.fixture(autouse=True)
def java_for_spark(request: pytest.FixtureRequest) -> None:
    """Give the quick Java to each test that starts Spark."""
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("java")


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """The one Spark session of all tests in this process."""
    started = session.start("millrace-tests", "local[2]")
    yield started
    assert started.sparkContext._jsc is not None, "a test has stopped the Spark session of all tests"
    session.stop(started)


@pytest.fixture(scope="module")
def one_spark(spark: SparkSession) -> Iterator[None]:
    """Run all commands and pipelines of a module on the one Spark session of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "start", lambda *_: spark)
        patch.setattr(session, "stop", lambda _: None)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.Postgres]:
    """The one PostgreSQL server of all tests; a test that kills it starts it again."""
    with servers.server() as started:
        yield started


@pytest.fixture(scope="session")
def kafka_() -> Iterator[brokers.Kafka]:
    """The one Kafka of all tests in this process."""
    with brokers.running() as started:
        yield started


@pytest.fixture(scope="session")
def cluster_(java: None) -> Iterator[clusters.LocalCluster]:
    """The one Spark cluster of all tests in this process; a test that kills a part of it starts that again."""
    with clusters.running() as started:
        yield started


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory, java: None) -> Answers:
    """The answers of one run that nobody disturbs, for all tests that kill."""
    return clean_run(tmp_path_factory.mktemp("clean"))
