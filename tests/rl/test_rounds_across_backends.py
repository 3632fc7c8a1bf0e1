"""Online learning on every backend: the same prompts, samples, completions and steps, and torch's numbers.

A run that was killed on one process is resumed on each of them as well.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
from killed_runs import assert_killed
from processes import on_processes, succeeded
from tiny_runs import Trained, run_training

ROWS = [{"messages": [{"role": "user", "content": f"Say {word}."}]} for word in "abcdefghijkl"]
SETTINGS: dict[str, Any] = {
    "objective.name": "grpo",
    "objective.num_generations": 4,
    "objective.max_completion_length": 8,
    "objective.num_iterations": 2,
    "objective.beta": 0.1,
    "train.global_batch": 8,
    "train.micro_batch": 2,
    "train.max_steps": 6,
    "train.eval_steps": 6,
    "optim.eps": 1e-6,
    "tuner.kind": "lora",
    "tuner.rank": 4,
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "torch": (2, {}),
    "fsdp": (2, {"backend.name": "fsdp"}),
    "deepspeed": (2, {"backend.name": "deepspeed", "backend.config": "zero3"}),
    "megatron": (4, {"backend.name": "megatron", "parallel.tp": 2, "parallel.pp": 2}),
}


def trained(model: Path, out: Path, rewards: Path, changes: dict[str, Any]) -> Trained:
    settings = {**SETTINGS, "objective.reward_funcs": [f"{rewards}:evens"], **changes}
    return run_training(model, out, ROWS, settings, validation=ROWS[:3])


def tokens(run: Trained) -> list[list[int]]:
    """The prompts and the texts of every round, as its file tells them."""
    files = sorted((run.folder / "rollouts").glob("round-*.jsonl"))
    return [[line["text"] for line in map(json.loads, file.read_text().splitlines()[1:])] for file in files]


@pytest.fixture(scope="module")
def alone(tied: Path, rewards: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    run = partial(trained, tied, tmp_path_factory.mktemp("torch"), rewards, {"train.micro_batch": 8})
    return succeeded(on_processes(1, run)[0])[0]


@pytest.fixture(scope="module")
def interrupted(tied: Path, rewards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a torch run that was killed while the completions of its second round were scored."""
    folder = tmp_path_factory.mktemp("interrupted")
    assert_killed("scoring", lambda: trained(tied, folder, rewards, {"checkpoint.save_steps": 1}))
    return folder / tied.name / "run"


@pytest.mark.full
@pytest.mark.parametrize("backend", LAYOUTS)
def test_layouts_sample_and_learn_the_same(
    tied: Path, rewards: Path, alone: Trained, interrupted: Path, tmp_path: Path, backend: str
) -> None:
    """Every layout samples the same completions and learns the same from them."""
    processes, schedule = LAYOUTS[backend]
    killed = tmp_path / "killed"
    shutil.copytree(interrupted.parent.parent, killed)
    resume = {"checkpoint.resume": str(killed / tied.name / "run")}
    jobs = [
        partial(trained, tied, tmp_path, rewards, schedule),
        partial(trained, tied, killed, rewards, {**schedule, **resume}),
    ]
    completions, rest = (succeeded(each)[0] for each in on_processes(processes, *jobs))
    assert_same(completions, alone)
    # Before the first step the policy is its reference, and the one that answered, to the last bit.
    assert [completions.lines[1][name] for name in ("kl", "approx_kl", "ratio")] == [0, 0, 1]
    assert json.loads((interrupted / "logging.jsonl").read_text().splitlines()[-1])["step"] == 2
    assert_same(rest, alone, since=3)


def assert_same(run: Trained, alone: Trained, since: int = 1) -> None:
    """The same completions, and the same numbers of the steps from one on."""
    assert tokens(run) == tokens(alone)
    for name in ("loss", "grad_norm", "reward", "kl", "ratio", "completion_length"):
        ours, theirs = (
            [line[name] for step, line in each.lines.items() if name in line and step >= since] for each in (run, alone)
        )
        assert len(ours) >= 7 - since
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6 if name == "loss" else 1e-7), name
    assert run.lines[6]["eval_reward"] == pytest.approx(alone.lines[6]["eval_reward"])
