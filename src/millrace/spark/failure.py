"""Turns an error of Spark or of a worker into one line that the user can act on."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from millrace.model.errors import CorruptError, MachineError, MillraceError
from millrace.spark import session
from millrace.spark.envelope import opened
from millrace.spark.trouble import by_number, machine_trouble

_LOGGER = logging.getLogger("millrace.spark")
_OUT_OF_MEMORY = {"java.lang.OutOfMemoryError", "org.apache.spark.memory.SparkOutOfMemoryError"}
_LOST = {"java.io.EOFException", "java.net.SocketException", "org.apache.spark.api.python.PythonWorkerException"}
_ROCKSDB = "org.rocksdb.RocksDBException"
_CHECKSUM = "org.apache.hadoop.fs.ChecksumException"
_UNREADABLE = ("CANNOT_LOAD_STATE_STORE", "STREAMING_CHECKPOINT_MISSING_METADATA_FILE", "BATCH_METADATA_NOT_FOUND")
"""The beginnings of Spark's error conditions for checkpoints that it cannot read."""
_EXECUTOR_LOST = (
    "shuffle map stage with indeterminate output was failed",
    "ExecutorLostFailure",
    "FetchFailed",
    "failed the maximum allowable number of times",
)
"""Words of Spark's errors for jobs that end because executors were lost; they have no condition of their own."""
_LONGEST = 200
"""The characters of an error without an explanation that are shown; the file that Spark prints to has the rest."""
_WRITING = {"java.io.IOException", "java.nio.file.FileSystemException", "java.io.FileNotFoundException"}
_NUMBERS = {
    os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE)
}
"""Java has no error numbers: the message of an IOException ends with the system's text for the error."""


def plain_error(error: BaseException, damage: Callable[[], CorruptError] | None = None) -> BaseException:
    """The error as a MillraceError, without the stacks of Python and Java.

    `damage` returns the error for a checkpoint that Spark cannot read, if a checkpoint is used.

    A worker's error is returned as the worker raised it. An error without an explanation keeps its first line; its full
    text goes to the file that Spark prints to. An error of the driver that is no machine error is returned unchanged.
    """
    if isinstance(error, MillraceError):
        return error
    if not isinstance(error, PySparkException | Py4JError):
        return machine_trouble(error) or error
    text = _text(error)
    found, who = opened(text), "a worker"
    if found is None:
        causes, who = list(_causes(error)), "Spark"
        found = _java_trouble(causes)
        if found is None and damage is not None and _is_damage(causes):
            found = damage()
            _keep(text)
        found = found or _lost_worker(causes) or _lost_executor(causes) or MillraceError(_first_line(causes, text))
    if type(found) is not MillraceError:
        return found
    kept = _keep(text)
    advice = "to see all of it, let the logger millrace.spark log at DEBUG" if kept is None else f"see {kept}"
    return MillraceError(f"{who} failed: {found.problem}", advice)


def _text(error: BaseException) -> str:
    """The full text of an error; its repr if the JVM is gone."""
    try:
        return str(error)
    except (Py4JError, OSError, AssertionError):
        return repr(error)


def _causes(error: BaseException) -> Iterator[tuple[str, str, Any]]:
    """The Java exceptions, from the outermost to the root cause: the class, the message and the object."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    with suppress(Py4JError, OSError):  # without a JVM, no further cause can be read
        while java is not None:
            yield java.getClass().getName(), java.getMessage() or "", java
            java = java.getCause()


def _java_trouble(causes: list[tuple[str, str, Any]]) -> MachineError | None:
    """The machine error that caused a Java exception, if there is one."""
    for name, message, java in reversed(causes):
        if name in _OUT_OF_MEMORY:
            return by_number(errno.ENOMEM)
        if name == _ROCKSDB and _rocksdb_is_full(java):
            return by_number(errno.ENOSPC)
        if name in _WRITING:
            number = next((number for words, number in _NUMBERS.items() if message.endswith(words)), None)
            if number is not None:
                return by_number(number)
    return None


def _is_damage(causes: list[tuple[str, str, Any]]) -> bool:
    """Whether Spark could not read a file of the checkpoint because of its content, or because it is missing."""
    for name, _, java in causes:
        if name == _CHECKSUM:
            return True
        if name == _ROCKSDB:
            status = java.getStatus()
            return status is not None and status.getCode().toString() == "Corruption"
    return any(_condition(java).startswith(_UNREADABLE) for _, _, java in causes)


def _condition(java: Any) -> str:
    """The error condition of an exception of Spark; empty for any other exception."""
    with suppress(Py4JError, OSError):  # other exceptions have no such method
        return java.getCondition() or ""
    return ""


def _lost_worker(causes: list[tuple[str, str, Any]]) -> MachineError | None:
    if causes and causes[-1][0] in _LOST:
        return MachineError(
            "a worker process was lost, perhaps because there is not enough memory",
            "nothing was lost: run it again, with fewer cores if it happens again: --master 'local[1]'",
        )
    return None


def _lost_executor(causes: list[tuple[str, str, Any]]) -> MachineError | None:
    """The error for a job that Spark gave up because an executor was lost with what it had computed.

    Spark does not know that our sources give the same rows again, so it does not compute lost rows of one stage anew
    while another stage has used some of them.
    """
    if any(words in message for _, message, _ in causes for words in _EXECUTOR_LOST):
        return MachineError(
            "an executor was lost in the middle of a micro-batch",
            "nothing was lost: run it again; if it happens often, see the executor's output, and give it more memory: "
            "--conf spark.executor.memory=4g",
        )
    return None


def _rocksdb_is_full(java: Any) -> bool:
    status = java.getStatus()
    return status is not None and status.getSubCode().toString() == "NoSpace"


def _first_line(causes: list[tuple[str, str, Any]], text: str) -> str:
    said = [f"{name.rpartition('.')[2]}: {message}" if message else name for name, message, _ in reversed(causes)]
    lines = (line.strip() for each in [*said, text] for line in each.splitlines())
    first = next((line for line in lines if line), "no reason given")
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."


def _keep(text: str) -> str | None:
    """Append the full text of an error to the file that Spark prints to, and return that file, if there is one."""
    _LOGGER.debug("%s", text)
    log = session.printed_to()
    if log is None:
        return None
    with suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return str(log)
