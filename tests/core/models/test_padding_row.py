"""`padding_idx`: inputs give the padding token's row no gradient, as in transformers, unless it is to be trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
import transformers
from plain_torch import batches_of, conversation_tokens, likelihood_trajectory
from tiny_runs import conversations, run_training, write_model

from swift.config.sections import ModelSection
from swift.errors import CheckpointError
from swift.models.build import _train_padding_row
from swift.models.source import open_source
from swift.terminal import say_nothing

ROWS = conversations(8)
STEPS = 4
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256}


@pytest.mark.parametrize(
    ("architecture", "shape", "pad", "row"),
    [("Qwen3", {}, 258, 258), ("Qwen3", {}, -1, 263), ("Qwen3", {}, None, None), ("GPT2", GPT2, 258, None)],
    ids=["pad", "from the end", "no pad", "gpt-2"],
)
def test_padding_row_is_that_of_transformers(
    tmp_path: Path, architecture: str, shape: dict[str, Any], pad: int | None, row: int | None
) -> None:
    """The module decides, not `pad_token_id`: GPT-2 has the key and no such row."""
    folder = write_model(tmp_path, architecture=architecture, **shape)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": pad}))
    assert open_source(ModelSection(path=str(folder)), say=say_nothing).padding_row == row


@pytest.mark.parametrize("trained", [False, True], ids=["default", "trained"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_padding_row_follows_plain_torch(tmp_path: Path, trained: bool, tied: bool) -> None:
    folder = write_model(tmp_path / "model", tie_word_embeddings=tied)
    run = run_training(folder, tmp_path, ROWS, {"train.max_steps": STEPS, "train.pad_token": trained})

    def expected(padding_idx: int | None) -> tuple[list[float], list[float]]:
        model: Any = plain_torch.load_model(folder)
        model.get_input_embeddings().padding_idx = padding_idx
        return likelihood_trajectory(model, batches_of(conversation_tokens(folder, ROWS), 4, STEPS), steps=STEPS)

    losses, grad_norms = expected(None if trained else 258)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(grad_norms, rel=1e-5)
    _, others = expected(258 if trained else None)
    assert grad_norms != pytest.approx(others, rel=1e-4), "the row makes no difference here"


def test_all_embeddings_of_tokens_are_trained() -> None:
    """Gemma 3n has a second embedding of the same tokens, for what each layer adds."""
    with torch.device("meta"):
        config = transformers.Gemma3nTextConfig(
            num_hidden_layers=1, num_kv_shared_layers=0, layer_types=["full_attention"]
        )
        model = transformers.Gemma3nForCausalLM(config)
    rows = [each for each in model.modules() if isinstance(each, torch.nn.Embedding)]
    assert [each.padding_idx for each in rows] == [config.pad_token_id] * 2
    _train_padding_row(model)
    assert [each.padding_idx for each in rows] == [None, None]


def test_resume_refuses_another_pad_token(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    saving = {"train.max_steps": 2, "checkpoint.save_last": True}
    run = run_training(folder, tmp_path, ROWS, {**saving, "train.pad_token": True})
    resumed = {**saving, "train.max_steps": 3, "checkpoint.resume": str(run.folder / "checkpoint-2")}
    with pytest.raises(CheckpointError, match=r"train\.pad_token \(it was True, now False\)"):
        run_training(folder, tmp_path, ROWS, resumed)
