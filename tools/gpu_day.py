"""Run everything that needs a GPU: `make gpu`. Builds wheels, runs the tests marked `gpu`, and measures.

Writes results after each test to `docs/reference/proven-where.json`, from which `make docs` writes the page, and to
`benchmarks/results/gpu.json`. Tests use tiny models, take at most ten minutes, and run in parallel. A second call with
the same device and libraries skips tests that have passed. `--dry` runs the same steps without a GPU, and writes to
`build/gpu`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "gpu"
TESTS = "tests/gpu/test_on_a_gpu.py"
LIMIT = 570
"""Seconds of a test."""
FOUND = ROOT / "docs" / "reference" / "proven-where.json"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="on the CPU, with tiny models: only that it runs")
    parser.add_argument("--only", choices=("wheels", "tests", "benchmarks"), action="append", help="some of the parts")
    parser.add_argument("--jobs", type=int, default=max(1, min(6, (os.cpu_count() or 1) // 2)), help="tests at a time")
    chosen = parser.parse_args(arguments)
    device = _device(dry=chosen.dry)
    if device is None:
        print("make gpu: this machine has no NVIDIA GPU. To see that it runs: make gpu DRY=1", file=sys.stderr)
        return 1
    parts: dict[str, Callable[..., int]] = {
        "wheels": _wheels,
        "tests": partial(_tests, jobs=chosen.jobs),
        "benchmarks": _measured,
    }
    WORK.mkdir(parents=True, exist_ok=True)
    worst = 0
    for name in chosen.only or parts:
        print(f"== {name}", flush=True)
        worst = max(worst, parts[name](device, dry=chosen.dry))
    return worst


def _wheels(_: str, *, dry: bool) -> int:
    del dry
    return _call([sys.executable, "tools/wheels.py", str(WORK / "wheels")])


def _tests(device: str, *, dry: bool, jobs: int) -> int:
    """Run the tests, each in a process of its own, and write down after each whether it passed."""
    known = runpy.run_path(str(ROOT / "tests" / "helpers" / "gpu_cases.py"))["everything"]()
    out = WORK / FOUND.name if dry else FOUND
    about: dict[str, object] = {"device": device, "versions": _versions()}
    found = _passed_before(out, about)
    left, worst = [name for name in known if name not in found], 0
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_tested, name, dry=dry): name for name in left}
        for done in as_completed(running):
            name, (code, outcome, printed) = running[done], done.result()
            print(f"{name}: {outcome}" + (f"\n{printed}" if outcome == "failed" else ""), flush=True)
            worst, found[name] = max(worst, code), outcome
            ordered = {each: found[each] for each in known if each in found}
            out.write_text(json.dumps({**about, "found": ordered}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return worst


def _tested(name: str, *, dry: bool) -> tuple[int, str, str]:
    """Return how a test ended: its process, in a word, and what it printed."""
    report = WORK / f"{re.sub('[^a-z0-9_]+', '-', name)}.xml"
    report.unlink(missing_ok=True)
    arguments = [f"{TESTS}::{name}", f"--timeout={LIMIT}", f"--junit-xml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env=_variables(dry=dry),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    outcome = "failed"
    if report.exists():  # a test that ends its process leaves none
        for case in ElementTree.parse(report).iter("testcase"):
            outcome = _outcome(case)
    return done.returncode, outcome, done.stdout


def _passed_before(out: Path, about: dict[str, object]) -> dict[str, str]:
    """Return the tests that have passed with the same device and libraries."""
    try:
        before = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if any(before.get(name) != value for name, value in about.items()):
        return {}
    return {name: outcome for name, outcome in before["found"].items() if outcome == "passed"}


def _outcome(case: ElementTree.Element) -> str:
    """Return 'passed', 'failed', or 'skipped: ' with the reason."""
    skipped = case.find("skipped")
    if skipped is not None:
        return f"skipped: {skipped.get('message', '')}"
    return "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"


def _measured(_: str, *, dry: bool) -> int:
    options = ["--device", "cpu", "--shape", "tiny", "--out", str(WORK)] if dry else []
    return _call([sys.executable, "-m", "benchmarks.gpu", *options])


def _call(command: list[str]) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _variables(*, dry: bool) -> dict[str, str]:
    return {**os.environ, **({"SWIFT_GPU_TESTS_ON": "cpu", "TRITON_INTERPRET": "1"} if dry else {})}


def _device(*, dry: bool) -> str | None:
    import torch

    if dry:
        return "CPU (dry run)"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "flash-attn", "liger-kernel", "torchao", "bitsandbytes", "vllm", "deepspeed")
    found = {}
    for name in (*names, "megatron-core", "transformer-engine"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
