"""Files in brief: enough to notice that one is missing, without a list of them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Inventory:
    """The number of some files, their bytes, and a digest of their names and sizes.

    To add a file costs the same however many there are. The digest is a sum, so it does not depend on their order.
    """

    files: int = 0
    bytes: int = 0
    digest: int = 0

    @classmethod
    def of(cls, paths: Iterable[Path]) -> "Inventory":
        """The inventory of files that exist."""
        found = cls()
        for path in paths:
            found = found.adding(path.name, path.stat().st_size)
        return found

    def adding(self, name: str, size: int) -> "Inventory":
        """The inventory with one more file."""
        term = int.from_bytes(hashlib.sha256(f"{size} {name}".encode()).digest()[:8], "big")
        return Inventory(self.files + 1, self.bytes + size, (self.digest + term) % (1 << 64))

    def difference(self, found: "Inventory") -> str | None:
        """What is wrong with the files that were found, as the rest of a sentence; None if they are these."""
        if found == self:
            return None
        if found.files < self.files:
            return f"lacks {self.files - found.files} of the {self.files} files that were written to it"
        if found.bytes != self.bytes:
            return f"holds {found.bytes} bytes in place of the {self.bytes} that were written to it"
        return "holds other files than those that were written to it"
