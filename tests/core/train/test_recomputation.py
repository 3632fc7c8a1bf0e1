"""What a run says before its first step where it would need recomputation to fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tiny_runs import conversations, run_training

from swift.train import recomputation
from swift.train.recomputation import kept_values


def test_kept_values_are_a_lower_bound() -> None:
    """Autograd saves at least the counted values of a decoder's layers, and not many times as much."""
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50,
    )  # fmt: skip
    model = transformers.LlamaModel(config)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(torch.arange(40)[None], use_cache=False)
    counted = 40 * kept_values(config)
    assert counted <= sum(kept.values()) < 2 * counted
    assert output is not None


@pytest.mark.parametrize(("recompute", "noted"), [(False, True), (True, False)])
def test_lack_of_memory_is_noted_before_first_step(
    recompute: bool, noted: bool, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Without a planner too: the note names the flag. A run that recomputes has none."""
    monkeypatch.setattr(recomputation, "available_bytes", lambda: 1000)
    changes = {"train.max_steps": 1, "train.gradient_checkpointing": recompute}
    run_training(tiny, tmp_path, conversations(4), changes)
    said = capsys.readouterr().out
    assert ("GiB are free. Recompute them: --gradient_checkpointing true" in said) == noted
