"""A folder with a reward model as a reward, against transformers: the score at the last token of the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_runs import pairs, run_training, write_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from swift.config.sections import ExportSection
from swift.contracts import RewardItem
from swift.errors import ModelError
from swift.export.run import export_checkpoint
from swift.terminal import say_nothing
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import select_rewards
from swift_rl.rounds.files import read_round


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "base", num_hidden_layers=1, initializer_range=0.2)


def items() -> list[RewardItem]:
    asked = [{"role": "user", "content": "What is 2 + 2?"}]
    return [RewardItem(asked, text) for text in ("4", "It is four, as you could have known.", "")]


def test_a_folder_scores_whole_conversations_as_transformers_does(language_model: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(language_model, num_labels=1)
    folder = language_model.parent / "reward-model"
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    tokenizer.save_pretrained(folder)
    expected = []
    for item in items():
        messages = [*item.messages, {"role": "assistant", "content": item.completion}]
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            expected.append(float(model.eval()(ids).logits[0, 0]))
    options = RewardOptions(reward_model=(str(folder),))
    with RewardPool(select_rewards([], options), options) as pool:
        found = [verdicts["reward_model"].value for verdicts in pool.score(items())]
    assert found == pytest.approx(expected, abs=1e-4)
    assert len({*expected}) == 3


def test_a_model_that_gives_no_score_is_refused_before_the_run(language_model: Path) -> None:
    with pytest.raises(ModelError, match="no reward model"):
        select_rewards([], RewardOptions(reward_model=(str(language_model),)))
    with pytest.raises(ModelError):
        select_rewards([], RewardOptions(reward_model=("./no-such-folder",)))


@pytest.mark.full
def test_a_reward_model_that_a_run_has_trained_rewards_the_answers_of_another_run(
    language_model: Path, tmp_path: Path
) -> None:
    """The rewards of the round are those that transformers computes with the exported reward model."""
    settings = {"objective.name": "rm", "train.max_steps": 2, "checkpoint.save_last": True, "optim.lr": 1e-2}
    trained = run_training(language_model, tmp_path / "rm", pairs(8), settings)
    checkpoint = trained.summary.last_checkpoint
    assert checkpoint is not None
    rewarded = {
        "objective.name": "grpo",
        "objective.reward_model": [str(checkpoint)],
        "objective.num_generations": 4,
        "objective.max_completion_length": 6,
        "train.global_batch": 8,
        "train.max_steps": 1,
    }
    rows = [{"messages": [{"role": "user", "content": letter}]} for letter in "abcd"]
    run = run_training(language_model, tmp_path / "grpo", rows, rewarded)
    made = read_round(run.folder / "rollouts", 0)
    assert made is not None
    folder = export_checkpoint(checkpoint, to="hf", options=ExportSection(out=tmp_path / "hf"), say=say_nothing)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for answer in made.answers:
        messages = [*made.prompts[answer.prompt].messages, {"role": "assistant", "content": answer.text}]
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            expected.append(float(model(ids).logits[0, 0]))
    assert [answer.reward for answer in made.answers] == pytest.approx(expected, abs=1e-4)
    assert len({*expected}) > 4
