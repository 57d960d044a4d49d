"""JSON objects in files with a checksum, so that a damaged file is never read as a whole one."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

_CHECKSUM = "checksum"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a checksum of all of it, which replaces an earlier one."""
    rest = {name: value for name, value in content.items() if name != _CHECKSUM}
    return {**rest, _CHECKSUM: _sum(rest)}


def unsealed(text: str | bytes) -> dict[str, Any]:
    """The content of a JSON object, without its checksum. Earlier releases wrote none: such an object is accepted.

    Raises ValueError if the text is not an object, or not the one whose checksum it holds.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    expected = content.pop(_CHECKSUM, None)
    if expected is not None and expected != _sum(content):
        raise ValueError("its checksum is wrong")
    return content


def _sum(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
