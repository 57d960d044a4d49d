"""How the values of records are encoded, and the schema registry that holds their schemas."""

import re
from collections.abc import Iterable, Mapping

from millrace.model.errors import refuse, refuse_unknown

JSON, AVRO, JSON_SCHEMA, PROTOBUF = "json", "avro", "json-schema", "protobuf"
FORMATS = (JSON, AVRO, JSON_SCHEMA, PROTOBUF)
"""The formats of values. All but plain JSON begin with the id of a schema in a registry."""
FORMAT, REGISTRY, READER = "format", "registry", "reader"
"""Options of a source: the format, the addresses of the registry, and the version of a subject that reads."""
PREFIX = "schema.registry."
"""Properties of the registry's client begin so, among those of Kafka's."""
PROPERTIES = (
    "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.key.password",
)  # fmt: skip
"""Properties of the registry's client, as Confluent's clients name them."""
_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")
_VERSION = re.compile(r"(?P<subject>.+):(?P<version>[1-9]\d*)")


def encoding(format: str, registry: str | None, reader: str | None = None) -> tuple[tuple[str, str], ...]:
    """The options of a format: none for plain JSON. Refuses a format without its registry."""
    if format not in FORMATS:
        raise refuse_unknown("format", format, FORMATS)
    if format == JSON:
        if registry is not None or reader is not None:
            given = "registry" if registry is not None else "reader"
            raise refuse(f"{given}= is for formats with a schema registry", advice='name one: format="avro"')
        return ()
    if registry is None:
        advice = 'name it: registry="http://localhost:8081"'
        raise refuse(f"format {format!r} needs a schema registry", advice=advice)
    if reader is not None and format != AVRO:
        raise refuse(f"reader= is for Avro, and the format is {format!r}", advice="leave it out")
    if reader is not None:
        version_of(reader)
    own = ((FORMAT, format), (REGISTRY, ",".join(addresses(registry))))
    return own if reader is None else (*own, (READER, reader))


def addresses(registry: str) -> tuple[str, ...]:
    """The URLs of a registry, without a slash at their ends; several are separated by commas."""
    example = "write it like http://localhost:8081"
    urls = registry.split(",") if isinstance(registry, str) else [""]
    for url in urls:
        if "@" in url:  # it may have a password, so it is not shown
            raise refuse("the URL of a schema registry has no user", advice=f"pass {PREFIX}basic.auth.user.info")
        if not _URL.fullmatch(url):
            raise refuse(f"{url!r} is no URL of a schema registry", advice=example)
    return tuple(url.rstrip("/") for url in urls)


def version_of(reader: str) -> tuple[str, int]:
    """The subject and the version of a reader's schema.

    >>> version_of("plays-value:3")
    ('plays-value', 3)
    """
    found = _VERSION.fullmatch(reader) if isinstance(reader, str) else None
    if found is None:
        raise refuse(f"reader= names a subject and a version, not {reader!r}", advice="write it like plays-value:3")
    return found["subject"], int(found["version"])


def check_properties(names: Iterable[str]) -> None:
    """Refuse properties of a registry that its client does not know."""
    for name in names:
        if name == f"{PREFIX}url":
            raise refuse(f"property {name!r} cannot be set", advice="pass registry=")
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in PROPERTIES:
            raise refuse_unknown("property of a schema registry", name, [f"{PREFIX}{each}" for each in PROPERTIES])


def divided(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Properties of Kafka's client, and those of the registry's without their prefix."""
    own = {name.removeprefix(PREFIX): value for name, value in properties.items() if name.startswith(PREFIX)}
    return {name: value for name, value in properties.items() if not name.startswith(PREFIX)}, own
