"""What the planner says a layer keeps for its backward pass, against what autograd is seen to keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift.contracts import ProcessLayout
from swift_plan.memory import layer_sizes, transformers_layer
from swift_plan.shape import shape_of
from swift_plan.workload import Workload

_SIZES = {
    "hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20,
    "vocab_size": 64, "tie_word_embeddings": False,
}  # fmt: skip
_TOKENS = 128


def _kept(kind: str, layers: int, dtype: torch.dtype) -> tuple[int, dict[str, Any]]:
    """Return the bytes of all tensors that a forward pass keeps, but for weights and what is converted of them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **_SIZES, num_hidden_layers=layers)
    config._attn_implementation = "sdpa"
    model = AutoModelForCausalLM.from_config(config)
    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    shapes |= {shape[::-1] for shape in shapes}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) not in shapes:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        model.train()(torch.zeros(1, _TOKENS, dtype=torch.long), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()), config.to_dict()


def _work(compute_bytes: float) -> Workload:
    return Workload(1, _TOKENS, False, compute_bytes, adapted=False)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_layer_of_transformers_keeps_what_is_counted(kind: str, dtype: torch.dtype) -> None:
    one, config = _kept(kind, 1, dtype)
    two, _ = _kept(kind, 2, dtype)
    sizes = layer_sizes(shape_of(config, kind), ProcessLayout(), _work(float(dtype.itemsize)), with_experts=False)
    assert transformers_layer(sizes) * _TOKENS == pytest.approx(two - one, rel=0.02)


def test_megatrons_layer_is_korthikantis() -> None:
    """34 bytes a token and hidden value without dropout's 2 masks, divided by tp under sequence parallelism."""
    from swift.planning import planned_backends

    (backend,), _ = planned_backends(["--model", "x", "--backend", "megatron", "--torch_dtype", "bfloat16"], "sft")
    shape = shape_of({"model_type": "gpt2", "n_embd": 1024, "n_layer": 2, "n_head": 16, "vocab_size": 99}, "gpt")
    for tp in (1, 4):
        run = backend.run({"tp": tp, "sequence_parallel": tp > 1}, 8)
        told = backend.activations(run, layer_sizes(shape, backend.layout(run), _work(2.0), with_experts=False))
        assert told is not None
        # FlashAttention keeps one fp32 number for each head where the paper recomputes the core of attention.
        assert told - 4 * 16 / tp == pytest.approx(32 * 1024 / tp)


def test_megatron_layer_activations_match_autograd() -> None:
    """Of a block of Qwen3 in fp32: 28 tensors of hidden size, and one number for each head; fewer beside adapters."""
    from swift.planning import planned_backends

    (backend,), _ = planned_backends(["--model", "x", "--backend", "megatron", "--torch_dtype", "float32"], "sft")
    config = {
        "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4, "vocab_size": 8192,
    }  # fmt: skip
    run, shape = backend.run({}, 1), shape_of(config, "x")
    kept = [
        backend.activations(run, layer_sizes(shape, ProcessLayout(), work, with_experts=False))
        for work in (
            Workload(1, 128, False, 4.0, adapted=False, on_cpu=True),
            Workload(1, 128, False, 4.0, adapted=True, on_cpu=True),
            Workload(1, 128, False, 4.0, adapted=True, on_cpu=True, drops=True),
        )
    ]
    # Frozen norms keep nothing for gradients of their own; products that see copies alone keep no inputs.
    normalised, entering = 2 * 1 + 1.5, 2 * 1 + 3
    assert kept == pytest.approx(
        [4 * 256 * tensors + 4 * 4 for tensors in (28, 28 - normalised, 28 - normalised - entering)]
    )
