"""Weights that transformers has no modules for, such as layers for multi-token prediction: kept, not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import conversations, run_training
from tiny_types import tiny_config, tiny_model, write_tiny
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

from swift.config.sections import ExportSection, ModelSection
from swift.errors import ExportError
from swift.export.run import export_checkpoint
from swift.models.source import open_source

WEIGHTS = "model.safetensors"
LORA = {"tuner.kind": "lora", "tuner.dropout": 0.0}


def drafting_layer(model: Any) -> dict[str, torch.Tensor]:
    """Return a layer for multi-token prediction as DeepSeek publishes it: one more layer of the decoder."""
    text = model.config.get_text_config()
    torch.manual_seed(5)
    block = model.model.layers[-1].state_dict()
    width, prefix = text.hidden_size, f"model.layers.{text.num_hidden_layers}"
    own = {"enorm.weight": [width], "hnorm.weight": [width], "eh_proj.weight": [width, 2 * width]}
    own |= {"shared_head.norm.weight": [width], "shared_head.head.weight": [text.vocab_size, width]}
    named = {f"{prefix}.{name}": torch.randn(size) for name, size in own.items()}
    gate_up, down = block.pop("mlp.experts.gate_up_proj"), block.pop("mlp.experts.down_proj")
    for expert, (both, last) in enumerate(zip(gate_up, down, strict=True)):
        gate, up = both.chunk(2)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": last}
        named |= {f"{prefix}.mlp.experts.{expert}.{name}.weight": part.clone() for name, part in parts.items()}
    return named | {f"{prefix}.{name}": tensor.clone() for name, tensor in block.items()}


def with_extra(folder: Path, extra: dict[str, torch.Tensor]) -> Path:
    file = folder / WEIGHTS
    save_file(load_file(file) | extra, file, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def extra() -> dict[str, torch.Tensor]:
    return drafting_layer(tiny_model("deepseek_v3"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, extra: dict[str, torch.Tensor]) -> Path:
    return with_extra(write_tiny("deepseek_v3", tmp_path_factory.mktemp("deepseek") / "model"), extra)


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_drafting_layers_are_exported_unchanged(
    model: Path,
    extra: dict[str, torch.Tensor],
    settings: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run says that they are not trained. The verified export has them bit for bit, and transformers loads them."""
    out = tmp_path / "exported"
    run_training(model, tmp_path / "runs", conversations(4), {
        **settings, "train.global_batch": 4, "train.max_steps": 1, "optim.warmup_steps": 0, "export.to": "hf",
        "export.out": str(out),
    })  # fmt: skip
    assert f"{len(extra)} weights in {model} are not trained, and exports keep them" in capsys.readouterr().out
    before, after = load_file(model / WEIGHTS), load_file(out / WEIGHTS)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in extra.items())
    assert any(not torch.equal(after[name], before[name]) for name in before.keys() - extra.keys())
    main = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    layer = f"model.layers.{main.config.num_hidden_layers}"
    main._keys_to_ignore_on_load_unexpected = [layer]  # transformers knows the number of layers of released models
    drafter = MtpModel.from_pretrained(main)
    name = f"{layer}.eh_proj.weight"
    assert torch.equal(drafter.layers[0].eh_proj.weight, extra[name])


def test_altered_drafting_layers_are_noticed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export in which such a weight has other values is not verified."""
    from swift.export.writer import ShardedSafetensorsWriter

    write = ShardedSafetensorsWriter.write

    def written(self: Any, name: str, tensor: torch.Tensor) -> None:
        write(self, name, tensor + 1 if name.endswith("eh_proj.weight") else tensor)

    monkeypatch.setattr(ShardedSafetensorsWriter, "write", written)
    with pytest.raises(ExportError, match=r"eh_proj\.weight has other values"):
        export_checkpoint(model, to="hf", options=ExportSection(out=tmp_path / "out"), say=print)


@pytest.mark.parametrize("name", ["qwen3_next", "gemma3n_text", "llama, biases, tied", "mixtral", "gpt2", "mamba2"])
def test_whole_models_have_no_extra_weights(name: str, tmp_path: Path) -> None:
    """Tied weights, buffers, experts and other prefixes are the model's own; `mtp.*` are not."""
    folder = write_tiny(name, tmp_path / "model")
    unprefixed = {key.removeprefix("transformer."): tensor for key, tensor in load_file(folder / WEIGHTS).items()}
    if tiny_config(name).get_text_config().tie_word_embeddings:
        head = next(tensor for key, tensor in unprefixed.items() if key.endswith(("embed_tokens.weight", "wte.weight")))
        unprefixed["lm_head.weight"] = head.clone()
    save_file(unprefixed, folder / WEIGHTS, {"format": "pt"})
    assert open_source(ModelSection(path=str(folder)), say=print).extra_names() == []
    with_extra(folder, {"mtp.fc.weight": torch.ones(4, 8)})
    assert open_source(ModelSection(path=str(folder)), say=print).extra_names() == ["mtp.fc.weight"]
