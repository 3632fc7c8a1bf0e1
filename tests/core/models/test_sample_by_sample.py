"""Packed samples of models whose layers carry state, against plain transformers, sample by sample."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_types import tiny_model
from torch import nn

from swift.contracts import Need
from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment
from swift.errors import ModelError
from swift.models import sample_by_sample
from swift.models.attention import choose_attention
from swift.models.sample_by_sample import CHECKPOINTING, PackedRow
from swift.models.view import ViewModule

LENGTHS = (23, 49, 11, 57, 1, 2, 36, 31)
"""Beyond the tiny models' chunks and windows, and so different that they make several batches."""
BY_SAMPLE = {
    "bloom": {"self_attention"},
    "deepseek_v32": set(),
    "falcon_h1": {"mamba"},
    "gpt_oss": set(),
    "jamba": {"mamba"},
    "lfm2": {"conv"},
    "llama": set(),
    "mamba2": {"mixer"},
    "mvp": {"embed_positions", "self_attn"},
    "nemotron_h": {"mixer"},
    "qwen3_5_text": {"linear_attn"},
    "rwkv": {"attention", "feed_forward"},
    "xglm": {"self_attn"},
}
"""Types, and what is called sample by sample in them: nothing else, above all not what is right in a row."""


def samples(seed: int = 0) -> list[Encoded]:
    random = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(LENGTHS):
        weights = random.random(length).astype(np.float32)
        weights[0] = 0
        made.append(Encoded(number, (Segment(random.integers(3, 250, length).astype(np.int32), weights),)))
    return made


def view_of(model: Any) -> ViewModule:
    text = getattr(model, "base_model", model)
    config = getattr(text, "config", model.config)
    return ViewModule(model, attention=choose_attention("auto", config, flat=True, device="cpu", dtype=torch.float32))


def packed_loss(view: ViewModule, batch: MicroBatch) -> torch.Tensor:
    logps = view(batch, {Need.TOKEN_LOGPS}).token_logps
    assert logps is not None
    return -(logps * batch.weights).sum()


def plain_loss(model: Any, each: list[Encoded]) -> torch.Tensor:
    total = torch.zeros(())
    for sample in each:
        (segment,) = sample.segments
        ids = torch.from_numpy(segment.input_ids.astype(np.int64))[None]
        logps = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        total = total - (logps * torch.from_numpy(segment.weights)[1:]).sum()
    return total


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return found


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    norm = torch.stack([each.norm() for each in expected.values()]).norm()
    for name, each in found.items():
        assert (each - expected[name]).norm() <= 1e-5 * norm, name


@pytest.mark.parametrize("name", BY_SAMPLE)
def test_packed_loss_and_gradients_equal_plain_ones(name: str) -> None:
    """Loss to 1e-5, gradients to 1e-5 of their norm; modules that keep samples apart are left alone."""
    model = tiny_model(name)
    reference = copy.deepcopy(model)
    view = view_of(model)
    names = {path.rpartition(".")[2] for path, module in model.named_modules() if module in view.by_sample}
    assert names == BY_SAMPLE[name]
    assert all(each in view.attention.reason for each in names)
    assert_learns_like(reference, view)


def assert_learns_like(reference: torch.nn.Module, view: ViewModule) -> None:
    """Compare the loss and the gradients of packed samples with those of each sample alone."""
    expected = plain_loss(reference, samples())
    expected.backward()
    loss = packed_loss(view, collate(samples(), flat=True, pad_to_multiple=8))
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_equal(gradients(view.model), gradients(reference))


def test_packed_lora_of_a_hybrid_equals_plain_lora() -> None:
    """Adapters inside of modules that are called sample by sample learn from all samples."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["in_proj_qkv", "out_proj", "q_proj"])
    model = get_peft_model(tiny_model("qwen3_5_text"), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    reference = copy.deepcopy(model)
    view = view_of(model)
    assert_learns_like(reference, view)


def test_recomputation_knows_the_samples_of_its_own_row() -> None:
    """Two forward passes, then two backward passes: each block is computed again as it was, not as the last row."""
    model = tiny_model("qwen3_5_text")
    view = view_of(model)
    batches = [collate(samples(), flat=True), collate(samples(1)[::-1], flat=True)]
    sum(packed_loss(view, batch) for batch in batches).backward()  # type: ignore[union-attr]  # a sum of tensors
    expected = gradients(model)
    model.gradient_checkpointing_enable(CHECKPOINTING)
    model.train()
    sum(packed_loss(view, batch) for batch in batches).backward()  # type: ignore[union-attr]  # a sum of tensors
    assert_equal(gradients(model), expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_without_its_row_is_refused(reentrant: bool) -> None:
    model = tiny_model("lfm2")
    view = view_of(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    model.enable_input_require_grads()
    loss = packed_loss(view, collate(samples(), flat=True))
    with pytest.raises(ModelError, match="--gradient_checkpointing false"):
        loss.backward()


def test_generation_sees_no_samples() -> None:
    """Outside of a packed row, modules compute as they always do."""
    model = tiny_model("lfm2")
    prompt = torch.arange(5, 25).view(2, 10)
    expected = model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None)
    view_of(model)
    assert torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None), expected)


def test_batches_hold_each_token_once() -> None:
    """Samples of similar lengths are computed together, and every token is found where it was computed."""
    row = PackedRow(LENGTHS)
    batches, back = row.batches(torch.device("cpu"))
    assert 1 < len(batches) < len(LENGTHS)
    assert sum(len(batch) for batch in batches) == len(LENGTHS)
    together = torch.cat([batch.flatten() for batch in batches])
    assert torch.equal(together[back], torch.arange(sum(LENGTHS)))
    assert together.numel() < 1.3 * sum(LENGTHS)


def _change_mixer(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    forward = Qwen3_5GatedDeltaNet.forward
    monkeypatch.setattr(Qwen3_5GatedDeltaNet, "forward", lambda self, *a, **k: change(forward(self, *a, **k)))
    return tiny_model("qwen3_5_text")


def test_modules_that_see_padding_get_one_sample_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixer that scales what is longer than some length is not computed in padded batches."""
    model = _change_mixer(monkeypatch, lambda output: output * (1.5 if output.shape[1] > 33 else 1.0))
    reference = copy.deepcopy(model)
    expected = plain_loss(reference, samples())
    loss = packed_loss(view_of(model), collate(samples(), flat=True, pad_to_multiple=8))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_unknown_layers_in_which_nothing_mixes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new type of layer may mix samples beyond a limit that has another name."""
    model = tiny_model("qwen3_5_text")
    monkeypatch.setattr("swift.models.view.mixing_layers", lambda _: ["new_attention"])
    with pytest.raises(ModelError, match="has new_attention layers"):
        view_of(model)


def test_calls_with_unknown_tokens_are_refused() -> None:
    """An argument that no probe has shown cannot be cut."""
    model = tiny_model("lfm2")
    view = view_of(model)
    mixer: Any = view.by_sample[0]
    hidden = torch.randn(1, 10, model.config.hidden_size)
    with PackedRow((4, 6)), pytest.raises(ModelError, match="with seq_idx"):
        mixer(hidden, seq_idx=torch.ones(1, 10))


def test_neftune_of_a_decoder_called_by_sample_is_refused() -> None:
    view = view_of(tiny_model("bart"))
    assert view.by_sample
    with pytest.raises(ModelError, match="NEFTune"):
        view.add_neftune(5.0)


def test_kinds_have_no_numbers() -> None:
    assert sample_by_sample.kind_of("layers.12.mixer", nn.Linear(1, 1)) == ("layers.#.mixer", "Linear")
