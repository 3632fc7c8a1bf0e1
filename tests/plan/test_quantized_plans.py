"""Plans of QLoRA and of recomputed layers, compared with models that were built and passed through."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed

from swift.config.sections import ModelSection
from swift.contracts import ProcessLayout, Topology
from swift.errors import ModelError
from swift.models.build import build_view, decoder_blocks
from swift.models.quantize import is_quantised
from swift.models.source import open_source
from swift.planning import PlannedBackend, model_config, planned_backends
from swift_plan.memory import Activations, StagesOf
from swift_plan.shape import ModelShape, shape_of
from swift_plan.tracing import Trace
from swift_plan.workload import TrainedCount, Workload
from swift_testing.subjects import write_model

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DENSE_FIRST = {**MIXTURE, "mlp_only_layers": [0]}
LATENT = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
}  # fmt: skip
MIDDLE = {
    "model_type": "qwen3", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip
TUNERS = {"full": ["full"], "lora": ["lora"], "qlora": ["qlora"]}


def _backend(*words: str, model: str = "x", dtype: str = "bfloat16") -> PlannedBackend:
    typed_words = ["--model", model, "--backend", "torch", "--torch_dtype", dtype, "--train_type", *words]
    return planned_backends(typed_words, "sft")[0][0]


def _shape(folder: Path) -> ModelShape:
    return shape_of(model_config(str(folder)), str(folder))


def _built(backend: PlannedBackend, folder: Path, **train: Any) -> Any:
    requested = backend.run({}, 1, **train)
    run = requested.opened(Topology(requested.world, 0, 1)).prepared(0, lambda _: 0.0)
    return build_view(run, open_source(ModelSection(path=str(folder)), say=lambda _: None)).train()


def _bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a model's frozen weights, with the scales of those that are quantized."""
    frozen = [each for each in model.parameters() if not each.requires_grad]
    states = [each.quant_state for each in frozen if hasattr(each, "quant_state")]
    for module in model.modules():
        states += [state for scales in getattr(module, "expert_scales", {}).values() for state in scales.states]
    scales = [each.absmax for state in states for each in (state, *([state.state2] if state.nested else []))]
    return sum(each.nbytes for each in (*frozen, *scales))


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("Qwen3Moe", MIXTURE, ["qlora"]),
        ("Qwen3Moe", DENSE_FIRST, ["qlora", "--tuner.double_quant", "false"]),
        ("DeepseekV3", LATENT, ["qlora"]),
        ("Qwen3", {}, ["qlora"]),
    ],
)
def test_planned_weights_are_the_bytes_of_a_built_model(
    architecture: str, changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    write_model(tmp_path, architecture=architecture, **changes)
    backend = _backend(*words, model=str(tmp_path))
    work, shape = Workload.of(backend, processes=1, on_cpu=True), _shape(tmp_path)
    trained = TrainedCount(backend, shape, work)
    (stage,) = StagesOf(backend, shape, work).under(ProcessLayout())
    model = _built(backend, tmp_path).model
    assert stage.weights.frozen * stage.weights.frozen_bytes == pytest.approx(_bytes(model))
    planned = backend.memory(backend.run({}, 1), stage.weights)
    assert planned is not None
    assert planned["weights"] == pytest.approx(_bytes(model) + 4 * stage.weights.trained)
    quantized = sum(each.nbytes for each in model.parameters() if is_quantised(each))
    assert trained.quantized is not None
    assert 0 < quantized < trained.quantized.share.frozen


def test_quantized_plan_counts_experts_in_4_bits(tmp_path: Path) -> None:
    words = ["plan", "qwen3-30b-a3b", "--gpus", "1xH200", "--backend", "torch", "--train_type", "qlora"]
    ended = typed([*words, "--strict", "true", "--explain", "1"], tmp_path)
    assert ended.code == 0
    assert "bnb-nf4: 98 % of the frozen weights" in ended.output
    (weights,) = (line.split()[1] for line in ended.output.splitlines() if line.startswith("weights "))
    assert 15.0 < float(weights) < 18.0


def test_dense_experts_of_one_layer_are_planned(tmp_path: Path) -> None:
    """The experts of the layer that computes are dense for a moment; with plain LoRA they are weights."""
    write_model(tmp_path, architecture="Qwen3Moe", **MIXTURE)
    found = []
    for words in (["lora"], ["qlora"]):
        backend = _backend(*words, model=str(tmp_path))
        work, shape = Workload.of(backend, processes=1, on_cpu=True), _shape(tmp_path)
        found.append(Activations(backend, backend.run({}, 1), shape, work)._layers[False].fixed)
    assert found[1] - found[0] == 2 * 4 * 3 * shape.hidden * 32


def test_quantized_plan_of_an_unknown_model_is_refused() -> None:
    backend, config = _backend("qlora"), {**MIDDLE, "model_type": "of_somebody"}
    with pytest.raises(ModelError, match="transformers cannot build this model"):
        TrainedCount(backend, shape_of(config, "x"), Workload.of(backend, processes=1, on_cpu=True))


@pytest.mark.parametrize("words", TUNERS.values(), ids=TUNERS)
def test_recomputed_inputs_have_the_width_that_a_layer_gets(words: list[str], tmp_path: Path) -> None:
    """A hook on a decoder layer sees its input, and autograd what is kept of two layers until the backward pass."""
    pytest.importorskip("bitsandbytes")
    write_model(tmp_path)
    backend = _backend(*words, model=str(tmp_path))
    view = _built(backend, tmp_path, gradient_checkpointing=True)
    first, second = decoder_blocks(view.model)[:2]
    given: list[torch.Tensor] = []
    for block in (first, second):
        block.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        view.model(input_ids=torch.arange(10, 42)[None], use_cache=False)
    work, shape = Workload.of(backend, processes=1, on_cpu=True), _shape(tmp_path)
    counted = Activations(backend, backend.run({}, 1), shape, work)._layers[True].kept
    for each in given:
        assert counted == each.element_size() * shape.hidden
    # A recomputed layer keeps its input, and of what is in it nothing.
    assert given[1].untyped_storage().data_ptr() in saved
    assert {each.dtype for each in given} == {torch.float32 if words == ["full"] else torch.bfloat16}


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "dtype"), [*itertools.product(TUNERS, ["bfloat16", "float32"]), ("dropout", "bfloat16")]
)
def test_level_0_counts_what_level_1_traces(words: str, dtype: str) -> None:
    """The peak of a step of a model with 8 layers; full training is counted as before, a little above."""
    more = ["lora", "--lora_dropout", "0.1"] if words == "dropout" else TUNERS[words]
    backend = _backend(*more, dtype=dtype)
    work = replace(Workload.of(backend, processes=1, on_cpu=True), rows=1, length=192)
    shape, size = shape_of(MIDDLE, "x"), work.compute_bytes
    trace = Trace(backend, MIDDLE, length=192, compute_bytes=size, on_cpu=True)
    run = backend.run({}, 1)
    (stage,) = StagesOf(backend, shape, work).under(ProcessLayout())
    for recompute in (False, True):
        counted, traced = (Activations(backend, run, shape, work, each)._layers[recompute] for each in (None, trace))
        totals = [stage.layers * each.kept + each.transient + each.fixed / 192 for each in (counted, traced)]
        assert totals[0] == pytest.approx(totals[1], rel=0.25 if words == "full" else 0.05)
        assert counted.kept == pytest.approx(traced.kept, rel=0.02)
