"""Rounds of online learning: what the steps learn from, and runs that end anywhere and are resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_runs import PHASES, assert_killed
from tiers import tiered
from tiny_runs import Trained, run_training
from transformers import AutoModelForCausalLM

from swift.errors import CheckpointError, ConfigError, SwiftError
from swift_rl.health import NothingToLearn
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.rounds.files import RolloutLog, path_of, read_round, write_round
from swift_rl.rounds.reference import RunReference

ROWS = [{"messages": [{"role": "user", "content": f"Say {word}."}], "bonus": 0.01} for word in "abcdefghijkl"]


def settings(rewards: Path, **changes: Any) -> dict[str, Any]:
    """Four completions to each of two prompts per step."""
    return {
        "objective.name": "grpo",
        "objective.reward_funcs": [f"{rewards}:evens"],
        "objective.num_generations": 4,
        "objective.max_completion_length": 6,
        "train.global_batch": 8,
        "train.micro_batch": 4,
        "train.max_steps": 4,
        "checkpoint.save_steps": 1,
        **changes,
    }


def learned(run: Trained, after: int = 0) -> list[tuple[float, float]]:
    return [(line["loss"], line["grad_norm"]) for step, line in run.lines.items() if step > after and "loss" in line]


def rounds(run: Trained) -> list[Round]:
    folder = run.folder / "rollouts"
    found = [read_round(folder, number) for number in range(len(list(folder.glob("round-*.safetensors"))))]
    assert all(found)
    return [each for each in found if each is not None]


def test_first_step_is_policy_gradient_of_round(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """The first step is the policy gradient of what the round says."""
    run = run_training(tied, tmp_path, ROWS, settings(rewards, **{"train.max_steps": 1}))
    (made,) = rounds(run)
    model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    loss, tokens = torch.zeros(()), 0
    for group in (made.group(prompt) for prompt in range(len(made.prompts))):
        scores = np.array([sum(token % 2 == 0 for token in each.token_ids) / len(each.token_ids) for each in group])
        advantages = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-4)
        for completion, advantage in zip(group, advantages, strict=True):
            prompt = made.prompts[completion.prompt].token_ids
            ids = torch.tensor(np.concatenate([prompt, completion.token_ids])[None].astype("int64"))
            logps = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
            assert completion.logps == pytest.approx(logps.detach().numpy(), abs=1e-5)
            loss = loss - (logps * float(advantage)).sum()
            tokens += len(logps)
    (loss / tokens).backward()
    norm = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]).norm()
    assert run.grad_norms == [pytest.approx(float(norm), rel=1e-4)]
    assert run.lines[1]["reward"] == pytest.approx(np.mean([completion.reward for completion in made.completions]))


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, 2),
        ({"objective.steps_per_generation": 2, "objective.num_iterations": 2, "train.max_steps": 6}, 3),
        ({"objective.rollout_staleness": 1}, 2),
    ],
    ids=["between rounds", "in the middle of a round", "with the next round sampled ahead"],
)
def test_a_run_is_resumed_to_the_same_bits(
    tied: Path, rewards: Path, tmp_path: Path, changes: dict[str, Any], step: int
) -> None:
    whole = run_training(tied, tmp_path, ROWS, settings(rewards, **changes))
    resume = {"checkpoint.resume": str(whole.folder / f"checkpoint-{step}"), "logging.run_name": "resumed"}
    rest = run_training(tied, tmp_path, ROWS, settings(rewards, **changes, **resume))
    assert learned(rest) == learned(whole, after=step)


KILLED = [(phase, lag) for lag in (0, 1) for phase in PHASES]
LATER = [("scoring", 1), ("before the file", 1), ("after the file", 1)]
"""Phases whose work a run that lags does as one that does not."""


@pytest.mark.parametrize("killed", tiered(KILLED, (), LATER), ids=str)
def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_bits(
    tied: Path, rewards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: tuple[str, int]
) -> None:
    phase, lag = killed
    changes = {"objective.steps_per_generation": 2, "objective.rollout_staleness": lag, "train.max_steps": 6}
    changes["objective.rollout_batch_size"] = 4  # the batch in which a run is killed is sampled again, others are not
    whole = run_training(tied, tmp_path / "whole", ROWS, settings(rewards, **changes))
    assert_killed(phase, lambda: run_training(tied, tmp_path / "ends", ROWS, settings(rewards, **changes)), lag=lag)
    sampled = []
    monkeypatch.setattr(
        RolloutLog,
        "add",
        lambda self, number, each, add=RolloutLog.add: sampled.append(number) or add(self, number, each),
    )
    ended = tmp_path / "ends" / tied.name / "run"
    rest = run_training(
        tied, tmp_path / "ends", ROWS, settings(rewards, **changes, **{"checkpoint.resume": str(ended)})
    )
    assert learned(rest)[-4:] == learned(whole)[-4:]
    if phase == "drawing":
        assert len(sampled) < 32
    for number in range(1, 3):
        ours, theirs = (read_round(run.folder / "rollouts", number) for run in (rest, whole))
        assert ours is not None
        assert theirs is not None
        for one, other in zip(ours.completions, theirs.completions, strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
            assert one.logps.tolist() == other.logps.tolist()


def test_stale_completions_use_previous_weights(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """Completions of a stale round use the weights of the step before."""
    ahead = run_training(tied, tmp_path / "a", ROWS, settings(rewards, **{"objective.rollout_staleness": 1}))
    assert [each.version for each in rounds(ahead)] == [0, 0, 1, 2]
    atonce = run_training(tied, tmp_path / "b", ROWS, settings(rewards))
    assert [each.version for each in rounds(atonce)] == [0, 1, 2, 3]


def test_groups_without_spread_give_way_to_the_next_prompts(tied: Path, rewards: Path, tmp_path: Path) -> None:
    changes = {
        "objective.reward_funcs": [f"{rewards}:first"],
        "objective.dynamic_sample": True,
        "objective.max_resample_times": 5,
        "train.max_steps": 6,
    }
    run = run_training(tied, tmp_path, ROWS, settings(rewards, **changes))
    made = rounds(run)
    dropped = [prompt for each in made for prompt in each.dropped]
    assert dropped
    for each in made:
        assert len(each.prompts) - len(each.dropped) == 2
        for prompt in range(len(each.prompts)):
            spread = len({completion.reward for completion in each.group(prompt)}) > 1
            assert spread is (prompt not in each.dropped)
    positions = [prompt.position for each in made for prompt in each.prompts]
    assert positions == list(range(len(positions)))


@pytest.fixture(scope="module")
def adapter(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with which the model has learned to say yes."""
    folder = tmp_path_factory.mktemp("adapter")
    rows = [{**row, "messages": [*row["messages"], {"role": "assistant", "content": "yes"}]} for row in ROWS]
    lora = {"tuner.kind": "lora", "optim.lr": 1e-2, "checkpoint.save_last": True, "export.to": "adapter"}
    before = run_training(tied, folder / "sft", rows, {**lora, "export.out": str(folder / "adapter")})
    assert before.losses[-1] < before.losses[0]
    return folder / "adapter"


@pytest.mark.full
@pytest.mark.parametrize(
    ("objective", "start"),
    [("grpo", "following"), ("grpo", "adapter"), ("grpo", "turns"), ("ppo", "full"), ("ppo", "lora")],
)
def test_policy_equals_reference_before_first_step(
    tied: Path, rewards: Path, adapter: Path, tmp_path: Path, start: str, objective: str
) -> None:
    """Before the first step the policy is its reference to the last bit."""
    changes: dict[str, Any] = {
        "tuner.kind": {"full": "full", "following": "full", "turns": "lisa"}.get(start, "lora"),
        "objective.temperature": 0.8,
        "objective.kl_estimator": "k1",  # the others have squares of rounding, which are rounded to 0
        "objective.max_completion_length": 24,
        "train.global_batch": 16,
        "train.micro_batch": 2,
    }
    if objective == "ppo":
        changes |= {"objective.name": "ppo", "objective.kl_coef": 0.5, "objective.num_ppo_epochs": 1}
    else:
        changes["objective.beta"] = 0.5
    if start == "following":
        changes |= {"objective.sync_ref_model": True, "objective.ref_model_sync_steps": 9}
    if start == "adapter":
        changes["tuner.adapter"] = str(adapter)
    rows = [{"messages": [{"role": "user", "content": f"Say {'again ' * times}."}]} for times in range(12)]
    run = run_training(tied, tmp_path, rows, settings(rewards, **changes))
    for completion in rounds(run)[0].completions:
        assert completion.old_logps is not None
        assert completion.old_logps.tobytes() == completion.ref_logps.tobytes()
    divergence = [abs(line["kl"]) for line in run.lines.values()]
    assert divergence[0] == 0
    assert divergence[-1] > 1e-6
    assert (run.lines[1]["ratio"], run.lines[1]["approx_kl"]) == (1, 0)


def test_eval_prompts_choose_best_checkpoint(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """Held-out prompts get completions that choose the best checkpoint."""
    run = run_training(tied, tmp_path, ROWS[:8], settings(rewards, **{"train.eval_steps": 2}), validation=ROWS[8:])
    evaluated = {step: line["eval_reward"] for step, line in run.lines.items() if "eval_reward" in line}
    assert sorted(evaluated) == [2, 4]
    assert run.summary.best_checkpoint is not None
    best = max(evaluated, key=lambda step: (evaluated[step], -step))
    assert run.summary.best_checkpoint.name == f"checkpoint-{best}"


def test_missing_round_file_is_reported_on_resume(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """A missing round file is reported where a run resumes inside of the round."""
    changes = {"objective.num_iterations": 2}
    whole = run_training(tied, tmp_path, ROWS, settings(rewards, **changes))
    path_of(whole.folder / "rollouts", 0, "safetensors").unlink()
    resume = {"checkpoint.resume": str(whole.folder / "checkpoint-1"), "logging.run_name": "resumed"}
    with pytest.raises(CheckpointError, match="The files of round 1, which step"):
        run_training(tied, tmp_path, ROWS, settings(rewards, **changes, **resume))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.global_batch": 6}, "groups of 4"),
        ({"objective.reward_funcs": []}, "No reward is configured"),
        ({"objective.max_completion_length": 5000}, "exceeds the model's"),
        (
            {"objective.rollout_staleness": 1, "objective.dynamic_sample": True},
            "rollout_staleness 1 cannot be combined",
        ),
    ],
)
def test_unsupported_rl_input_is_refused_before_loading(
    tied: Path, rewards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    """What cannot be learned from is refused before weights load."""
    monkeypatch.setattr("swift.train.prepare.load_model", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises((ConfigError, SwiftError), match=said):
        run_training(tied, tmp_path, ROWS, settings(rewards, **changes))


def test_report_shows_rounds_compared_with_reference(
    tied: Path, rewards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report has the rounds and the first one is compared with the reference."""
    changes = {"objective.beta": 0.1, "tuner.kind": "lora", "train.max_steps": 2, "optim.warmup_steps": 0}
    run = run_training(tied, tmp_path, ROWS, settings(rewards, **changes, **{"logging.report_to": ["report", "jsonl"]}))
    said = capsys.readouterr().out
    assert "12 rows, 12 samples, 300 tokens\n" in said, "no token of a prompt is learned, which is nothing to be told"
    report = (run.folder / "report.html").read_text()
    for number in range(2):
        assert f'<a href="rollouts/round-{number:06d}.html">' in report
        assert path_of(run.folder / "rollouts", number, "html").exists()
    (charts,) = re.findall(r'id="run-data">(.*?)</script>', report)
    metrics = {chart["metric"] for chart in json.loads(charts)["charts"]}
    assert {"reward", "rewards/evens", "completion_length", "truncated"} <= metrics
    assert [each.completions[0].old_logps is not None for each in rounds(run)] == [True, False]

    logps = RunReference.logps
    monkeypatch.setattr(RunReference, "logps", lambda *asked: [each + 0.01 for each in logps(*asked)])
    with pytest.raises(NothingToLearn, match=r"reference differs from the model by 0\.01"):
        run_training(tied, tmp_path / "other", ROWS, settings(rewards, **changes))


def test_round_file_keeps_values_of_some_completions(tmp_path: Path) -> None:
    """Completions of dropped groups have no `old_logps`; a resumed run finds those of the others as they were."""
    prompt = Prompt(number=0, position=0, token_ids=np.array([1, 2], dtype=np.int32), messages=[])

    def completion(index: int, length: int, old: bool) -> RolloutCompletion:
        values = np.linspace(-1, 0, length, dtype=np.float32) + index
        ids = np.arange(length, dtype=np.int32)
        return RolloutCompletion(0, index, ids, values, "stop", "text", old_logps=values * 2 if old else None)

    completions = [completion(0, 3, False), completion(1, 2, True), completion(2, 4, False), completion(3, 5, True)]
    write_round(tmp_path, Round(0, 0, [prompt], completions), "settings")
    read = read_round(tmp_path, 0, "settings")
    assert read is not None
    assert [each.old_logps is None for each in read.completions] == [True, False, True, False]
    for before, after in zip(completions, read.completions, strict=True):
        assert after.logps.tolist() == before.logps.tolist()
        if before.old_logps is not None:
            assert after.old_logps is not None
            assert after.old_logps.tolist() == before.old_logps.tolist()
