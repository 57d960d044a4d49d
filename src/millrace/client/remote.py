"""A connection to `millrace serve` over HTTP. Tables are transferred as Arrow streams."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import pyarrow as pa

from millrace.client.connection import Connection
from millrace.client.dead import DeadLetters
from millrace.client.live_link import Link
from millrace.client.local import TOPICS, VIEWS, changed, lags
from millrace.client.result import Result
from millrace.letters.fixing import Fixed
from millrace.letters.letter import Chosen
from millrace.model.errors import Kind, MachineError, MillraceError, PipelineError, rebuilt, shown
from millrace.model.extra import extra
from millrace.model.plain import to_json
from millrace.views.store import ForgottenError
from millrace.views.tabular import ARROW, VERSION

_GONE = 410
_JSON = {"Content-Type": "application/json"}
_PATIENCE = 60.0
"""How many seconds to wait for the server, beyond those that a query may take."""
_MOST = 16 << 20
"""About how many bytes are sent together; the server accepts 64 MB."""


class RemoteConnection(Connection):
    """A connection to a server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Ask the server once, so that a wrong address is known now."""
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._ask("/healthz", None, {}, _PATIENCE)

    def query(self, sql: str, params: Sequence[Any] = (), *, seconds: float = 10.0) -> Result:
        """The answer to one SQL query."""
        for value in params:
            if not isinstance(value, str | int | float | None):  # a time as text would not compare as a time
                raise PipelineError(
                    f"over HTTP, a parameter must be text, a number, a boolean or None, not {shown(value)}"
                )
        body = to_json({"sql": sql, "seconds": seconds, "params": list(params)}).encode()
        return Result(self._table("/query", body, _PATIENCE + seconds))

    def view(self, name: str) -> Result:
        """All rows of a view."""
        table = self._table(f"/views/{quote(name, safe='')}")
        version = int(table.schema.metadata[VERSION])
        return Result(table.replace_schema_metadata(None), version)

    def changes(self, name: str, since: int) -> Result:
        """The changes of a view after a version."""
        asked = urlencode({"since": since})
        return changed(self._table(f"/views/{quote(name, safe='')}/changes?{asked}"), since)

    def views(self) -> Result:
        """The views."""
        rows = [
            {**view, "columns": ", ".join(f"{name} {type}" for name, type in view["columns"].items())}
            for view in self._json("/views")
        ]
        return Result(pa.Table.from_pylist(rows, VIEWS))

    def topics(self) -> Result:
        """The topics."""
        rows = [
            {
                "topic": topic["topic"], "partitions": topic["partitions"],
                "records": sum(topic["ends"]) - sum(topic["starts"]), "behind": lags(topic["behind"]),
            }
            for topic in self._json("/topics")
        ]  # fmt: skip
        return Result(pa.Table.from_pylist(rows, TOPICS))

    def dead(self, pipeline: str) -> DeadLetters:
        """The dead letters of a pipeline."""
        return RemoteDead(self._table, self._post, f"/pipelines/{quote(pipeline, safe='')}/dead")

    def _link(self) -> tuple[Link, str]:
        with extra("server", "a live query of a server"):
            from millrace.client.live_socket import SocketLink

        return SocketLink(self._url, self._headers), self._url

    def close(self) -> None:
        """Do nothing: each request has its own connection."""

    def _append(self, topic: str, values: pa.Array, key: str | None) -> None:
        path = f"/topics/{quote(topic, safe='')}" + ("" if key is None else f"?{urlencode({'key': key})}")
        sent = 0
        for part in _parts(values):
            body = "\n".join(part.to_pylist()).encode()
            try:
                self._ask(path, body, {"Content-Type": "application/x-ndjson"}, _PATIENCE)
            except MillraceError as error:
                if not sent:
                    raise
                problem = f"only the first {sent:,} of {len(values):,} records were sent: {error.problem}"
                raise MachineError(problem, "fix the cause, then send only the other records") from None
            sent += len(part)

    def _json(self, path: str) -> Any:
        return json.loads(self._ask(path, None, {}, _PATIENCE))

    def _post(self, path: str, content: Mapping[str, Any]) -> Any:
        return json.loads(self._ask(path, to_json(content).encode(), _JSON, _PATIENCE))

    def _table(self, path: str, body: bytes | None = None, seconds: float = _PATIENCE) -> pa.Table:
        try:
            return pa.ipc.open_stream(self._ask(path, body, {"Accept": ARROW, **_JSON}, seconds)).read_all()
        except pa.ArrowInvalid:
            problem = f"the response of {self._url} is not one of millrace serve"
            raise MachineError(problem, "check the address") from None

    def _ask(self, path: str, body: bytes | None, headers: Mapping[str, str], seconds: float) -> bytes:
        """The body of an answer. The status of a refusal decides which error it is; its text is only passed on."""
        try:
            with urlopen(Request(f"{self._url}{path}", body, {**self._headers, **headers}), timeout=seconds) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError as error:
            with error:
                raise self._refused(error.code, error.reason, error.read()) from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            advice = "check the address, and that millrace serve runs there"
            raise MachineError(f"cannot reach {self._url}: {why}", advice) from None

    def _refused(self, status: int, reason: str, body: bytes) -> MillraceError:
        """The error that the server raised; if it sent none, one that names the status."""
        try:
            content = json.loads(body)
            error = rebuilt(Kind(content["kind"]), content["problem"], content["advice"])
        except (ValueError, KeyError, TypeError):
            return MachineError(f"{self._url} answered {status} {reason}", "check the address, or try again later")
        return ForgottenError(error.problem, error.advice or "") if status == _GONE else error


class RemoteDead(DeadLetters):
    """The dead letters of a pipeline on a server."""

    def __init__(
        self, table: Callable[[str], pa.Table], post: Callable[[str, Mapping[str, Any]], Any], path: str
    ) -> None:
        """`table` and `post` make requests; `path` is that of the pipeline."""
        self._table, self._post, self._path = table, post, path

    def reasons(self) -> Result:
        """The reasons."""
        return Result(self._table(self._path))

    def _letters(self, chosen: Chosen) -> Result:
        asked = [("letter", str(number)) for number in chosen.numbers]
        asked += [] if chosen.problem is None else [("reason", chosen.problem)]
        return Result(self._table(f"{self._path}/letters?{urlencode(asked)}"))

    def _fix(self, chosen: Chosen, set: Mapping[str, str]) -> Fixed:
        return _fixed(self._post(f"{self._path}/fix", {**_some(chosen), "set": set}))

    def _replace(self, letter: int, text: str) -> Fixed:
        return _fixed(self._post(f"{self._path}/fix", {"values": {str(letter): text}}))

    def _resend(self, chosen: Chosen, unchanged: bool, anyway: bool) -> int:
        asked = {**_some(chosen), "unchanged": unchanged, "anyway": anyway}
        return int(self._post(f"{self._path}/resend", asked)["resent"])

    def _drop(self, chosen: Chosen) -> int:
        return int(self._post(f"{self._path}/drop", _some(chosen))["dropped"])


def _some(chosen: Chosen) -> dict[str, Any]:
    return {"letters": list(chosen.numbers), "reason": chosen.problem}


def _fixed(answer: Mapping[str, Any]) -> Fixed:
    return Fixed(answer["fixed"], {int(number): reason for number, reason in answer["failed"].items()})


def _parts(values: pa.Array) -> Iterator[pa.Array]:
    """Pieces that fit into a request each."""
    step = max(1, len(values) * _MOST // max(1, values.nbytes))
    for start in range(0, len(values), step):
        yield values.slice(start, step)
