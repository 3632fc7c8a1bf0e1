"""The canonical names are those that transformers and PEFT write, and every value is found under its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import configurations, tiny

from swift.config.sections import TunerSection
from swift.errors import ModelError
from swift.models.names import Piece, base_model, canonical_buffers, canonical_parameters, name_map
from swift.models.tuners import apply_tuner

torch.set_num_threads(1)


def canonical(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = {p.name: p.view_of(tensor.detach()) for parts, tensor in canonical_parameters(model) for p in parts}
    return tensors | {p.name: p.view_of(buffer) for parts, buffer in canonical_buffers(model) for p in parts}


@pytest.mark.parametrize("architecture", list(configurations()))
def test_names_and_values_are_those_that_transformers_writes(architecture: str, tmp_path: Path) -> None:
    model = tiny(architecture)
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    ours = canonical(model)
    assert sorted(ours) == sorted(written)
    for name, tensor in written.items():
        assert torch.equal(ours[name], tensor), name


def test_weights_written_in_pieces_load_in_transformers(tmp_path: Path) -> None:
    """Values written through pieces are what transformers loads."""
    written, other = tiny("qwen3-moe", seed=0), tiny("qwen3-moe", seed=1)
    written.save_pretrained(tmp_path)
    on_disk = load_file(tmp_path / "model.safetensors")
    with torch.no_grad():
        for pieces, parameter in canonical_parameters(other):
            for piece in pieces:
                piece.view_of(parameter).copy_(on_disk[piece.name])
    for (name, parameter), (_, expected) in zip(other.named_parameters(), written.named_parameters(), strict=True):
        assert torch.equal(parameter, expected), name


def test_stacked_experts_are_named_one_by_one() -> None:
    names = name_map(tiny("qwen3-moe"))
    pieces = names.pieces("model.layers.0.mlp.experts.gate_up_proj")
    assert pieces[0] == Piece("model.layers.0.mlp.experts.0.gate_proj.weight", 0, (16, 32))
    assert pieces[3] == Piece("model.layers.0.mlp.experts.1.up_proj.weight", 3 * 16 * 32, (16, 32))


def test_names_do_not_depend_on_what_was_done_to_the_model() -> None:
    plain, changed = tiny("qwen3-moe"), tiny("qwen3-moe")
    for parameter in changed.parameters():
        parameter.data = torch.empty(0)
    assert name_map(changed).names() == name_map(plain).names()


def test_unsplittable_layout_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that cannot be cut into pieces is refused by name."""
    import transformers.core_model_loading as loading

    def transposed(model: object, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.t() if tensor.ndim == 2 else tensor for name, tensor in state.items()}

    monkeypatch.setattr(loading, "revert_weight_conversion", transposed)
    with pytest.raises(ModelError, match="Qwen3ForCausalLM"):
        name_map(tiny())


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("qwen3", {}),
        ("gpt2", {}),
        ("qwen3", {"dora": True}),
        ("qwen3", {"modules_to_save": ("lm_head",)}),
        ("qwen3", {"targets": ("q_proj", "embed_tokens")}),
        ("qwen3-moe", {}),
        ("qwen3-moe", {"targets": ("q_proj", "gate_proj", "up_proj", "down_proj"), "dropout": 0.0}),
    ],
)
def test_adapters_have_the_names_that_peft_writes_and_loads(
    architecture: str, options: dict[str, object], tmp_path: Path
) -> None:
    from peft import PeftModel

    model = apply_tuner(tiny(architecture), TunerSection(kind="lora", **options), seed=3, say=lambda _: None)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.01)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    written, ours = load_file(tmp_path / "adapter_model.safetensors"), canonical(model)
    assert sorted(ours) == sorted(written)
    for name, tensor in written.items():
        assert torch.equal(ours[name], tensor), name
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert trained == {id(parameter) for _, parameter in canonical_parameters(model)}

    again = PeftModel.from_pretrained(tiny(architecture), tmp_path)
    ids = torch.randint(3, 64, (1, 8), generator=torch.Generator().manual_seed(0))
    model.eval()
    assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-6)


def test_the_model_inside_peft_keeps_its_names() -> None:
    plain = name_map(tiny())
    wrapped = apply_tuner(tiny(), TunerSection(), seed=0, say=lambda _: None)
    assert name_map(wrapped).names() == plain.names()
    assert type(base_model(wrapped)).__name__ == "Qwen3ForCausalLM"
