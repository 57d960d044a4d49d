"""Records decoded by shape in tests, however few there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from millrace.edge import by_shape
from millrace.formats import compiled


@contextmanager
def by_shape_always() -> Iterator[None]:
    """Bundles of any size are decoded by shape, with the compiled code ready."""
    assert compiled.kernel() is not None
    with patch.object(by_shape, "_LEAST", 0):
        yield
