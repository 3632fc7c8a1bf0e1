"""A student with random weights comes to say what its teacher says; one of a teacher with other words does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import run_training, write_model
from transformers import AutoModelForCausalLM, AutoTokenizer

ROWS = [
    {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word[::-1]}]}
    for word in ("red", "tea", "sun")
] * 4
COMMON: dict[str, Any] = {
    "train.global_batch": 12, "train.micro_batch": 12, "optim.lr": 6e-3, "optim.schedule": "constant",
    "checkpoint.save_last": True,
}  # fmt: skip


def apart(teacher: Path, student: Path) -> float:
    """KL(teacher ‖ student) of the tokens of the data's completions, by plain models over the whole vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    models = [AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (teacher, student)]
    total, count = 0.0, 0
    for row in ROWS[:3]:
        start = len(tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"])
        ids = torch.tensor([tokenizer.apply_chat_template(row["messages"])["input_ids"]])
        with torch.no_grad():
            theirs, ours = (model(ids).logits[0, start - 1 : -2].log_softmax(-1) for model in models)
        total += float((theirs.exp() * (theirs - ours)).sum())
        count += len(ours)
    return total / count


def taught(folder: Path, teacher: Path, name: str, steps: int) -> Path:
    settings = {
        "objective.name": "gkd", "objective.teacher_model": str(teacher), "objective.lmbda": 0.5,
        "objective.gkd_logits_topk": 16, "objective.max_completion_length": 5, "train.max_steps": steps,
    }  # fmt: skip
    run = run_training(write_model(folder / name, seed=9), folder, ROWS, {**COMMON, **settings})
    assert run.summary.last_checkpoint is not None
    return run.summary.last_checkpoint


@pytest.mark.full
def test_student_approaches_only_its_teacher(tmp_path: Path) -> None:
    """A student comes within a tenth of a nat of its teacher and of no other."""
    settings = {**COMMON, "train.max_steps": 40, "logging.run_name": "teacher"}
    teacher = run_training(write_model(tmp_path / "teacher"), tmp_path, ROWS, settings).summary.last_checkpoint
    assert teacher is not None
    assert apart(teacher, write_model(tmp_path / "fresh", seed=9)) > 3
    assert apart(teacher, taught(tmp_path, teacher, "student", 64)) < 0.1
    model = AutoModelForCausalLM.from_pretrained(teacher)
    with torch.no_grad():  # which says each token instead of another
        order = torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(0))
        model.lm_head.weight.copy_(model.lm_head.weight[order])
    shuffled = tmp_path / "shuffled"
    model.save_pretrained(shuffled)
    AutoTokenizer.from_pretrained(teacher).save_pretrained(shuffled)
    assert apart(teacher, taught(tmp_path, shuffled, "control", 24)) > 3
