"""What the README, the documentation and the examples show can be followed."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def stand_in(folder: Path, name: str, text: str) -> Path:
    """Write a program that stands for another."""
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)
    return folder / name


def shards_of(script: str, variable: str, indices: range, folder: Path) -> list[str]:
    """What `--shard` says when a script runs with each of these indices, with a stand-in for swift."""
    stand_in(folder, "swift", 'echo "${@: -1}"')
    environments = [{"PATH": f"{folder}:{os.environ['PATH']}", variable: str(index)} for index in indices]
    return [subprocess.check_output(["bash", "-ec", script], env=each, text=True).strip() for each in environments]


def test_the_jobs_that_tokenise_build_every_shard_once(tmp_path: Path) -> None:
    every = [f"{number}/8" for number in range(1, 9)]
    script = (ROOT / "examples/slurm/tokenise.sbatch").read_text()
    assert "#SBATCH --array=1-8\n" in script
    assert shards_of(script, "SLURM_ARRAY_TASK_ID", range(1, 9), tmp_path) == every
    job = yaml.safe_load((ROOT / "examples/kubernetes/tokenise.yaml").read_text())["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", 8)
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["bash", "-c"]
    assert shards_of(container["args"][0], "JOB_COMPLETION_INDEX", range(8), tmp_path) == every


STAND_IN = """
echo "$1 gpus=$CUDA_VISIBLE_DEVICES $*" >> "$SAID"
if [ "$1" = rollout ]; then
    trap 'echo "server ended" >> "$SAID"; exit 0' TERM
    sleep 0.2
    touch "$(dirname "$SAID")/up-$4"
    while true; do sleep 0.05; done
fi
"""
"""Of swift: a server answers a little later, and stays until it is told to go; a trainer ends at once."""
CURL = """
address="${@: -1}"
port="${address##*:}"
test -e "$(dirname "$SAID")/up-${port%/health}"
"""


def test_slurm_rl_job_trains_beside_servers(tmp_path: Path) -> None:
    """The Slurm job of online learning trains next to its servers."""
    for name, text in (("swift", STAND_IN), ("curl", CURL), ("sleep", 'exec /bin/sleep "0.05"')):
        stand_in(tmp_path, name, text)
    said = tmp_path / "said.txt"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SAID": str(said), "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
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


def test_sky_starts_one_launcher_per_machine(tmp_path: Path) -> None:
    """SkyPilot starts one launcher on each machine that all meet at the first."""
    task = yaml.safe_load((ROOT / "examples" / "sky.yaml").read_text())
    stand_in(tmp_path, "torchrun", 'echo "$@" > "$SAID"')
    script = task["run"].replace("cd /data", "true")
    for rank in (0, 1):
        variables = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SAID": str(tmp_path / "said"),
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "8",
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        }
        subprocess.run(["bash", "-ec", script], env=variables, check=True)
        assert (tmp_path / "said").read_text().split() == [
            *["--nnodes", "2", "--nproc-per-node", "8", "--node-rank", str(rank)],
            *["--master-addr", "10.0.0.1", "--master-port", "29500", "-m", "swift", "sft", "sft.yaml"],
            *["--logging.run_name", "swift-sft", "--resume_from_checkpoint", "auto"],
        ]


def test_train_job_uses_torchrun_and_resumes() -> None:
    """The train job starts swift by torchrun and goes on where it was."""
    job = yaml.safe_load((ROOT / "examples" / "kubernetes" / "trainjob.yaml").read_text())
    trainer = job["spec"]["trainer"]
    assert trainer["command"] == ["torchrun"]
    assert trainer["args"][:4] == ["-m", "swift", "sft", "sft.yaml"]
    assert trainer["args"][-2:] == ["--resume_from_checkpoint", "auto"]
    assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]


def test_ray_worker_trains_with_rank_from_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of Ray trains as the process that Ray says it is."""
    ranks = {"world_rank": 3, "world_size": 4, "local_rank": 1, "local_world_size": 2, "node_rank": 1}
    context = SimpleNamespace(**{f"get_{name}": lambda rank=rank: rank for name, rank in ranks.items()})
    train: Any = ModuleType("ray.train")
    train.get_context = lambda: context
    train.FailureConfig = train.RunConfig = train.ScalingConfig = None
    torch: Any = ModuleType("ray.train.torch")
    torch.TorchConfig = torch.TorchTrainer = None
    ray: Any = ModuleType("ray")
    ray.train = train
    for module in (ray, train, torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "4000")
    python = stand_in(tmp_path, "python", '{ echo "$@"; env; } > "$SAID"\n[ "$4" != fail ]')
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setattr(sys, "executable", str(python))
    example = runpy.run_path(str(ROOT / "examples" / "ray_train.py"))

    example["work"]({"words": ["sft", "sft.yaml"]})
    first, *variables = (tmp_path / "said").read_text().splitlines()
    assert first == "-m swift sft sft.yaml"
    assert {
        *("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1"),
        *("MASTER_ADDR=10.0.0.1", "MASTER_PORT=4001"),
    } <= {*variables}
    with pytest.raises(RuntimeError, match="swift ended with 1 on worker 3"):
        example["work"]({"words": ["sft", "fail"]})
