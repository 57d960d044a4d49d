"""What went wrong in a worker, as the user should read it."""

import re

from pyspark.errors import PySparkException

from millrace.model.errors import PipelineError

_OURS = re.compile(r"millrace\.model\.errors\.\w+Error: (.*(?:\n    .*)*)")


def plain_error(error: PySparkException) -> Exception:
    """A mistake that a worker found, without the stack of two machines around it; else the error as it is."""
    text = str(error)
    found = _OURS.search(text)
    if found:
        return PipelineError(found[1].strip())
    if "No space left on device" in text:
        return PipelineError("the disk is full; nothing was lost: make room, and run again")
    return error
