"""Requests drawn from the server's own description: none is an error of the server, and each answer is as described."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from millrace import agg, memory, on, window
from millrace.eventlog.topics import Log
from millrace.model.connectors import Commit
from millrace.views.shape import shape_of
from millrace.views.store import open_store
from served import served
from stores import answers

SOURCE = memory("events", "k STRING, at TIMESTAMP").event_time("at", delay="0s").group_by("k")
SHAPE = shape_of("hourly", SOURCE.window(window.fixed("1h")).trigger(on.each()).retracting().aggregate(n=agg.count()))
EXAMPLES = 8
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    """The description of a server with a topic and a view."""
    folder = tmp_path_factory.mktemp("project")
    with Log(folder / "log.db") as log:
        log.create("plays")
    store = open_store(Path(folder, "views.db"))
    store.open("p", [SHAPE])
    row = ("a", 0, 3_600_000_000, 1, "early", 0, False)
    store.commit(Commit("p", "c", 0), {"hourly": answers(SHAPE, [(1, row)])}, once=True)
    store.close()
    with served(folder) as running:
        schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        yield schema


def test_no_request_breaks_the_server(described: schemathesis.BaseSchema) -> None:
    """Without the plugin of Schemathesis for pytest, which does not work with pytest 9.2."""
    operations = [found.ok() for found in described.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) > 12
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=EXAMPLES)
        def holds(case: schemathesis.Case[Any]) -> None:
            for name, known in (("topic", "plays"), ("view", "hourly")):
                if name in case.path_parameters and len(str(case.path_parameters[name])) % 2:
                    case.path_parameters[name] = known
            case.call_and_validate(checks=CHECKS)

        holds()
