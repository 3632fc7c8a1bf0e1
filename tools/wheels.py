"""Build the wheels of all packages into a folder: `make wheels`. The release check also builds their sources.

Needs no network: the build back end is that of this environment, with a pinned version.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(destination: Path) -> None:
    for package in sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml")):
        build(package, destination)
    for wheel in sorted(destination.glob("*.whl")):
        print(wheel)


def build(package: Path, destination: Path, kind: str = "wheel") -> None:
    """Build a package's 'wheel', or its sources ('sdist')."""
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        kind,
        "--directory",
        str(destination.resolve()),
    ]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"wheels: {package.name} could not be built.\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
