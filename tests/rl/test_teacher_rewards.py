"""A teacher as a reward for each token that the policy samples: against plain models, and beside other rewards."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import on_processes, succeeded
from tiny_runs import Trained, run_training, write_model
from transformers import AutoModelForCausalLM

from swift.errors import ConfigError
from swift_rl.options import GrpoOptions
from swift_rl.rounds.data import Round
from swift_rl.rounds.files import read_round

ROWS = [{"messages": [{"role": "user", "content": f"Say {word}."}]} for word in "abcdefgh"]
COEF = 0.5


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "teacher", seed=5, initializer_range=0.2)


def learned(student: Path, out: Path, teacher: Path | None, **changes: Any) -> Trained:
    settings = {
        "objective.name": "grpo", "objective.num_generations": 4, "objective.max_completion_length": 6,
        "train.global_batch": 8, "train.max_steps": 1, "optim.eps": 1e-6,
        **({} if teacher is None else {"objective.teacher_model": str(teacher), "objective.teacher_kl_coef": COEF}),
    }  # fmt: skip
    return run_training(student, out, ROWS, {**settings, **changes})


def first_round(run: Trained) -> Round:
    made = read_round(run.folder / "rollouts", 0)
    assert made is not None
    return made


def by_hand(student: Path, teacher: Path, made: Round) -> tuple[float, float, float]:
    """Loss, gradient norm and mean log-ratio: the policy gradient of A = c (log p_teacher - log p_student)."""
    ours, theirs = (AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (student, teacher))
    loss, apart, count = torch.zeros(()), 0.0, 0
    for completion in made.completions:
        prompt = made.prompts[completion.prompt].token_ids.tolist()
        ids = torch.tensor([prompt + completion.token_ids.tolist()])
        sampled = ids[0, len(prompt) :, None]

        def logps(model: Any, ids: torch.Tensor = ids, sampled: torch.Tensor = sampled) -> torch.Tensor:
            said: torch.Tensor = model(ids).logits[0, -len(sampled) - 1 : -1].log_softmax(-1).gather(-1, sampled)[:, 0]
            return said

        mine = logps(ours)
        with torch.no_grad():
            likelier = logps(theirs) - mine
        loss = loss - (COEF * likelier * (mine - mine.detach()).exp()).sum()
        apart -= float(likelier.sum())
        count += len(sampled)
    (loss / count).backward()
    squares = [parameter.grad.square().sum() for parameter in ours.parameters() if parameter.grad is not None]
    return float(loss.detach() / count), float(torch.stack(squares).sum().sqrt()), apart / count


def test_teacher_only_step_is_policy_gradient_of_log_ratio(tied: Path, teacher: Path, tmp_path: Path) -> None:
    """A step with a teacher alone is the policy gradient of its log ratio."""
    run = learned(tied, tmp_path, teacher)
    loss, norm, apart = by_hand(tied, teacher, first_round(run))
    assert run.losses == pytest.approx([loss], rel=1e-5)
    assert run.grad_norms == pytest.approx([norm], rel=1e-4)
    assert run.lines[1]["teacher_kl"] == pytest.approx(apart, rel=1e-5)
    assert abs(loss) > 0.1


def test_teacher_term_is_added_to_advantages(tied: Path, teacher: Path, tmp_path: Path) -> None:
    rewards = {"objective.reward_funcs": ["regex"], "objective.reward_options": {"regex": {"pattern": ".*[a-z].*"}}}
    alone = first_round(learned(tied, tmp_path / "alone", None, **rewards))
    both = first_round(learned(tied, tmp_path / "both", teacher, **rewards))
    assert any(np.any(completion.advantages) for completion in alone.completions)
    for rewarded, taught in zip(alone.completions, both.completions, strict=True):
        assert rewarded.token_ids.tolist() == taught.token_ids.tolist()
        assert taught.old_logps is not None
        added = COEF * (taught.teacher_logps - taught.old_logps)
        np.testing.assert_allclose(taught.advantages, rewarded.advantages + added, atol=1e-6)


def test_teachers_that_would_not_be_heard_are_refused(tied: Path, teacher: Path, tmp_path: Path) -> None:
    named = {"teacher_model": "teacher"}
    for options, message in (
        ({"teacher_kl_coef": 0.5}, "teacher_kl_coef needs a teacher"),
        ({"teacher_device": "cpu"}, "teacher_device needs a teacher"),
        ({**named, "teacher_kl_coef": 0.0}, "leave the teacher out"),
        ({**named, "temperature": 0.7}, "a teacher needs temperature 1, not 0.7"),
        ({**named, "dynamic_sample": True}, "dynamic_sample needs rewards"),
        ({**named, "beta": 0.1, "kl_in_reward": True}, "kl_in_reward needs rewards"),
    ):
        with pytest.raises(ValueError, match=message):
            GrpoOptions(**options)
    for given, said in (
        ({**named, "teacher_dtype": "bfloat16"}, "teacher_dtype has no effect with teacher_as_role"),
        ({"teacher_model_server": "http://a"}, "teacher_as_role cannot be combined with teacher_model_server"),
    ):
        with pytest.raises(ConfigError, match=said):
            GrpoOptions(teacher_as_role=True, **given).check_teacher()
    with pytest.raises(ConfigError, match="cannot be combined with teacher_model_server"):
        learned(tied, tmp_path, None, **{
            "objective.teacher_model_server": "http://127.0.0.1:1", "objective.teacher_adapters": "adapter"
        })  # fmt: skip


def test_local_teacher_matches_engine_teacher(tied: Path, teacher: Path, tmp_path: Path) -> None:
    asked = learned(tied, tmp_path / "engine", teacher)
    held = learned(tied, tmp_path / "role", teacher, **{"objective.teacher_as_role": True})
    assert held.losses == pytest.approx(asked.losses, rel=1e-5)
    assert held.grad_norms == pytest.approx(asked.grad_norms, rel=1e-5)


@pytest.mark.full
def test_ranks_sharing_completions_learn_same(tied: Path, teacher: Path, tmp_path: Path) -> None:
    several = {"objective.steps_per_generation": 2, "train.max_steps": 4, "train.micro_batch": 2}
    alone = learned(tied, tmp_path / "alone", teacher, **several)
    sharded, role = {"backend.name": "fsdp"}, {"objective.teacher_as_role": True}
    jobs = [
        partial(learned, tied, tmp_path / "asked", teacher, **several, **sharded),
        partial(learned, tied, tmp_path / "held", teacher, **several, **sharded, **role),
    ]
    for completions in on_processes(2, *jobs):
        run = succeeded(completions)[0]
        assert run.losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
        assert run.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)
