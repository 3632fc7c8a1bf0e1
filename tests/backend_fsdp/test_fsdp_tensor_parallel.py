"""Tensor parallel on FSDP: models of every kind of cut train as plain transformers, and a wrong cut is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiers import tiered
from tiny_runs import Trained, run_training
from tiny_types import tiny_model, write_tiny
from torch.distributed.device_mesh import init_device_mesh
from type_cells import COMMON, LORA, ROWS, Cell, Subject, preload, verdicts

from swift.models.shrunk import shrunk_model
from swift.models.tp_derive import derived_plans
from swift.models.tp_spec import own_plan

TP = {"parallel.tp": 2}
CELLS = {
    "TP 2": Cell("FSDP2, TP 2", TP, 2, "fsdp"),
    "LoRA": Cell("LoRA", {**LORA, **TP, "checkpoint.save_last": True}, 2, "fsdp"),
}
TYPES = {
    "mixtral": "stacked experts, two matrices packed in one",
    "phi3": "fused matrices, gathered before they are split",
    "phi4_multimodal": "an encoder that rows of text never reach, and accumulated gradients",
    "deepseek_v3": "latent attention, shared experts",
    "gpt_oss": "no plan: interleaved experts with biases, sinks in whole attention",
    "bloom": "no plan, and attention that counts its heads: MLPs alone",
}
QUICK = ("TP 2, mixtral",)
KINDS = {f"{cell}, {name}": (cell, name) for cell in CELLS for name in TYPES}


@pytest.mark.parametrize("kind", tiered(KINDS, QUICK))
def test_type_trains_under_tp_as_plain(kind: str, tmp_path: Path) -> None:
    """Losses and gradient norms are those of one process of plain transformers, or of PEFT."""
    cell, name = KINDS[kind]
    (found,) = verdicts(CELLS[cell], [Subject(name, tmp_path)])
    assert found.result == "equal", f"{name}: {found}"


@pytest.mark.full
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_resume_on_torch_and_back(name: str, tmp_path: Path) -> None:
    """Two steps under TP, two on torch, two under TP and FSDP: losses and weights are those of six steps on torch."""
    model = write_tiny(name, tmp_path / "model")
    (whole,) = succeeded(on_processes(1, partial(_train, model, tmp_path, "whole", 6, None, {}))[0])
    preload("fsdp")
    resume = None
    for steps, processes, settings in ((2, 2, TP), (4, 1, {}), (6, 4, TP)):
        job = partial(_train, model, tmp_path, "parts", steps, resume, settings)
        run = succeeded(on_processes(processes, job)[0])[0]
        resume = str(run.folder)
    assert run.losses == pytest.approx(whole.losses, rel=1e-4)
    weights, expected = (_weights(tmp_path / f"{name}-hf-6") for name in ("parts", "whole"))
    assert weights.keys() == expected.keys()
    for tensor, values in expected.items():
        assert torch.allclose(weights[tensor], values, atol=1e-4), tensor


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: values for file in folder.glob("*.safetensors") for name, values in load_file(file).items()}


def _train(model: Path, output: Path, name: str, steps: int, resume: str | None, layout: Mapping[str, Any]) -> Trained:
    settings = {
        **COMMON,
        **layout,
        "backend.name": "fsdp" if layout else "torch",
        "train.max_steps": steps,
        "optim.schedule": "constant",
        "checkpoint.save_last": True,
        "checkpoint.resume": resume,
        "export.to": "hf",
        "export.out": str(output / f"{name}-hf-{steps}"),
        "logging.run_name": name,
    }
    return run_training(model, output, ROWS, settings)


WRONG: dict[str, tuple[str, Callable[[dict[str, str]], Any]]] = {
    "norms of heads are whole": ("qwen3", lambda plan: [plan.pop(f"layers.*.self_attn.{each}_norm") for each in "qk"]),
    "keys that heads share": ("deepseek_v2", lambda plan: plan.pop("layers.*.self_attn.kv_a_proj_with_mqa")),
    "packed matrices cut as one": (
        "mixtral", lambda plan: plan.update({"layers.*.mlp.experts.gate_up_proj": "colwise"})
    ),
    "outputs that are not added up": ("mixtral", lambda plan: plan.update({"layers.*.self_attn.v_proj": "rowwise"})),
}  # fmt: skip
"""Mistakes in plans; the first two change gradients alone."""


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_plan_is_found_on_small_copy(wrong: str) -> None:
    """The model's own plan holds for a small copy, and one with a mistake does not."""
    name, spoil = WRONG[wrong]
    preload("fsdp")
    for found in succeeded(on_processes(2, partial(_held, name, spoil))[0]):
        assert found == [True, False]


def _held(name: str, spoil: Callable[[dict[str, str]], Any]) -> list[bool]:
    with _probe(name) as (probe, model):
        wrong = dict(own_plan(model))
        spoil(wrong)
        return [probe.holds(own_plan(model)), probe.holds(wrong)]


def test_derived_plans_hold_one_by_one() -> None:
    """Of BLOOM, whose attention counts all heads, MLPs can be cut; of OPT, attention too."""
    preload("fsdp")
    held = succeeded(on_processes(2, partial(_derived, "bloom"), partial(_derived, "opt"))[0])[0]
    assert held == {"h.*.self_attention.query_key_value": False, "h.*.mlp.dense_h_to_4h": True}


def _derived(name: str) -> dict[str, bool]:
    with _probe(name) as (probe, model):
        return {next(iter(plan)): probe.holds(plan) for plan in derived_plans(model)}


@contextmanager
def _probe(name: str) -> Iterator[tuple[Any, Any]]:
    from swift_backend_fsdp.tensor_parallel import apply_spec
    from swift_backend_fsdp.tensor_parallel_check import PlanCheck

    dist.init_process_group("gloo")
    model = tiny_model(name)
    small = shrunk_model(type(model.get_decoder()), model.config, ways=2)
    assert small is not None
    try:
        yield PlanCheck(small, init_device_mesh("cpu", (2,)), apply_spec), model
    finally:
        dist.destroy_process_group()


def test_small_copy_can_be_divided() -> None:
    """A copy for four processes has four heads of keys too, and a width of four parts, whatever dividing leaves."""
    model = tiny_model("llama")
    model.config.intermediate_size = 90
    small = shrunk_model(type(model.get_decoder()), model.config, ways=4)
    assert small.config.num_attention_heads == small.config.num_key_value_heads == 4
    assert small.config.intermediate_size == 92
