"""A folder with a reward model as a reward, against transformers: the score at the last token of the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_runs import write_model
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
