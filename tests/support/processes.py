"""Which tests run in which of the processes of `make test`."""

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

_SHARED = {
    "kafka": r"\bkafka_: Kafka\b|\bcluster_: LocalCluster\b",
    "spark": r"\bspark: SparkSession|\bone_spark\b|getfixturevalue\(\"spark\"\)",
    "kills": r"\bclean: Answers",
    "browser": r"\bbrowser: Browser|\bpage: Page\b",
}
"""What is started once for many tests, and the fixture by which a file asks for it."""


class ByFixture(LoadScopeScheduling):  # type: ignore[misc]
    """Files that share what is dear to start go to one process; any other test goes where there is time.

    xdist's own `loadgroup` does this by marks, but not with pytest 9.2, whose node ids it cannot change.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(self._root / nodeid.split("::")[0]) or nodeid


@cache
def shared_by(file: Path) -> str | None:
    """The group of a file of tests; None if it shares nothing.

    Tests on Spark are two groups of about the same duration, so that each process has a session.
    """
    text = file.read_text(encoding="utf-8")
    group = next((group for group, asks in _SHARED.items() if re.search(asks, text)), None)
    return f"spark, tests/{'spark' if file.parent.name == 'spark' else 'others'}" if group == "spark" else group
