"""QLoRA under ZeRO 3: packed weights are divided among processes bit for bit, and train as on one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from against_torch import COMMON, LORA, MOE, ROWS, WIDE, Pair, assert_equal, run_pairs
from processes import on_processes, succeeded
from tiny_runs import Trained, run_training

from swift.config.sections import ModelSection, TunerSection
from swift.models.build import meta_model
from swift.models.quantize import is_quantised, quantize_model
from swift.models.source import open_source
from swift_testing.subjects import write_model

bitsandbytes = pytest.importorskip("bitsandbytes")
pytestmark = pytest.mark.usefixtures("deepspeed_on_cpu")

NF4 = {**LORA, "tuner.quantize": "bnb-nf4"}
ALL_CUT = {"stage": 3, "stage3_param_persistence_threshold": 0}
"""Without this, DeepSpeed would keep such small weights whole."""


def zero3(**keys: Any) -> dict[str, Any]:
    return {"backend.config": {"zero_optimization": {**ALL_CUT, **keys}}}


@dataclass(frozen=True)
class Held:
    """What one process holds of a quantised weight when training is over."""

    bytes_here: int
    bytes_whole: int
    left_gathered: int
    same_bits: bool


def train_and_look(model: Path, output: Path, settings: dict[str, Any]) -> tuple[Trained, dict[str, Held]]:
    """Train, and look at the weights before DeepSpeed is taken apart."""
    from deepspeed import zero

    from swift_backend_deepspeed import topology

    held: dict[str, Held] = {}
    take_down = topology.teardown

    def look(run: Any) -> None:
        source = open_source(ModelSection(path=str(model)), say=lambda _: None)
        section, dtype = TunerSection(quantize="bnb-nf4"), getattr(torch, settings.get("model.dtype", "float32"))
        expected = {
            projection(name): each
            for name, each in weights(quantize_model(meta_model(source, dtype), source, section, "cpu"))
        }
        (engine,) = topology.Session.of(run).engines
        for name, weight in weights(engine.module):
            whole, left = expected[projection(name)], weight.numel()
            with zero.GatheredParameters([weight]):
                same = torch.equal(bits(weight), bits(whole))
            here = weight.ds_tensor
            held[name] = Held(here.numel() * here.element_size(), whole.numel() * whole.element_size(), left, same)
        take_down(run)

    topology.teardown = look
    try:
        return run_training(model, output, ROWS, {**COMMON, **settings, "backend.name": "deepspeed"}), held
    finally:
        topology.teardown = take_down


def weights(model: torch.nn.Module) -> list[tuple[str, Any]]:
    return [(name, each) for name, each in model.named_parameters() if is_quantised(each)]


def projection(name: str) -> tuple[str, str, str]:
    """The layer's number, and the names of the projection and its parent."""
    parts = name.replace(".base_layer", "").split(".")
    return parts[-4], parts[-3], parts[-2]


def bits(weight: torch.Tensor) -> torch.Tensor:
    return weight.data.contiguous().view(torch.uint8)


def test_packed_weights_are_sharded_and_training_is_bit_equal(tmp_path: Path) -> None:
    """Each of two processes holds half of the packed weights and training changes no bit."""
    model = write_model(tmp_path / "wide", num_hidden_layers=1, **WIDE)
    settings = {**NF4, **zero3(), "model.dtype": "bfloat16", "logging.run_name": "two"}
    (answers,) = on_processes(2, partial(train_and_look, model, tmp_path, settings))
    for trained, held in succeeded(answers):
        assert trained.losses[-1] < trained.losses[0]
        assert len(held) == 7
        for name, each in held.items():
            assert each.same_bits, name
            assert each.left_gathered == 0, name
            assert each.bytes_here == each.bytes_whole // 2, name


DENSE: Any = ("Qwen3", WIDE)
MIXTURE: Any = ("Qwen3Moe", {**WIDE, **MOE})
VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "nf4": ({**NF4, **zero3()}, 2),
    "nf4 on one process": ({**NF4, **zero3()}, 1),
    "int8": ({**LORA, "tuner.quantize": "bnb-int8", **zero3()}, 2),
    "nf4, recomputed, on the cpu": (
        {**NF4, **zero3(offload_param={"device": "cpu"}), "train.gradient_checkpointing": True}, 2,
    ),
    "fp4 with plain scales, and the head trained": (
        {**LORA, "tuner.quantize": "bnb-fp4", "tuner.double_quant": False, "tuner.modules_to_save": ["lm_head"],
         **zero3()}, 2,
    ),
    "experts, nf4": ({**NF4, **zero3()}, 2),
    "experts, int8, recomputed": (
        {**LORA, "tuner.quantize": "bnb-int8", "train.gradient_checkpointing": True, **zero3()}, 2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    chosen = {
        name: Pair(*(MIXTURE if name.startswith("experts") else DENSE), settings, processes=size)
        for name, (settings, size) in VARIANTS.items()
    }
    return run_pairs(tmp_path_factory.mktemp("variants"), chosen, "deepspeed")


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_packed_weights_give_the_numbers_of_one_process_of_torch(numbers: Any, name: str) -> None:
    # bitsandbytes rounds what 8-bit layers read in an evaluation to 8 bits, so that a last digit may be a step.
    assert_equal(numbers[name], of_eval=1e-4 if "int8" in name else 1e-5)


@pytest.mark.full
def test_a_run_resumes_on_torch_and_a_run_of_torch_resumes_here(tmp_path: Path) -> None:
    model = write_model(tmp_path / "wide", num_hidden_layers=1, **WIDE)
    here, there = {**zero3(), "backend.name": "deepspeed"}, {"backend.name": "torch"}

    def job(name: str, backend: dict[str, Any], **settings: Any) -> Any:
        chosen = {**COMMON, **NF4, "optim.warmup_steps": 0, "optim.schedule": "constant", **backend, **settings}
        return partial(run_training, model, tmp_path, ROWS, {**chosen, "logging.run_name": name})

    def first(name: str, backend: dict[str, Any]) -> Any:
        return job(name, backend, **{"train.max_steps": 2, "checkpoint.save_last": True})

    def rest(name: str, backend: dict[str, Any], before: str) -> Any:
        return job(name, backend, **{"checkpoint.resume": str(tmp_path / model.name / before / "checkpoint-2")})

    (whole,), (on_torch,) = on_processes(1, job("whole", there), first("torch-first", there))
    (here_first, *_), (here_rest, *_) = on_processes(
        2, first("zero-first", here), rest("zero-rest", here, "torch-first"), fresh=True
    )
    ((torch_rest,),) = on_processes(1, rest("torch-rest", there, "zero-first"))
    expected, *parts = succeeded([whole, on_torch, here_first, here_rest, torch_rest])
    for begun in parts[:2]:  # a resumed run goes on in the folder of its first half
        assert begun.losses == pytest.approx(expected.losses, rel=1e-5)
        assert begun.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)


def packed_layers() -> Iterator[list[Any]]:
    """Three layers of 4 bits, then three of 8: two alike, and one of other elements with the same scales."""
    nn = bitsandbytes.nn
    torch.manual_seed(0)
    matrix = torch.randn(64, 128)
    layers: dict[str, list[Any]] = {"4": [], "8": []}
    for weight in (matrix, matrix, -matrix):
        layer: Any = nn.Linear4bit(128, 64, bias=False, quant_type="nf4", quant_storage=torch.float32, device="meta")
        made = nn.Params4bit(weight, quant_type="nf4", quant_storage=torch.float32, module=layer)
        layer.weight = made.to("cpu")
        layer.support_avx512bf16_for_cpu = False
        layers["4"].append(layer)
        layer = nn.Linear8bitLt(128, 64, bias=False, has_fp16_weights=False, device="meta")
        layer.weight = nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False).to("cpu")
        layers["8"].append(layer)
    yield from layers.values()


def test_backward_uses_currently_gathered_weights() -> None:
    """The backward pass uses what is gathered then, not what the forward pass used."""
    from swift_backend_deepspeed.packed import multiply_gathered

    for layer, plain, other in packed_layers():
        inputs = torch.randn(3, 128, requires_grad=True)
        others = other.weight.data
        (gradient_of_other,) = torch.autograd.grad(other(inputs).sum(), inputs)
        multiply_gathered(layer)
        product = layer(inputs)
        torch.testing.assert_close(product, plain(inputs))
        layer.weight.data = others
        (gradient,) = torch.autograd.grad(product.sum(), inputs)
        torch.testing.assert_close(gradient, gradient_of_other)
