"""The version of a user's functions."""

from millrace.model.errors import refuse


def check_version(version: str | None) -> str | None:
    """Check a version: text that the user changes when the functions give other results."""
    if version is not None and not isinstance(version, str):
        raise refuse(f"version= must be a string such as '2', not {version!r}")
    return version
