"""The one error a user's own mistake raises, and where in their code they made it."""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code. It takes no part in comparing what stands there."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


class ModelError(ValueError):
    """A pipeline, a transcript or a row that cannot be what was meant.

    `message` says what is wrong and what to do; it is meant to be printed as it is, without a
    stack trace. `place` is the line of the user's code, where there is one.
    """

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.message = message
        self.place = place


class MachineError(ModelError):
    """A disk or a server that does not do what it should. What was asked may be right, and be asked again."""


class NoValueError(ValueError):
    """Why something has no value: an aggregate for a row or a group, a user's function for a row.

    It is no mistake in a pipeline: that row or group is set aside with the reason, and the rest go on.
    """


def because(error: Exception) -> str:
    """What a user's function raised, in a line."""
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def caller() -> Place:
    """The nearest line outside Millrace that led here: where the user wrote what is being built."""
    frame = sys._getframe(1)
    # By module, not by file: the methods that dataclasses write have no file.
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "millrace":
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def refuse(message: str, place: Place | None = None) -> ModelError:
    """An error that opens with the user's file and line, to be raised by whoever found it."""
    return ModelError(message, place or caller())


@contextmanager
def at_place(place: Place) -> Iterator[None]:
    """Let what is refused inside name this place: that of a thing built earlier."""
    try:
        yield
    except ModelError as error:
        raise ModelError(error.message, place) from None


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Say that a name is not known, what would be, and which of them was probably meant."""
    names = [str(each) for each in known]
    by_lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.7)
    guess = f"; did you mean {by_lower[close[0]]!r}?" if close else ""
    return f"unknown {what} {str(name)!r}{guess} (known: {', '.join(names) or 'none'})"


def shown(value: object) -> str:
    """A value in a message: not the whole of it, and a hint where a call was forgotten."""
    if isinstance(value, type) or callable(value):
        return f"{getattr(value, '__name__', 'a function')}; did you forget the ()?"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
