"""`millrace.connect`: the views and topics of a folder, of a database, or of a server."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from millrace.client.connection import Connection
from millrace.model.errors import NotFoundError, PipelineError

LOG, STORE = "log.db", "views.db"
"""The names of the two files in the folder that `millrace` uses."""
TOKEN = "MILLRACE_TOKEN"
"""The environment variable of the token."""


def connect(url: str | Path = ".millrace", *, log: str | Path | None = None, token: str | None = None) -> Connection:
    """Connect to a folder, to a store, or to `millrace serve`.

    `url` is a folder with `log.db` and `views.db`, the file or URL of a store (`sqlite:///file`, `postgresql://...`),
    or `http://host:port`. `log` is the file of the log for `topics` and `send`; a folder and a server have their own.
    `token` is that of a server that needs one; by default the environment variable MILLRACE_TOKEN.
    Refuses a place that does not exist: connecting and reading create no files.
    """
    # These are imported here, as most programs that import millrace read nothing.
    from millrace.client.local import LocalConnection
    from millrace.views.store import open_store

    text = str(url)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("http", "https"):
        from millrace.client.remote import RemoteConnection

        if log is not None:
            raise PipelineError("a connection to a server does not take log=", "leave log= out")
        return RemoteConnection(text, token or os.environ.get(TOKEN))
    if token is not None:
        raise PipelineError("only a connection to a server takes token=", "leave token= out")
    named = None if log is None else Path(log).absolute()
    if scheme:
        return LocalConnection(open_store(text), named)
    path = Path(text).absolute()
    if path.is_dir():
        if not (path / STORE).exists() and not (path / LOG).exists():
            problem = f"{path} has neither {STORE} nor {LOG}"
            raise NotFoundError(problem, "run a pipeline first, or choose another folder")
        return LocalConnection(open_store(path / STORE), named or path / LOG, path)
    if not path.exists():
        advice = "run a pipeline first, or create a topic: millrace topics create NAME"
        raise NotFoundError(f"there is no folder or store {path}", advice)
    return LocalConnection(open_store(path), named)
