"""Check the files of a release: `make release-check`. Needs no network.

Builds wheels and sources of every package, checks their metadata, licences and files, installs each into an environment
with only its declared dependencies, as `pip install swift-core[EXTRA]` would, and runs its smallest command there. Also
builds the documentation. Writes build/release/report.md and, if nothing is wrong, prints the commands of the release.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import lone_environment
import site_check
import wheels
from packaging.requirements import Requirement

from swift.installation import ON_INDEX
from swift.plugins.known import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
CHANGES = ROOT / "CHANGELOG.md"
WORK = ROOT / "build" / "release"
DIST = WORK / "dist"
FIELDS = ("Name", "Version", "Summary", "License-Expression", "License-File", "Requires-Python", "Author", "Keywords")
GENERATED = re.compile(r"(^|/)(PKG-INFO|\.gitignore|hatch_build\.py)$")
"""What only building needs, or leaves."""
JOBS: dict[str, tuple[str, ...]] = {
    "demo": ("demo --out {work}/demo",),
    "": ("sft {small}", "--help"),
    "objectives": ("rlhf {pairs} --rlhf_type orpo",),
    "infer": ("infer {run} --prompt Hello --max_new_tokens 2",),
    "trackers": ("sft {small} --report_to report",),
    "testing": ("plugins --try torch --nproc 2",),
    "fsdp": ("sft {small} --backend fsdp",),
    "deepspeed": ("sft {small} --backend deepspeed",),
    "megatron": ("sft {small} --backend megatron",),
    "rl": ("rlhf {small} --rlhf_type grpo --reward_funcs format --num_generations 2 --max_completion_length 8",),
    "tuning": ("sft {small} --optim lion",),
    "migrate": (
        "config import trl sft --model_name_or_path {model} --dataset_name rows",
        "convert {model} --out {work}/in",
    ),
    "plan": ("plan {model} --gpus 8xH100 --backend torch",),
    "ui": ("watch {work}/demo/runs --once true", "ui --help"),
    "vllm": ("export {run} --to vllm --out {work}/for-vllm",),
    "sglang": ("export {run} --to sglang --out {work}/for-sglang",),
    "lmdeploy": ("export {run} --to lmdeploy --out {work}/for-lmdeploy",),
    "gguf": ("export {run} --to gguf --out {work}/for-llama-cpp",),
}
"""Extra of swift-core → what is typed in its environment; `demo` comes first: it leaves what the others need."""
_STEP = "--model {model} --max_steps 1 --max_length 64 --per_device_train_batch_size 2 --report_to none "
_STEP += "--output_dir {work}/runs --dataset {work}/"
SMALL, PAIRS = _STEP + "demo/train.jsonl", _STEP + "pairs.jsonl"
PAIR = {"prompt": "Say yes", "chosen": "yes", "rejected": "no"}


class Wrong(Exception):
    """What keeps a package from being published."""


class ReleaseReport:
    """Lines about what was checked, shown as they come and kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.wrong = 0

    def check(self, what: str, how: Callable[[], str]) -> None:
        """Run one check and note how it went."""
        began = time.monotonic()
        try:
            result = how()
            mark = "ok"
        except (Wrong, subprocess.CalledProcessError, SystemExit, ValueError) as problem:
            result, mark = str(problem), "WRONG"
            self.wrong += 1
        line = f"| {what} | {mark} | {result} | {time.monotonic() - began:.0f} s |"
        self.lines.append(line)
        print(line, flush=True)


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    DIST.mkdir(parents=True)
    (WORK / "pairs.jsonl").write_text((json.dumps(PAIR) + "\n") * 4)
    report = ReleaseReport()
    packages = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
    report.check("changelog", changelog)
    for package in packages:
        report.check(f"{package.name}: files", lambda package=package: built(package))  # type: ignore[misc]
    for extra, commands in JOBS.items():
        named = f"swift-core[{extra}]" if extra else "swift-core"
        report.check(f"pip install {named}", lambda extra=extra, c=commands: installed(extra, c))  # type: ignore[misc]
    report.check("documentation", lambda: site_check.build(WORK / "site"))
    head = "# Release check\n\n| what | | found | |\n|---|---|---|---|\n"
    (WORK / "report.md").write_text(head + "\n".join(report.lines) + "\n")
    print(f"release check: {'in order' if not report.wrong else f'{report.wrong} wrong'}, see {WORK / 'report.md'}")
    if not report.wrong:
        print("\n".join(["To release, type:", *release_commands(version_of_core())]))
    return 1 if report.wrong else 0


def version_of_core() -> str:
    project = tomllib.loads((ROOT / "packages/core/pyproject.toml").read_text())["project"]
    return str(project["version"])


def release_commands(version: str) -> list[str]:
    """Return what to type next: to prepare the commit of a release, or to publish what was checked."""
    commands = []
    if not ON_INDEX:
        commands.append("sed -i 's/^ON_INDEX = False/ON_INDEX = True/' packages/core/src/swift/installation.py")
    if f"## [{version}] - unreleased" in CHANGES.read_text():
        commands.append(f'sed -i "s/^## .{version}. - unreleased/## [{version}] - $(date +%F)/" CHANGELOG.md')
    if commands:
        return [
            *commands,
            "python tests/upgrade/make_runs.py",
            f"git add --all && git commit -m 'release: {version}'",
            "make release-check",
        ]
    return [
        f"git tag -a v{version} -m 'swift {version}'",
        f"git push origin HEAD v{version}",
        f"uv publish {DIST.relative_to(ROOT)}/*",
    ]


def changelog() -> str:
    """Check that the version to be published has a section of its own."""
    version = version_of_core()
    text = CHANGES.read_text()
    if f"## [{version}]" not in text:
        raise Wrong(f"CHANGELOG.md has no section '## [{version}]'")
    return f"section {version}"


def built(package: Path) -> str:
    """Build a wheel and the sources of a package, and compare them with each other and with the folder."""
    wheels.build(package, DIST)
    wheels.build(package, DIST, "sdist")
    name = tomllib.loads((package / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
    (wheel,), (sources,) = DIST.glob(f"{name}-*.whl"), DIST.glob(f"{name}-*.tar.gz")
    declared = metadata_of(wheel)
    missing = [field for field in FIELDS if not declared.get(field)]
    if missing:
        raise Wrong(f"its metadata has no {', '.join(missing)}")
    if not str(declared.get_payload()).strip():
        raise Wrong("its page would be empty: README.md is not in its metadata")
    inside = {each for each in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in each}
    if not any(each.endswith("/py.typed") for each in inside):
        raise Wrong("its types are not declared: py.typed is missing")
    with tarfile.open(sources) as archive:
        packed = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    there = {f"src/{each}" for each in inside} | {"LICENSE", "README.md", "pyproject.toml"}
    if lost := sorted(there - packed):
        raise Wrong(f"its sources lack {lost[0]}")
    if extra := sorted(each for each in packed - there if not GENERATED.search(each)):
        raise Wrong(f"its sources hold {extra[0]}, which its wheel does not")
    if any("://" in str(requirement) for requirement in declared.get_all("Requires-Dist") or ()):
        raise Wrong("it requires something by an address")
    sizes = [f"{each.stat().st_size / 1000:.0f} kB" for each in (wheel, sources)]
    return f"{len(inside)} files, wheel {sizes[0]}, sources {sizes[1]}"


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(file).decode())


def installed(extra: str, commands: tuple[str, ...]) -> str:
    """Install swift-core with one extra from the built files, and do the smallest job of what it brings."""
    extras = [extra] if extra else []
    needed = sorted(PACKAGES.intersection(lone_environment.declared("swift-core", extras)))
    names = [each.replace("-", "_") for each in needed]
    files = [wheel for name in names for wheel in DIST.glob(f"{name}-*.whl")]
    if len(files) != len(names):
        raise Wrong(f"there is no wheel for each of {', '.join(names)}")
    # vLLM for GPUs is not here: its plugin exports without it.
    environment = lone_environment.lone_environment(files, WORK / f"with-{extra or 'core'}", extras)
    for wheel in files:
        for lacking in lacks(wheel, environment):
            raise Wrong(f"{wheel.name} requires {lacking}, which its environment does not have")
    paths = {"work": str(WORK), "model": str(WORK / "demo/model"), "run": str(next(_runs(), WORK))}
    for command in commands:
        typed = command.format(small=SMALL, pairs=PAIRS, **{name: f"{{{name}}}" for name in paths})
        argv = typed.format(**paths).split()
        done = subprocess.run(
            [environment / "bin/swift", *argv], capture_output=True, text=True, cwd=WORK, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise Wrong(f"`swift {' '.join(argv)}` ended with {done.returncode}: {' '.join(last)}")
    return "; ".join(f"`swift {command.split()[0]}`" for command in commands)


def _runs() -> Iterator[Path]:
    """Yield the runs of the demo, the newest first."""
    yield from sorted((each.parent for each in WORK.glob("demo/runs/*/*/args.json")), reverse=True)


def lacks(wheel: Path, environment: Path) -> Iterator[str]:
    """Yield what a wheel requires and its environment does not have in such a version."""
    (packages,) = environment.glob("lib/python*/site-packages")
    there = {each.name.lower().replace("_", "-"): each.version for each in metadata.distributions(path=[str(packages)])}
    for requirement in map(Requirement, metadata_of(wheel).get_all("Requires-Dist") or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = there.get(requirement.name.lower().replace("_", "-"))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement} (there is {version})"


if __name__ == "__main__":
    sys.exit(main())
