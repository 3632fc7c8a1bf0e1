"""What the README, the documentation and the examples show can be followed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import import_rules
import pytest
import yaml

ROOT = import_rules.ROOT
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "benchmarks", "packages") for page in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    files = [target.partition("#")[0] for target in targets if "://" not in target]
    assert [target for target in files if not (page.parent / target).exists()] == []


def test_make_targets_that_pages_mention_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = {
        name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert mentioned
    assert mentioned <= targets


def test_the_example_configuration_is_valid() -> None:
    command = [sys.executable, "-m", "swift", "config", "validate", "examples/sft.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_slurm_job_is_a_script_that_runs_the_example() -> None:
    script = ROOT / "examples/slurm/train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "srun swift sft examples/sft.yaml" in script.read_text()


def test_the_kubernetes_job_runs_the_example_with_one_process_per_gpu() -> None:
    job = yaml.safe_load((ROOT / "examples/kubernetes/pytorchjob.yaml").read_text())
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        *words, processes = container["command"]
        assert words == ["swift", "sft", "sft.yaml", "--nproc"]
        assert int(processes) == container["resources"]["limits"]["nvidia.com/gpu"]
