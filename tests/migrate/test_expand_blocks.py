"""`swift convert --expand-blocks`: a longer model that computes what the model did, and learns in its new blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import conversations, run_training, write_model
from transformers import AutoModelForCausalLM

from swift.errors import SwiftError
from swift.terminal import say_nothing
from swift_migrate.convert.expand import expand_blocks

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
GPT2 = {"n_embd": 64, "n_head": 4, "num_hidden_layers": 4, "n_positions": 256}
FOUR = {"num_hidden_layers": 4}


def logits(folder: Path) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(3, 40)[None]).logits
    return found


@pytest.mark.parametrize(
    ("architecture", "shape", "prefix"),
    [
        pytest.param("Qwen3", FOUR, "model.layers.", id="dense"),
        pytest.param("Qwen3Moe", {**FOUR, **EXPERTS}, "model.layers.", id="experts"),
        pytest.param("GPT2", GPT2, "transformer.h.", id="gpt2"),
    ],
)
def test_a_longer_model_computes_the_same(
    tmp_path: Path, architecture: str, shape: dict[str, Any], prefix: str
) -> None:
    model = write_model(tmp_path / "tiny", architecture=architecture, **shape)
    out = expand_blocks(model, blocks=2, out=tmp_path / "longer", say=say_nothing)
    torch.testing.assert_close(logits(out), logits(model), rtol=1e-5, atol=1e-5)

    old, new = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    moved = {0: 0, 1: 1, 2: 3, 3: 4}
    for name, tensor in old.items():
        if name.startswith(prefix):
            number, _, rest = name.removeprefix(prefix).partition(".")
            name = f"{prefix}{moved[int(number)]}.{rest}"
        assert torch.equal(new.pop(name), tensor)
    assert {name.removeprefix(prefix).partition(".")[0] for name in new} == {"2", "5"}
    assert any(not tensor.any() for tensor in new.values())
    assert any(tensor.any() for tensor in new.values())
    config = json.loads((out / "config.json").read_text())
    assert config.get("num_hidden_layers", config.get("n_layer")) == 6
    assert len(config.get("layer_types") or range(6)) == 6


def test_the_new_blocks_alone_learn(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny", **FOUR)
    longer = expand_blocks(model, blocks=2, out=tmp_path / "longer", say=say_nothing)
    trained = {"tuner.train_only": ["model.layers.2.*", "model.layers.5.*"], "checkpoint.save_last": True}
    run = run_training(longer, tmp_path, conversations(8), {**trained, "train.max_steps": 4, "optim.lr": 1e-2})
    before = load_file(longer / "model.safetensors")
    after = load_file(run.folder / "checkpoint-4" / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ".layers.2." in name or ".layers.5." in name}
    assert run.losses[-1] < run.losses[0]


def test_unequal_parts_and_changed_models_are_refused(tmp_path: Path) -> None:
    """Parts that are not equal and models that would change are refused."""
    model = write_model(tmp_path / "tiny", **FOUR)
    with pytest.raises(SwiftError, match="must divide the number of blocks"):
        expand_blocks(model, blocks=3, out=tmp_path / "longer", say=say_nothing)
    assert not (tmp_path / "longer").exists()
