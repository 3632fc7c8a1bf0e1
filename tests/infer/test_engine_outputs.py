"""Engines that return scores and vectors: those of transformers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import write_model
from transformers import AutoModel, AutoModelForSequenceClassification

from swift.contracts import EngineRequest
from swift.errors import PluginError
from swift.models.sentence_files import write_sentence_files
from swift.plugins.inference import CheckedEngine, open_inference
from swift.plugins.load import load_engine

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [3], [20, 21]]


def outputs_of(folder: Path, task: str) -> torch.Tensor:
    engine = open_inference(load_engine("transformers"), EngineRequest(folder, dtype="float32", task=task))
    assert isinstance(engine, CheckedEngine)
    found = dict(engine.outputs(PROMPTS))
    engine.close()
    return torch.tensor([found[place] for place in range(len(PROMPTS))])


@torch.no_grad()
def test_scores_are_those_of_the_last_token(tmp_path: Path) -> None:
    small = write_model(tmp_path / "small")
    model = AutoModelForSequenceClassification.from_pretrained(small, num_labels=3, dtype=torch.float32).eval()
    model.config.pad_token_id = 0
    model.save_pretrained(small)
    expected = torch.cat([model(torch.tensor([prompt])).logits for prompt in PROMPTS])
    torch.testing.assert_close(outputs_of(small, "seq_cls"), expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("pooling", "read"), [("mean", lambda states: states.mean(0)), ("cls", lambda states: states[0])]
)
def test_embeddings_are_pooled_as_folder_declares(
    tmp_path: Path, pooling: str, read: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    small = write_model(tmp_path / "small")
    model = AutoModel.from_pretrained(small, dtype=torch.float32).eval()
    model.save_pretrained(small)
    write_sentence_files(small, size=model.config.hidden_size, pooling=pooling)
    expected = torch.stack([read(model(torch.tensor([prompt])).last_hidden_state[0]) for prompt in PROMPTS])
    torch.testing.assert_close(outputs_of(small, "embedding"), expected, atol=1e-5, rtol=0)


class Numbers:
    """Returns the values that it is made with."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def outputs(self, prompts: Any) -> Any:
        return enumerate(self.values)


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (object(), "it has no method outputs"),
        (Numbers([0.5, 0.5]), r"whose \[1\] is the float 0.5 .*Expected: list\[float\]"),
        (Numbers([[0.5], []]), "a list of numbers"),
        (Numbers([[0.5]]), "returned 1 of 2 prompts from outputs"),
    ],
)
def test_wrong_outputs_name_the_engine(engine: Any, sentence: str) -> None:
    entry: Any = load_engine("transformers").entry
    with pytest.raises(PluginError, match=sentence):
        list(CheckedEngine(entry, engine).outputs([[1], [2]]))
