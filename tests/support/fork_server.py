"""A server that has imported PySpark and Millrace and forks a process for each request; `quick_python` starts it.

`serve NUMBER` serves the socket with this number until the end of the input; `start PATH MODULE` does what
`python -m MODULE` does, by the server at a path.
"""

import json
import os
import signal
import socket
import sys

_IMPORTED = (
    "millrace.spark.source",
    "millrace.spark.shards",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
)
_LONGEST = 1 << 18
"""The most bytes of a request."""


def serve(listening: socket.socket) -> None:
    """Fork a process for each request; returns in that process, when its module has ended."""
    import select
    from importlib import import_module

    for name in _IMPORTED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        asking, _ = listening.accept()
        request, files, _, _ = socket.recv_fds(asking, _LONGEST, 3)
        if (pid := os.fork()) == 0:
            listening.close()
            _become(**json.loads(request), files=files)
            return
        asking.send(str(pid).encode())
        asking.close()
        for file in files:
            os.close(file)


def _become(module: str, folder: str, environment: dict[str, str], files: list[int]) -> None:
    """Run a module as the process that was asked for: with its folder, variables and standard files."""
    import runpy

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    del sys.argv[1:]
    sys.path[:1] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def start(path: str, module: str) -> None:
    """Ask the server for a process and stand in for it: pass on the signal that ends it, and end when it ends."""
    request = {"module": module, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(path)
        socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2])
        pid = int(asking.recv(64))
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
        asking.recv(1)  # nothing comes: the process holds the other end until it ends


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", number]:
            serve(socket.socket(fileno=int(number)))
        case ["start", path, module]:
            start(path, module)
