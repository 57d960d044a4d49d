"""A schema registry over HTTP: the schemas of records by their ids, and of subjects by their versions.

A schema never changes under its id or its version, so each is asked for once. An id that the registry does not know is
asked for again after a while: it may be registered later.
"""

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from millrace.model.errors import MachineError, NotFoundError, PipelineError
from millrace.model.registry import PREFIX

_SECONDS = 10.0
"""For how long a request may take."""
_UNKNOWN_FOR = 10.0
"""For how many seconds an id counts as unknown."""
_NOT_FOUND = (40401, 40402, 40403)
"""What a registry answers for a subject, a version and a schema that it does not have."""
_CONTENT = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses: the name in that one, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of the registry."""

    type: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    """The schema; of PROTOBUF, a `FileDescriptorProto` in base 64."""
    references: tuple[Reference, ...] = ()


class Registry:
    """A schema registry at some addresses, which are tried in turn."""

    def __init__(self, urls: Sequence[str], properties: Mapping[str, str], serialized: bool = False) -> None:
        """Connect when something is asked. Schemas of Protobuf are asked for as `serialized` descriptors."""
        self._query = "?format=serialized" if serialized else ""
        self._urls, self._headers = tuple(urls), {"Accept": f"{_CONTENT}, application/json"}
        if "basic.auth.user.info" in properties:
            user = b64encode(properties["basic.auth.user.info"].encode()).decode()
            self._headers["Authorization"] = f"Basic {user}"
        if "bearer.auth.token" in properties:
            self._headers["Authorization"] = f"Bearer {properties['bearer.auth.token']}"
        self._opener = _opener(properties)
        self._schemas: dict[int, Registered] = {}
        self._versions: dict[tuple[str, int], Registered] = {}
        self._ids: dict[tuple[str, str, str], int] = {}
        self._unknown: dict[int, float] = {}

    def __str__(self) -> str:
        return f"the schema registry at {','.join(self._urls)}"

    def schema(self, id: int) -> Registered | None:
        """The schema with an id; None if the registry has none."""
        if id not in self._schemas:
            if time.monotonic() < self._unknown.get(id, 0.0):
                return None
            found = self._ask(f"/schemas/ids/{id}{self._query}")
            if found is None:
                self._unknown[id] = time.monotonic() + _UNKNOWN_FOR
                return None
            self._schemas[id] = self._registered(found)
        return self._schemas[id]

    def version(self, subject: str, version: int) -> Registered:
        """A version of a subject. Raises NotFoundError if there is none."""
        if (subject, version) not in self._versions:
            found = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}{self._query}")
            if found is None:
                raise NotFoundError(f"{self} has no version {version} of subject {subject!r}", "register it")
            self._versions[subject, version] = self._registered(found)
        return self._versions[subject, version]

    def referenced(self, schema: Registered) -> dict[str, Registered]:
        """The schemas that a schema uses, by their names in it; those that others use come first."""
        found: dict[str, Registered] = {}
        for reference in schema.references:
            used = self.version(reference.subject, reference.version)
            found |= {name: each for name, each in self.referenced(used).items() if name not in found}
            found.setdefault(reference.name, used)
        return found

    def register(self, subject: str, type: str, text: str) -> int:
        """The id of a schema in a subject, where it is registered if it is not there yet.

        Raises PipelineError if the subject refuses it: then it is not compatible with earlier versions.
        """
        key = (subject, type, text)
        if key not in self._ids:
            content = json.dumps({"schemaType": type, "schema": text}).encode()
            found = self._ask(f"/subjects/{quote(subject, safe='')}/versions", content)
            if found is None or not isinstance(found.get("id"), int):
                raise self._strange()
            self._ids[key] = found["id"]
        return self._ids[key]

    def _registered(self, found: Mapping[str, Any]) -> Registered:
        try:
            references = [Reference(str(r["name"]), str(r["subject"]), int(r["version"])) for r in _references(found)]
            return Registered(str(found.get("schemaType") or "AVRO"), str(found["schema"]), tuple(references))
        except (KeyError, TypeError, ValueError):
            raise self._strange() from None

    def _ask(self, path: str, content: bytes | None = None) -> dict[str, Any] | None:
        """The answer to a request; None if what it names does not exist."""
        headers = self._headers if content is None else {**self._headers, "Content-Type": _CONTENT}
        trouble = ""
        for url in self._urls:
            try:
                with self._opener.open(Request(url + path, content, headers), timeout=_SECONDS) as answer:
                    found = json.load(answer)
            except HTTPError as error:
                code, said = _said(error)
                if code in _NOT_FOUND:
                    return None
                if error.code in (401, 403):
                    raise MachineError(
                        f"{self} refuses the client: {error.code}",
                        f"check the properties that begin with {PREFIX}, and the rights of the user",
                    ) from None
                if error.code in (409, 422):
                    raise PipelineError(f"{self} refuses the schema of {path.split('/')[2]!r}: {said}") from None
                trouble = f"it answers {error.code} to {path.split('?')[0]}"
            except ssl.SSLError as error:
                trouble = str(error.reason or "TLS")
            except (URLError, OSError, HTTPException) as error:
                trouble = str(getattr(error, "reason", "") or type(error).__name__)
            except ValueError:
                raise self._strange() from None
            else:
                if not isinstance(found, dict):
                    raise self._strange()
                return found
        advice = "nothing was lost: check that it runs and can be reached, and run again"
        raise MachineError(f"{self} cannot be used: {trouble}", advice)

    def _strange(self) -> MachineError:
        return MachineError(f"{self} answers with something that is no schema", "check registry=")


class _Stays(HTTPRedirectHandler):
    """Follows no redirection: the request holds credentials for one address."""

    def redirect_request(self, *_: Any) -> None:
        """Nothing, so that the answer is an error."""


def _opener(properties: Mapping[str, str]) -> OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"))
        if "ssl.certificate.location" in properties:
            key, password = properties.get("ssl.key.location"), properties.get("ssl.key.password")
            context.load_cert_chain(properties["ssl.certificate.location"], key, password or "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        problem = f"the certificates of the schema registry cannot be used: {reason}"
        raise PipelineError(problem, "correct them") from None
    return build_opener(_Stays(), HTTPSHandler(context=context))


def _references(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return found.get("references") or ()


def _said(error: HTTPError) -> tuple[int, str]:
    """The code of an error of the registry, and its message; 0 if it has none."""
    try:
        found = json.load(error)
        return int(found["error_code"]), str(found.get("message", ""))
    except (ValueError, KeyError, TypeError, OSError):
        return 0, str(error.reason)
