"""A server that has imported PySpark and Millrace and forks a process for each request; `forks` starts it.

`serve NUMBER FOLDER` serves the socket with this number until the end of the input, and removes the folder. `start PATH
MODULE ARGUMENT...` does what `python -m MODULE ARGUMENT...` does, by the server at a path; it runs without the packages
of this environment, so that it starts at once.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

_LONGEST = 1 << 18
"""The most bytes of a request."""
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""The signals that a process may inherit as ignored."""


def serve(listening: socket.socket, folder: str) -> None:
    """Fork a process for each request."""
    import select
    import shutil

    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file
    from millrace.spark.workers import prepare

    for number in _SIGNALS:  # it ends with the process that started it
        signal.signal(number, signal.SIG_IGN)
    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        asking, _ = listening.accept()
        request, files, _, _ = socket.recv_fds(asking, _LONGEST, 3)
        with asking, suppress(OSError, ValueError):  # one that is not understood, or is gone, gets no answer
            asked = json.loads(request)
            if (pid := os.fork()) == 0:
                listening.close()
                _become(**asked, files=files, asking=asking)
            asking.send(str(pid).encode())
        for file in files:
            os.close(file)
    shutil.rmtree(folder, ignore_errors=True)


def _become(
    module: str,
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    ignored: list[int],
    files: list[int],
    asking: socket.socket,
) -> None:
    """Run a module as the process that was asked for: with its folder, variables, signals and standard files."""
    import runpy
    import time
    import traceback

    code: object = 0
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in _SIGNALS:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number in ignored else usual)
        for standard, file in enumerate(files):
            os.dup2(file, standard)
            os.close(file)
        with suppress(OSError), open("/proc/self/comm", "w") as name:  # what `ps` and `top` show
            name.write(module.rpartition(".")[2])
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = dict.fromkeys([folder, *paths, *sys.path])
        sys.argv[1:] = arguments
        sys.modules.pop(module, None)  # it runs as a program
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    status = code if isinstance(code, int) else int(code is not None)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    with suppress(OSError):
        asking.send(str(status).encode())
    os._exit(status)  # to free all that was imported takes time


def start(path: str, module: str, arguments: list[str]) -> int:
    """Ask the server for a process and stand in for it: pass on the signal that ends it, and end as it ends.

    If there is no server, become the process itself.
    """
    request = {
        "module": module, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ),
        "ignored": [number for number in _SIGNALS if signal.getsignal(number) == signal.SIG_IGN],
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        try:
            asking.connect(path)
            socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2])
            pid = int(asking.recv(64))
        except (OSError, ValueError):
            os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
        return int(asking.recv(64) or 1)  # nothing comes if it was killed: it held the other end


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", number, folder]:
            serve(socket.socket(fileno=int(number)), folder)
        case ["start", path, module, *arguments]:
            sys.exit(start(path, module, arguments))
