"""The pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a page that are in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
