"""The transcripts of `tests/transcripts`."""

from pathlib import Path

from millrace.testing.transcript import read_documents

FOLDER = Path(__file__).parents[1] / "transcripts"
DOCUMENTS = [document for path in sorted(FOLDER.glob("*.yaml")) for document in read_documents(path)]
