"""Small disks, on machines where a test may mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A new folder that is a disk of its own, of a size such as `300k`."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(disk: Path, option: str) -> None:
    """Change a disk: `ro` makes it read-only, `size=100m` larger."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)
