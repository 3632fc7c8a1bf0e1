"""Every run swaps its optimizer's state into a folder of its own, whoever else writes into the same output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from tiny_runs import BASE, conversations, write_jsonl, write_model

from swift.parsing import config_from_mapping
from swift.train.prepare import open_job

pytestmark = pytest.mark.full

ROWS = conversations(8)
WIDE = {"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64, "num_hidden_layers": 2}


def settings(model: Path, here: Path) -> dict[str, Any]:
    zero = {
        "stage": 3,
        "sub_group_size": 600_000,
        "offload_optimizer": {"device": "nvme", "nvme_path": str(here / "disk")},
    }
    changes = {"backend.name": "deepspeed", "backend.config": {"zero_optimization": zero}, "train.max_steps": 2}
    unnamed = {key: value for key, value in BASE.items() if key != "logging.run_name"}
    return {**unnamed, **changes, "model.path": str(model), "logging.output": str(here / "out")}


def swapped(here: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (here / "disk").rglob("*") if path.is_file()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return write_model(tmp_path / "wide", **WIDE)


def test_run_keeps_swap_folder_of_another_run(model: Path, tmp_path: Path) -> None:
    """The second starts, trains and ends while the first stands between two of its steps."""
    wanted = settings(model, tmp_path)

    def first() -> tuple[bool, int, bool]:
        with open_job(config_from_mapping(wanted), rows=ROWS) as job:
            for step in (0, 1):
                batch, objective = job.ready(job.batch_schedule.batch(step, 0, 1))
                job.hooks.swift_train_step(job.run, job.state, batch, objective)
                if step == 0:
                    before = swapped(tmp_path)
                    code = second(wanted, tmp_path)
                    same = swapped(tmp_path) == before
        return bool(before), code, same

    (answers,) = on_processes(1, first, fresh=True)
    [(there, code, same)] = succeeded(answers)
    assert there
    assert code == 0
    assert same
    assert list((tmp_path / "disk").iterdir()) == []


def second(wanted: dict[str, Any], here: Path) -> int:
    """The same command in a process of its own."""
    data, file = here / "data.jsonl", here / "run.yaml"
    write_jsonl(data, ROWS)
    file.write_text(json.dumps({**wanted, "data.train": [str(data)]}))
    group = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    environment = {key: value for key, value in os.environ.items() if key not in group}
    command = [sys.executable, "-m", "swift", "sft", "--config", str(file)]
    return subprocess.run(command, env=environment, check=False).returncode
