"""Carries errors as data from a worker to the driver.

Spark passes on only the text of a worker's traceback. An error in a worker is therefore raised as a `WorkerError`,
whose text ends with one line: a marker, then the kind, the problem, the advice and the place as JSON.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from millrace.model.errors import Kind, MillraceError, Place, because, rebuilt
from millrace.spark.trouble import machine_trouble

P = ParamSpec("P")
T = TypeVar("T")
_MARKER = "millrace-error "


class WorkerError(Exception):
    """A MillraceError in the form that Spark passes on. The driver reads it with `opened`."""

    def __init__(self, error: MillraceError) -> None:
        place = None if error.place is None else [error.place.file, error.place.line]
        carried = {"kind": error.kind, "problem": error.problem, "advice": error.advice, "place": place}
        super().__init__(f"{error}\n{_MARKER}{json.dumps(carried)}")


def opened(text: str) -> MillraceError | None:
    """The error that a worker raised, from any text that contains a WorkerError's text; None if it contains none."""
    _, marker, rest = text.partition(f"\n{_MARKER}")
    if not marker:
        return None
    carried, _ = json.JSONDecoder().raw_decode(rest)
    place = None if carried["place"] is None else Place(*carried["place"])
    return rebuilt(Kind(carried["kind"]), carried["problem"], carried["advice"], place)


@contextmanager
def reporting() -> Iterator[None]:
    """Raise any error in the block as a WorkerError. Its traceback includes that of the original error."""
    try:
        yield
    except WorkerError:
        raise
    except MillraceError as error:
        raise WorkerError(error) from error
    except Exception as error:
        raise WorkerError(machine_trouble(error) or MillraceError(because(error))) from error


def reported(work: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function or generator function that Spark calls in a worker, so that its errors are reported."""
    if inspect.isgeneratorfunction(work):

        def called(*args: P.args, **kwargs: P.kwargs) -> Any:
            with reporting():
                yield from work(*args, **kwargs)

    else:

        def called(*args: P.args, **kwargs: P.kwargs) -> Any:
            with reporting():
                return work(*args, **kwargs)

    wraps(work)(called)
    vars(called)["__signature__"] = inspect.signature(work)  # Spark counts the arguments that a function takes
    return called
