"""Examples for schedulers: what they start on each machine, with stand-ins for the schedulers' own programs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import import_rules
import pytest
import yaml

EXAMPLES = import_rules.ROOT / "examples"
ECHO = '#!/bin/bash\necho "$@" > "$SAID"\n'


def test_sky_starts_one_launcher_per_machine(tmp_path: Path) -> None:
    """SkyPilot starts one launcher on each machine that all meet at the first."""
    task = yaml.safe_load((EXAMPLES / "sky.yaml").read_text())
    stand_in = tmp_path / "torchrun"
    stand_in.write_text(ECHO)
    stand_in.chmod(0o755)
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
    job = yaml.safe_load((EXAMPLES / "kubernetes" / "trainjob.yaml").read_text())
    trainer = job["spec"]["trainer"]
    assert trainer["command"] == ["torchrun"]
    assert trainer["args"][:4] == ["-m", "swift", "sft", "sft.yaml"]
    assert trainer["args"][-2:] == ["--resume_from_checkpoint", "auto"]
    assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]


def test_ray_worker_trains_with_rank_from_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of Ray trains as the process that Ray says it is."""
    context = SimpleNamespace(
        get_world_rank=lambda: 3,
        get_world_size=lambda: 4,
        get_local_rank=lambda: 1,
        get_local_world_size=lambda: 2,
        get_node_rank=lambda: 1,
    )
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
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/bash\n{ echo "$@"; env; } > "$SAID"\n[ "$4" != fail ]\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setattr(sys, "executable", str(stand_in))
    example = runpy.run_path(str(EXAMPLES / "ray_train.py"))

    example["work"]({"words": ["sft", "sft.yaml"]})
    first, *variables = (tmp_path / "said").read_text().splitlines()
    assert first == "-m swift sft sft.yaml"
    assert {
        *("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1"),
        *("MASTER_ADDR=10.0.0.1", "MASTER_PORT=4001"),
    } <= {*variables}
    with pytest.raises(RuntimeError, match="swift ended with 1 on worker 3"):
        example["work"]({"words": ["sft", "fail"]})
