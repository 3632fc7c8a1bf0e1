"""A folder with a reward model as a reward, against transformers: the score at the last token of the conversation."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
import torch
from tiny_runs import run_training, write_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from swift.contracts import RewardItem
from swift.errors import ModelError
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import select_rewards


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "base", num_hidden_layers=1, initializer_range=0.2)


def items() -> list[RewardItem]:
    asked = [{"role": "user", "content": "What is 2 + 2?"}]
    return [RewardItem(asked, text) for text in ("4", "It is four, as you could have known.", "")]


def test_reward_model_folder_matches_transformers(language_model: Path) -> None:
    """A folder scores whole conversations as transformers does."""
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


STEPS = [("min", min), ("prod", math.prod), ("last", lambda scores: scores[-1]), ("mean", statistics.fmean)]


def test_process_reward_model_scores_steps(language_model: Path) -> None:
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(language_model, num_labels=1)
    folder = language_model.parent / "process-reward-model"
    model.eval().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    tokenizer.save_pretrained(folder)
    asked = [{"role": "user", "content": "What is 2 + 2?"}]
    completions = ["Two and two\n\nis what?\nIt is 4.", "4", "  \n"]
    scores = []
    for completion in completions:
        ids, found = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"], []
        for step in completion.splitlines():
            if not step.strip():
                continue
            ids = [*ids, *tokenizer(step)["input_ids"], *tokenizer("\n")["input_ids"]]
            with torch.no_grad():  # the score at the last token of what has been said so far
                found.append(float(model(torch.tensor([ids])).logits[0, 0].sigmoid()))
        scores.append(found)
    assert [*map(len, scores)] == [3, 1, 0]
    for kind, of_steps in STEPS:
        options = RewardOptions(reward_model=(str(folder),), step_reward=kind)
        with RewardPool(select_rewards([], options), options) as pool:
            found = [
                each["reward_model"].value
                for each in pool.score([RewardItem(asked, completion) for completion in completions])
            ]
        assert found == pytest.approx([of_steps(each) if each else 0.0 for each in scores], abs=1e-5)


def test_rewards_of_steps_are_refused_where_they_cannot_be_had(language_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step_reward needs reward_model"):
        RewardOptions(step_reward="min")
    with pytest.raises(ValueError, match="choose step_reward min, or leave it out"):
        RewardOptions(reward_model=("a",), step_separator="\n")
    with pytest.raises(ValueError, match="scores whole completions: choose the model's folder"):
        RewardOptions(reward_model=("http://127.0.0.1:1",), step_reward="min")
    with pytest.raises(ModelError, match="not a process reward model"):
        select_rewards([], RewardOptions(reward_model=(str(language_model),), step_reward="min"))
    settings = {"objective.name": "prm", "train.max_steps": 1, "checkpoint.save_last": True}
    row = {"prompt": "2 + 2?", "completions": ["4"], "labels": [True]}
    trained = run_training(language_model, tmp_path, [row] * 4, settings)
    with pytest.raises(ModelError, match="--step_reward min"):
        select_rewards([], RewardOptions(reward_model=(str(trained.summary.last_checkpoint),)))


def test_a_model_that_gives_no_score_is_refused_before_the_run(language_model: Path) -> None:
    with pytest.raises(ModelError, match="not a reward model"):
        select_rewards([], RewardOptions(reward_model=(str(language_model),)))
    with pytest.raises(ModelError):
        select_rewards([], RewardOptions(reward_model=("./no-such-folder",)))
