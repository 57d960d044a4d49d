"""The compiled code that finds lines and decodes JSON by shape (`formats.kernel`), if Numba is installed.

Importing Numba and reading the compiled code from the disk takes most of a second of CPU and some memory; compiling it
takes about ten, once for an installation and a kind of CPU. So a process asks for it only when it has decoded much, and
gets it in a thread; until then, and if there is no Numba, DuckDB decodes. Numba stores the compiled code beside the
package, or in the user's cache folder if it may not write there; NUMBA_CACHE_DIR is another folder.
"""

import importlib
import threading
from types import ModuleType

_ENOUGH = 64 << 20
"""How many bytes of JSON a process decodes before it asks for the compiled code."""

_lock = threading.Lock()
_decoded = 0
_thread: threading.Thread | None = None
_kernel: ModuleType | None = None


def kernel_after(size: int) -> ModuleType | None:
    """The compiled code if it is ready; else count so many bytes that are decoded without it."""
    global _decoded, _thread
    if _kernel is not None:
        return _kernel
    with _lock:
        _decoded += size
        if _thread is None and _decoded >= _ENOUGH:
            # It is no daemon: a process must not end while LLVM is at work.
            _thread = threading.Thread(target=kernel, name="millrace-kernel")
            _thread.start()
    return None


def kernel_now() -> ModuleType | None:
    """The compiled code if it is ready."""
    return _kernel


def kernel() -> ModuleType | None:
    """The compiled code, compiled now if need be; None if Numba is missing or does not work here."""
    global _kernel
    if _kernel is None:
        try:
            found = importlib.import_module("millrace.formats.kernel")
            found.warm_up()
        except Exception:  # Numba fails in many ways: no such CPU, no writable folder, another version of NumPy
            return None
        _kernel = found
    return _kernel
