"""Fetches the JavaScript libraries of the page from npm, and records their versions and hashes."""

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parents[1] / "src" / "millrace" / "server" / "page" / "vendor"
PACKAGES = {
    "uplot@1.6.32": {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css", "LICENSE": "uplot.LICENSE"},
    "@dagrejs/dagre@3.1.3": {"dist/dagre.esm.js": "dagre.js", "LICENSE": "dagre.LICENSE"},
}
"""The packages with their versions, and the name of each of their files that is kept."""


def main() -> None:
    """Write the files, and `vendor.json`, by which a test recognises them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    hashes: dict[str, dict[str, str]] = {}
    for package, files in PACKAGES.items():
        with TemporaryDirectory() as folder:
            packed = subprocess.run(
                ["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True
            )
            archive = Path(folder, packed.stdout.split()[-1]).read_bytes()
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for path, name in files.items():
                file = opened.extractfile(f"package/{path}")
                assert file is not None, f"{package} has no {path}"
                # Source maps are not kept, and browsers would ask for them.
                lines = [line for line in file.read().splitlines() if not line.startswith(b"//# sourceMappingURL")]
                content = b"\n".join(lines) + b"\n"
                (FOLDER / name).write_bytes(content)
                hashes.setdefault(package, {})[name] = hashlib.sha256(content).hexdigest()
    (FOLDER / "vendor.json").write_text(json.dumps(hashes, indent=1) + "\n")


if __name__ == "__main__":
    main()
