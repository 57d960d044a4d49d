"""The pytest plugin of Millrace. It is a module of its own so that pytest starts without importing Millrace."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def millrace_spark() -> "Iterator[SparkSession]":
    """One Spark session for all tests that ask for it: started for the first of them, stopped after the last test.

    A session that is active already is taken as it is, and left running.
    """
    from millrace.testing.on_spark import shared_session

    with shared_session() as session:
        yield session
