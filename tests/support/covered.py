"""Coverage of random tests: it is measured for their first examples only, because that doubles the time of each."""

from collections.abc import Generator
from functools import wraps
from typing import Any

import pytest
from coverage import Coverage

_MEASURED = 10


def first_examples(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test; if it is a random one and coverage is measured, without coverage after its first examples."""
    measuring, random = Coverage.current(), getattr(getattr(item, "obj", None), "hypothesis", None)
    if measuring is None or random is None:
        return (yield)
    test, drawn = random.inner_test, 0

    @wraps(test)
    def counted(*given: Any, **named: Any) -> Any:
        nonlocal drawn
        drawn += 1
        if drawn == _MEASURED + 1:
            measuring.stop()
        return test(*given, **named)

    random.inner_test = counted
    try:
        return (yield)
    finally:
        random.inner_test = test
        if drawn > _MEASURED:
            measuring.start()
