"""Errors for users: the problem, the advice, and the line of their code."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import ClassVar, Self


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code. Values that hold a place ignore it in comparisons."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


NOTHING_LOST = "nothing was lost: fix the cause, then run again"
"""The advice after a write that failed as a whole."""

FILE = "FILE"
"""The pipeline in a command of an advice, where its file and options are not known; `naming` fills them in."""

AGAIN = f"compute it again from the log: millrace replay {FILE}"
"""The advice for parts that do not belong together, or that are damaged."""


class Kind(StrEnum):
    """The category of an error. The command line maps it to an exit code, HTTP to a status."""

    MISTAKE = "mistake"
    NOT_FOUND = "not-found"
    MACHINE = "machine"
    CORRUPT = "corrupt"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"
    """A failure that Millrace has no explanation for."""


class MillraceError(Exception):
    """The base of all errors that Millrace raises for a user to read.

    `problem` says what is wrong, `advice` what to do about it, and `place` is the line of the user's code, where
    there is one. The text is one message without a stack trace: "place: problem; advice". The base itself stands for
    a failure that Millrace has no explanation for.
    """

    kind: ClassVar[Kind] = Kind.UNKNOWN

    def __init__(self, problem: str, advice: str | None = None, place: Place | None = None) -> None:
        # The arguments are passed on unchanged, because pickle calls the class with them again.
        super().__init__(problem, advice, place)
        self.problem, self.advice, self.place = problem, advice, place

    @property
    def message(self) -> str:
        """The problem and the advice, without the place."""
        return self.problem if self.advice is None else f"{self.problem}; {self.advice}"

    def about(self, what: str, place: Place | None = None) -> Self:
        """The same error, with its subject in front of the problem."""
        return type(self)(f"{what}: {self.problem}", self.advice, place or self.place)

    def naming(self, arguments: str) -> Self:
        """The same error, with these arguments in place of FILE in the commands of its advice."""
        if self.advice is None or arguments == FILE:
            return self
        advice = re.sub(rf"(millrace \w+) {FILE}\b", lambda found: f"{found[1]} {arguments}", self.advice)
        return type(self)(self.problem, advice, self.place)

    def __str__(self) -> str:
        return self.message if self.place is None else f"{self.place}: {self.message}"


class PipelineError(MillraceError, ValueError):
    """A mistake in what the user wrote: a pipeline, a transcript, a query, an option, a record."""

    kind = Kind.MISTAKE


class NotFoundError(MillraceError):
    """A topic, a view, a file, a checkpoint or a pipeline that does not exist."""

    kind = Kind.NOT_FOUND

    def __init__(self, problem: str, advice: str, place: Place | None = None) -> None:
        super().__init__(problem, advice, place)


class MachineError(MillraceError):
    """A disk, a network, a server or a lock that is in the way. The same request may succeed later."""

    kind = Kind.MACHINE

    def __init__(self, problem: str, advice: str, place: Place | None = None) -> None:
        super().__init__(problem, advice, place)


class CorruptError(MillraceError):
    """Stored data that is damaged, or that contradicts itself."""

    kind = Kind.CORRUPT

    def __init__(self, problem: str, advice: str, place: Place | None = None) -> None:
        super().__init__(problem, advice, place)


class ConflictError(MillraceError):
    """Something that exists already, or two things that do not match, such as a checkpoint of another pipeline."""

    kind = Kind.CONFLICT

    def __init__(self, problem: str, advice: str, place: Place | None = None) -> None:
        super().__init__(problem, advice, place)


def rebuilt(kind: Kind, problem: str, advice: str | None, place: Place | None = None) -> MillraceError:
    """The error that another process raised, from its parts."""
    classes = (MillraceError, PipelineError, NotFoundError, MachineError, CorruptError, ConflictError)
    return next(each for each in classes if each.kind is kind)(problem, advice, place)  # type: ignore[arg-type]


class NoValueError(ValueError):
    """The reason for a missing value: of an aggregate for a row or a group, or of a user's function for a row.

    It is not a mistake in the pipeline: the row or group becomes a dead letter with the reason, and the others are
    processed.
    """


def because(error: Exception) -> str:
    """The error that a user's function raised, on one line."""
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def raised_at(error: Exception) -> Place | None:
    """The line of a user's function that an error comes from, innermost in the function's own file."""
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "millrace":
        trace = trace.tb_next
    if trace is None:  # a function that is not written in Python
        return None
    file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
    while (trace := trace.tb_next) is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
    return Place(file, line)


def raised_by(what: str, error: Exception) -> NoValueError:
    """The reason for a missing value after a user's function raised: its line, `what` called it, and the error."""
    place = raised_at(error)
    return NoValueError(f"{'' if place is None else f'{place}: '}{what}: {because(error)}")


def caller() -> Place:
    """The innermost line outside Millrace on the call stack: the user's line that builds this object."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _ours(frame):
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def _ours(frame: FrameType) -> bool:
    """Whether a frame is of Millrace. Compares modules, not files: methods that dataclasses generate have no file."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "millrace"


def refuse(problem: str, place: Place | None = None, advice: str | None = None) -> PipelineError:
    """An error that starts with the user's file and line, for the caller to raise."""
    return PipelineError(problem, advice, place or caller())


@contextmanager
def at_place(place: Place) -> Iterator[None]:
    """Set the place of errors raised in this block to that of a node built earlier.

    Trouble of the machine and damaged data get no place: the user's line does not cause them.
    """
    try:
        yield
    except (MachineError, CorruptError):
        raise
    except MillraceError as error:
        raise type(error)(error.problem, error.advice, place) from None


def refuse_unknown(
    what: str, name: object, known: Iterable[str], place: Place | None = None, *, listed: bool = True
) -> PipelineError:
    """The error for an unknown name in the user's code, with the user's file and line.

    It lists the known names if `listed`, and suggests the one that was probably meant.
    """
    return PipelineError(*_unknown(what, name, known, listed), place or caller())


def unknown_option(what: str, name: object, known: Iterable[str]) -> PipelineError:
    """The error for an unknown name in a command or a request, which has no line of the user's code."""
    return PipelineError(*_unknown(what, name, known))


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The message for an unknown name, with the known names and the one that was probably meant."""
    return PipelineError(*_unknown(what, name, known)).message


def _unknown(what: str, name: object, known: Iterable[str], listed: bool = True) -> tuple[str, str | None]:
    """The problem and the advice for an unknown name."""
    names = [str(each) for each in known]
    meant = closest(name, names)
    problem, names_known = f"unknown {what} {str(name)!r}", f" (known: {', '.join(names) or 'none'})" if listed else ""
    if meant is None:
        return f"{problem}{names_known}", None
    return problem, f"did you mean {meant!r}?{names_known}"


def not_found(what: str, name: object, known: Iterable[str], advice: str) -> NotFoundError:
    """The error for an unknown name; the advice starts with the name that was probably meant."""
    problem, guess = _unknown(what, name, known)
    return NotFoundError(problem, advice if guess is None else f"{guess}; {advice}")


def gone(path: object) -> MachineError:
    """The error for a file that was there while a pipeline ran: its file system is not mounted, or it was moved."""
    return MachineError(f"{path} is gone", "mount its file system again, or put it back")


def unreadable(path: object, error: Exception, advice: str = "repair the file, or move it away") -> MillraceError:
    """The error for an unreadable file: it is missing, the system refuses to read it, or its content is damaged."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"there is no file {path}", "check the path")
    if isinstance(error, OSError) and error.errno is not None:
        return MachineError(f"{path} cannot be read: {error.strerror}", "fix the cause, then try again")
    return CorruptError(f"{path} cannot be read: {error}", advice)


def closest(name: object, names: Iterable[str]) -> str | None:
    """The name that was probably meant; None if none is similar."""
    by_lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else None


def shown(value: object) -> str:
    """A value in a message: only its type if it is long, and a hint if a call was forgotten."""
    if isinstance(value, type) or callable(value):
        return f"{getattr(value, '__name__', 'a function')} (did you forget the parentheses?)"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
