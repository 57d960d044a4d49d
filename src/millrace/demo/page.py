"""The page of the demo: a server in this process, for as long as the demo runs."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace.eventlog.topics import Log
from millrace.model.errors import NotFoundError
from millrace.model.extra import extra
from millrace.running.run import behind
from millrace.running.status import all_under, described
from millrace.views.store import Store


@contextmanager
def page(folder: Path, log: Log, store: Store) -> Iterator[str]:
    """A sentence with the address of the page over a project; why there is none, if the server is not installed."""
    try:
        with extra("server", "the page"):
            import uvicorn

            from millrace.server.app import make_app
    except NotFoundError as error:
        yield f"There is no page to watch: {error.message}"
        return

    def pipelines() -> list[dict[str, Any]]:
        return [described(each, behind(each.pipeline, log)) for each in all_under(folder)]

    app = make_app(log, store, folder=folder, pipelines=pipelines, workers=1)
    # Signals are the demo's, so the server runs on a loop of its own in another thread.
    server = uvicorn.Server(
        uvicorn.Config(app, loop="asyncio", log_level="critical", access_log=False, timeout_graceful_shutdown=1)
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), name="page", daemon=True)
        thread.start()
        try:
            yield f"Watch it: http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(5)
