"""What the README, the documentation and the examples show can be followed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import import_rules
import pytest
import yaml

ROOT = import_rules.ROOT
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "benchmarks", "packages") for page in (ROOT / folder).rglob("*.md")),
]


def test_make_targets_that_pages_mention_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = {
        name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert mentioned
    assert mentioned <= targets


@pytest.mark.parametrize("name", ["sft", "dpo", "pt", "grpo"])
def test_example_configuration_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from swift.cli.main import run

    monkeypatch.chdir(ROOT)
    assert run(["config", "validate", f"examples/{name}.yaml"]) == 0


def test_the_slurm_job_is_a_script_that_runs_the_example() -> None:
    script = ROOT / "examples/slurm/train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "srun swift sft examples/sft.yaml" in script.read_text()


def test_kubernetes_job_runs_one_process_per_gpu() -> None:
    """The Kubernetes job runs the example with one process per GPU."""
    job = yaml.safe_load((ROOT / "examples/kubernetes/pytorchjob.yaml").read_text())
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        *words, processes = container["command"]
        assert words == ["swift", "sft", "sft.yaml", "--nproc"]
        assert int(processes) == container["resources"]["limits"]["nvidia.com/gpu"]


def _shards_asked_for(script: str, variable: str, indices: range, folder: Path) -> list[str]:
    """What `--shard` says when a script runs with each of these indices, with a stand-in for swift."""
    stand_in = folder / "swift"
    stand_in.write_text('#!/bin/bash\necho "${@: -1}"\n')
    stand_in.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return [
        subprocess.run(
            ["bash", "-c", script],
            env={"PATH": path, variable: str(index)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for index in indices
    ]


def test_the_jobs_that_tokenise_build_every_shard_once(tmp_path: Path) -> None:
    every = [f"{number}/8" for number in range(1, 9)]
    script = (ROOT / "examples/slurm/tokenise.sbatch").read_text()
    assert "#SBATCH --array=1-8\n" in script
    assert _shards_asked_for(script, "SLURM_ARRAY_TASK_ID", range(1, 9), tmp_path) == every
    job = yaml.safe_load((ROOT / "examples/kubernetes/tokenise.yaml").read_text())["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", 8)
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["bash", "-c"]
    assert _shards_asked_for(container["args"][0], "JOB_COMPLETION_INDEX", range(8), tmp_path) == every


STAND_IN = """#!/bin/bash
echo "$1 gpus=$CUDA_VISIBLE_DEVICES $*" >> "$SAID"
if [ "$1" = rollout ]; then
    trap 'echo "server ended" >> "$SAID"; exit 0' TERM
    sleep 0.2
    touch "$(dirname "$SAID")/up-$4"
    while true; do sleep 0.05; done
fi
"""
"""Of swift: a server answers a little later, and stays until it is told to go; a trainer ends at once."""
CURL = """#!/bin/bash
address="${@: -1}"
port="${address##*:}"
test -e "$(dirname "$SAID")/up-${port%/health}"
"""


def test_slurm_rl_job_trains_beside_servers(tmp_path: Path) -> None:
    """The Slurm job of online learning trains next to its servers."""
    for name, text in (("swift", STAND_IN), ("curl", CURL), ("sleep", '#!/bin/bash\nexec /bin/sleep "0.05"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    said = tmp_path / "said.txt"
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SAID": str(said),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(8))),
    }
    script = ROOT / "examples/slurm/grpo.sbatch"
    subprocess.run(["bash", str(script)], env=environment, check=True, timeout=60)
    *servers, trainer, first, second = said.read_text().splitlines()
    assert sorted(line.partition(" --runtime")[0] for line in servers) == [
        "rollout gpus=0 rollout qwen3-0.6b --port 8000",
        "rollout gpus=1 rollout qwen3-0.6b --port 8001",
    ]
    assert trainer.startswith("rlhf gpus=2,3,4,5,6,7 rlhf examples/grpo.yaml --model qwen3-0.6b --rollout_engine ")
    assert "http://127.0.0.1:8000,http://127.0.0.1:8001 " in trainer
    assert trainer.endswith("--nproc 6")
    assert (first, second) == ("server ended", "server ended")


def test_kubernetes_rl_job_has_trainer_and_servers_in_one_pod() -> None:
    """The Kubernetes job of online learning has trainer and servers in one pod."""
    job = yaml.safe_load((ROOT / "examples/kubernetes/grpo.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (trainer,) = pod["containers"]
    words = trainer["command"]
    named = words[words.index("--rollout_engine") + 1].split(",")
    for server, address in zip(pod["initContainers"], named, strict=True):
        port = server["command"][server["command"].index("--port") + 1]
        assert address == f"http://127.0.0.1:{port}"
        assert server["startupProbe"]["exec"]["command"][-1] == f"{address}/health"
        assert server["restartPolicy"] == "Always"
        assert server["volumeMounts"] == trainer["volumeMounts"]
    assert len({server["name"] for server in pod["initContainers"]}) == len(named)
    assert int(words[words.index("--nproc") + 1]) == trainer["resources"]["limits"]["nvidia.com/gpu"]
