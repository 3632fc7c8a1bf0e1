"""Online learning on every backend: the same prompts, draws, answers and steps, and torch's numbers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
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


@pytest.mark.full
@pytest.mark.parametrize("backend", LAYOUTS)
def test_every_layout_draws_the_same_answers_and_learns_the_same_from_them(
    tied: Path, rewards: Path, alone: Trained, tmp_path: Path, backend: str
) -> None:
    processes, plan = LAYOUTS[backend]
    (answers,) = on_processes(processes, partial(trained, tied, tmp_path, rewards, plan))
    run = succeeded(answers)[0]
    assert tokens(run) == tokens(alone)
    assert run.losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
    assert run.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)
    for name in ("reward", "kl", "ratio", "completion_length"):
        ours, theirs = ([line[name] for line in each.lines.values() if name in line] for each in (run, alone))
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-7), name
    assert run.lines[6]["eval_reward"] == pytest.approx(alone.lines[6]["eval_reward"])
