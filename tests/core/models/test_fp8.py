"""FP8: products of eight bits, and everything that is kept as without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tiny_runs import Trained, conversations, run_training, write_model

from swift.errors import UnsupportedLayout
from swift.models.build import decoder_blocks
from swift.models.fp8 import layers_in_fp8

pytest.importorskip("torchao.float8")
FP8 = {"backend.fp8": "hybrid", "backend.fp8_emulated": True, "model.dtype": "bfloat16"}


def rounded(tensor: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    """Return a tensor as eight bits and one scale keep it."""
    scale = torch.finfo(dtype).max / tensor.abs().max().double()
    return (tensor.double() * scale).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype).double() / scale


def test_fp8_layer_and_gradients_use_quantized_values(tmp_path: Path) -> None:
    """A layer and its gradients multiply what eight bits keep."""
    from torchao.float8 import convert_to_float8_training

    config = the_config_of_a_run(tmp_path)
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 48, bias=False)
    (changed,) = convert_to_float8_training(torch.nn.Sequential(layer), config=config)
    inputs = torch.randn(24, 32, requires_grad=True)
    outputs = changed(inputs)
    outputs.backward(gradient := torch.randn(24, 48))
    eighth, weight = rounded(gradient, torch.float8_e5m2), rounded(layer.weight.detach())
    torch.testing.assert_close(outputs.double(), rounded(inputs.detach()) @ weight.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(inputs.grad.double(), eighth @ weight, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
    found: Any = changed.weight.grad
    torch.testing.assert_close(found.double(), eighth.T @ rounded(inputs.detach()), rtol=1e-4, atol=1e-4)


def the_config_of_a_run(tmp_path: Path) -> Any:
    """Return the settings that a run hands to torchao."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchao.float8.convert_to_float8_training", lambda *_, config, **__: seen.append(config))
        run_training(write_model(tmp_path / "model"), tmp_path / "out", conversations(4), {**FP8, "train.max_steps": 1})
    return seen[0]


def test_fp8_run_matches_within_rounding_and_saves_same(tmp_path: Path, tiny: Path) -> None:
    """A run learns the same to within rounding and saves what one without it saves."""
    runs: dict[str, Trained] = {}
    for name, options in (("fp8", FP8), ("bf16", {"model.dtype": "bfloat16"})):
        more = {**options, "train.max_steps": 4, "checkpoint.save_steps": 2, "logging.run_name": name}
        runs[name] = run_training(tiny, tmp_path, conversations(16), more)
    fp8, bf16 = runs["fp8"], runs["bf16"]
    assert fp8.losses != bf16.losses
    assert fp8.losses == pytest.approx(bf16.losses, rel=0.02)
    assert fp8.grad_norms == pytest.approx(bf16.grad_norms, rel=0.1)
    assert kept(fp8.folder / "checkpoint-2") == kept(bf16.folder / "checkpoint-2")

    resumed = {
        "model.dtype": "bfloat16",
        "checkpoint.resume": str(fp8.folder / "checkpoint-2"),
        "logging.run_name": "on",
        "logging.output": str(tmp_path / "other"),
        "train.max_steps": 4,
    }
    on = run_training(tiny, tmp_path / "other", conversations(16), resumed)
    assert on.losses == pytest.approx(fp8.losses[2:], rel=0.02)


def kept(checkpoint: Path) -> dict[str, tuple[str, list[int]]]:
    """Return names, precisions and shapes of all that a checkpoint holds."""
    found = {}
    for path in sorted(checkpoint.rglob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in list(file.keys()):
                piece = file.get_slice(name)
                found[f"{path.relative_to(checkpoint)} {name}"] = (piece.get_dtype(), piece.get_shape())
    assert len(found) > 20
    return found


def test_fp8_skips_heads_embeddings_and_unfit_layers() -> None:
    """Heads embeddings and layers of unfit sizes are left alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
        )
    names = {path.rpartition(".")[2] for path in layers_in_fp8(model, decoder_blocks(model))}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj"}  # 40 is no multiple of 16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend.fp8_emulated": False}, "needs a GPU of the Ada or Hopper generation or later, and this run is on"),
        ({"tuner.kind": "lora"}, "needs full-parameter training"),
        ({"model.dtype": "float16"}, "needs --torch_dtype bfloat16, not float16"),
    ],
)
def test_what_fp8_cannot_do_is_refused_with_what_to_type(
    tmp_path: Path, tiny: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedLayout, match=said) as refusal:
        run_training(tiny, tmp_path, conversations(4), {**FP8, **changes})
    assert "--" in str(refusal.value.hint)
