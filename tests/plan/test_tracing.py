"""Memory of a step without values, against what autograd is seen to keep and to make of real tensors."""

from __future__ import annotations

import pytest
import torch

from swift.planning import planned_backends
from swift_plan.memory import ProcessLayout, layer_sizes, transformers_layer
from swift_plan.shape import shape_of
from swift_plan.tracing import LiveBytes, Trace
from swift_plan.workload import Workload

_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 512, "tie_word_embeddings": False,
}  # fmt: skip


def _counted(*, adapted: bool = False, drops: bool = False) -> float:
    work = Workload(1, 48, False, 4.0, 4.0, adapted=adapted, on_cpu=True, drops=drops)
    return transformers_layer(layer_sizes(shape_of(_CONFIG, "x"), ProcessLayout(), work, with_experts=False))


def _trace(*words: str) -> Trace:
    (backend,), _ = planned_backends(["--model", "x", "--backend", "torch", "--torch_dtype", "float32", *words], "sft")
    return Trace(backend, _CONFIG, length=48, compute_bytes=4.0, on_cpu=True)


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
def test_a_layer_keeps_what_the_formula_says_and_recomputed_only_its_input() -> None:
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
def test_the_loss_takes_its_logits_once_and_the_gradient_of_the_head() -> None:
    trace = _trace("--train_type", "full")
    logits, head, states = 4 * 96 * 512, 4 * 64 * 512, 4 * 96 * 64
    assert trace.loss(96) == pytest.approx(logits + head + states, rel=0.05)
    assert trace.loss(96, cut=2) == pytest.approx((logits + head) / 2 + states, rel=0.05)
