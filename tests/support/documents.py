"""The transcripts of `tests/transcripts`."""

from pathlib import Path

from millrace.testing.stage_steps import has_stages
from millrace.testing.transcript import read_documents

FOLDER = Path(__file__).parents[1] / "transcripts"
_ALL = [document for path in sorted(FOLDER.glob("*.yaml")) for document in read_documents(path)]
DOCUMENTS = [document for document in _ALL if not has_stages(document)]
"""Those of one query."""
STAGES = [document for document in _ALL if has_stages(document)]
"""Those of a graph of stages."""
