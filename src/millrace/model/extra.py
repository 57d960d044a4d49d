"""Optional packages: `millrace` alone runs pipelines, and an extra installs the packages of one feature."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from millrace.model.errors import NotFoundError

Extra: TypeAlias = Literal["server", "postgresql", "kafka"]
"""The extras of pyproject.toml that add a feature; `java` installs a Java for Spark (`spark/java.py`)."""


@contextmanager
def extra(name: Extra, feature: str) -> Iterator[None]:
    """Import the packages of an extra inside this block.

    If one is missing, the error names the feature, the package and the command that installs it. A failed import of
    Millrace's own modules is a bug and is raised unchanged.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "millrace":
            raise
        missing = f"the package {package}" if package else "a package"
        raise NotFoundError(f"{feature} needs {missing}", f"pip install 'millrace[{name}]'") from None
