"""Memory of a step without values, against what autograd is seen to keep and to make of real tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift.planning import planned_backends
from swift_plan.memory import Activations, ProcessLayout, layer_sizes, transformers_layer
from swift_plan.shape import shape_of
from swift_plan.tracing import LiveBytes, Trace
from swift_plan.workload import Workload

_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 512, "tie_word_embeddings": False,
}  # fmt: skip


_BERT = {
    "model_type": "bert", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
    "num_hidden_layers": 3, "vocab_size": 512,
}  # fmt: skip


def _counted(*, adapted: bool = False, drops: bool = False) -> float:
    work = Workload(1, 48, False, 4.0, adapted=adapted, on_cpu=True, drops=drops)
    return transformers_layer(layer_sizes(shape_of(_CONFIG, "x"), ProcessLayout(), work, with_experts=False))


def _trace(*words: str) -> Trace:
    size = 2.0 if "bfloat16" in words else 4.0
    dtype = () if "bfloat16" in words else ("--torch_dtype", "float32")
    (backend,), _ = planned_backends(["--model", "x", "--backend", "torch", *dtype, *words], "sft")
    return Trace(backend, _CONFIG, length=48, compute_bytes=size, on_cpu=True)


def test_bytes_are_counted_while_something_holds_them() -> None:
    """A kibibyte is there, a second one, none of them: as Python's own references say."""
    with LiveBytes() as live:
        one = torch.zeros(256)
        assert live.now == 1024
        view = one[:2]
        two = one + 1
        assert live.now == 2048
        del one, two
        assert live.now == 1024
        del view
    assert (live.now, live.peak) == (0, 2048)


@pytest.mark.full
def test_layer_activations_match_formula() -> None:
    """A layer keeps what the formula says and recomputed only its input."""
    trace = _trace("--train_type", "full")
    assert trace.layer(recompute=False).kept == pytest.approx(_counted(), rel=0.02)
    again = trace.layer(recompute=True)
    assert again.kept == 4 * 64
    assert again.transient >= again.whole
    # What was computed again goes as the backward pass goes: no more is there at once than without recomputing.
    assert again.transient <= again.whole + trace.layer(recompute=False).transient + 4 * 64


@pytest.mark.full
def test_adapters_that_drop_inputs_keep_them_once_more() -> None:
    """A frozen matrix needs no input for its own gradient; an adapter that drops has a copy of it, and a mask."""
    plain = _trace("--train_type", "lora", "--lora_dropout", "0").layer(recompute=False).kept
    drops = _trace("--train_type", "lora", "--lora_dropout", "0.1").layer(recompute=False).kept
    copies = 2 * 4 * (6 * 64 + 160)  # kernels for the CPU draw numbers, not bits
    ranks = 4 * 7 * 8
    assert plain == pytest.approx(_counted(adapted=True) + ranks, rel=0.03)
    assert drops == pytest.approx(_counted(adapted=True, drops=True) + copies + ranks, rel=0.03)


@pytest.mark.full
@pytest.mark.parametrize("drops", [0.0, 0.1])
def test_encoder_activations_match_autograd(drops: float) -> None:
    """A layer of an encoder keeps what autograd saves of it, also where the model drops values; there are no logits."""
    config = {**_BERT, "hidden_dropout_prob": drops, "attention_probs_dropout_prob": drops}
    words = ["--model", "x", "--backend", "torch", "--torch_dtype", "float32", "--train_type", "full"]
    (backend,), _ = planned_backends([*words, "--task_type", "embedding"], "sft")
    trace = Trace(backend, config, length=48, compute_bytes=4.0, on_cpu=True)
    one, two = (_saved_by_an_encoder({**config, "num_hidden_layers": blocks}) for blocks in (1, 2))
    assert trace.layer(recompute=False).kept * 48 == pytest.approx(two - one, rel=0.01)
    shape, run = shape_of(config, "x", "embedding"), backend.run({}, 1)
    work = Workload(1, 48, False, 4.0, adapted=False, on_cpu=True)
    assert Activations(backend, run, shape, work, trace)._loss(48) < 4 * 48 * 512


def _saved_by_an_encoder(config: dict[str, Any]) -> int:
    """Return the bytes that autograd saves in a forward pass, but for weights."""
    from transformers import AutoConfig, AutoModel

    model = AutoModel.from_config(AutoConfig.for_model(**config), add_pooling_layer=False).train()
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        model(torch.zeros(1, 48, dtype=torch.long))
    return sum(each.untyped_storage().nbytes() for place, each in saved.items() if place not in weights)


@pytest.mark.full
def test_loss_keeps_logits_once_and_head_gradient() -> None:
    """The loss takes its logits once and the gradient of the head."""
    trace = _trace("--train_type", "full")
    logits, head, states = 4 * 96 * 512, 4 * 64 * 512, 4 * 96 * 64
    assert trace.loss(96) == pytest.approx(logits + head + states, rel=0.05)
    assert trace.loss(96, cut=2) == pytest.approx((logits + head) / 2 + states, rel=0.05)


@pytest.mark.full
def test_long_loss_is_traced_in_few_chunks() -> None:
    """Of a long loss few chunks are traced and the rest adds as much."""
    (backend,), _ = planned_backends(["--model", "x", "--backend", "torch", "--train_type", "full"], "sft")
    config = {**_CONFIG, "vocab_size": 128_256}
    trace = Trace(backend, config, length=48, compute_bytes=2.0, on_cpu=False)
    assert trace.loss(6000) == trace._loss(6000, 128_256, 523)
    assert trace.loss(12_000) - trace.loss(9000) == trace.loss(9000) - trace.loss(6000) > 0


@pytest.mark.full
@pytest.mark.parametrize("words", [("full",), ("lora", "--lora_dropout", "0")], ids=["full", "lora"])
def test_compiled_layer_activations_match_autograd(words: tuple[str, ...]) -> None:
    """Beside weights and their copies: two lengths leave them out."""
    found = _trace("--train_type", *words, "--torch_dtype", "bfloat16", "--train.compile", "true")
    plain = _trace("--train_type", *words, "--torch_dtype", "bfloat16")
    kept = found.layer(recompute=False).kept
    saved = [_saved_by_a_compiled_block(length, words) for length in (48, 24)]
    assert kept == pytest.approx((saved[0] - saved[1]) / 24, rel=0.05)
    assert kept < 0.8 * plain.layer(recompute=False).kept
    assert found.layer(recompute=True).kept == plain.layer(recompute=True).kept
    assert found.layer(recompute=True).whole == kept


def _saved_by_a_compiled_block(length: int, words: tuple[str, ...]) -> int:
    """Compile a real block, and return the bytes that autograd saves of it, its input among them."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    model: Any = LlamaForCausalLM(LlamaConfig(**{**_CONFIG, "num_hidden_layers": 1}))
    if words[0] == "lora":
        model = get_peft_model(model.to(torch.bfloat16), LoraConfig(r=8, target_modules="all-linear"))
    trunk = model.get_base_model().model if words[0] == "lora" else model.model
    states = torch.randn(1, length, 64, dtype=trunk.embed_tokens.weight.dtype, requires_grad=True)
    positions = trunk.rotary_emb(states, torch.arange(length)[None])
    rotations = {each.untyped_storage().data_ptr() for each in positions}  # which all blocks share
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        held.append(tensor)
        return tensor

    held: list[torch.Tensor] = []
    block = torch.compile(trunk.layers[0].train(), backend="aot_eager_decomp_partition", dynamic=False)
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        output = block(states, position_embeddings=positions, attention_mask=None)
    whole = output[0] if isinstance(output, tuple) else output
    left_out = weights | rotations | {whole.untyped_storage().data_ptr()}
    return sum(size for place, size in saved.items() if place not in left_out)
