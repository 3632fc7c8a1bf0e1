"""Expert parallel on FSDP2, against plain transformers, sample by sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import type_cells
from processes import on_processes, succeeded
from safetensors.torch import load_file, save_file
from tiny_runs import run_training
from tiny_types import NOT_MADE, tiny_config, types, write_tiny
from type_cells import LORA, ROWS, Cell, Subject, slug, verdicts

from swift.errors import UnsupportedLayout
from swift.models.sizes import experts_of
from swift.planning import planned_backends
from swift_plan.memory import StagesOf
from swift_plan.shape import shape_of
from swift_plan.workload import Workload

EP = {"parallel.ep": 2, "backend.name": "fsdp"}
LAYOUTS = {
    "experts alone": Cell("ep", EP, 2, "fsdp"),
    # The function whose output does not depend on anything where no token comes.
    "one after the other": Cell("ep eager", {**EP, "model.experts_impl": "eager"}, 2, "fsdp"),
    "packed, accumulated": Cell(
        "ep packed",
        {
            **EP,
            "data.packing": True,
            "data.max_length": 200,
            "train.micro_batch": 1,
            "train.gradient_checkpointing": True,
        },
        2,
        "fsdp",
    ),
    "three experts over two": Cell("ep 2x2", {**EP, "train.micro_batch": 1}, 4, "fsdp"),
    "lora": Cell("LoRA", {**LORA, **EP, "checkpoint.save_last": True}, 2, "fsdp"),
}


def _starved(name: str, folder: Path) -> Path:
    """Write a model whose router sends all tokens to the last two experts: the first process has none of them."""
    write_tiny(name, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for key, bias in weights.items():
        if key.endswith("e_score_correction_bias"):
            bias[-2:] += 100.0
    save_file(weights, file, {"format": "pt"})
    return folder


def _uneven(name: str, folder: Path) -> Path:
    """Write a model of six experts, of which two that share a half of them cannot have as many each."""
    import tiny_types

    sizes = {**tiny_types.SIZES, "num_experts": 6}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_types, "SIZES", sizes)
        return write_tiny(name, folder)


@pytest.mark.parametrize(
    ("name", "layout", "write"),
    [
        ("gpt_oss", "experts alone", write_tiny),
        pytest.param("deepseek_v3", "one after the other", _starved, id="starved"),
        pytest.param("qwen3_moe", "packed, accumulated", write_tiny, marks=pytest.mark.full),
        pytest.param("qwen3_moe", "three experts over two", _uneven, marks=pytest.mark.full),
        pytest.param("qwen3_moe", "lora", write_tiny, marks=pytest.mark.full),
        pytest.param("nemotron_h", "experts alone", write_tiny, marks=pytest.mark.full),
    ],
)
def test_experts_train_as_in_one_process(
    name: str, layout: str, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradient norms of two steps are those of transformers alone, wherever the experts are."""
    monkeypatch.setattr(type_cells, "write_tiny", write)
    (verdict,) = verdicts(LAYOUTS[layout], [Subject(name, tmp_path)])
    assert verdict.result == "equal", verdict


def test_process_holds_its_experts_alone(tmp_path: Path) -> None:
    """Each process has other experts, and streams all of them, one after the other and bit by bit.

    What comes out of a layer's experts is no view: FSDP's hooks on it would be lost where models add to it in place.
    """
    model = write_tiny("qwen3_moe", tmp_path / "model")

    def look() -> tuple[list[tuple[int, ...]], int, bool, list[bool]]:
        from swift.parsing import config_from_mapping
        from swift.train.prepare import open_job

        parsed = config_from_mapping({"model.path": str(model), "tuner.kind": "full", "model.dtype": "float32", **EP})
        with open_job(parsed, rows=ROWS) as job:
            state: Any = job.state
            stacks = [tuple(each.local.shape) for each in state.parts if ".experts." in each.name]
            largest, views = [], []
            for name, module in state.model.named_modules():
                if name.endswith(".experts"):
                    module.register_forward_hook(lambda *given: views.append(given[2]._is_view()))
            state.root(None)
            state.root.reshard_all()
            written = load_file(model / "model.safetensors")
            reduce = torch.distributed.all_reduce

            def noted(tensor: torch.Tensor, **given: Any) -> Any:
                largest.append(tensor.numel())
                return reduce(tensor, **given)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.distributed, "all_reduce", noted)
                streamed = dict(job.hooks.swift_iter_weights(job.run, job.state))
            same = all(torch.equal(streamed[name], tensor) for name, tensor in written.items())
            return stacks, max(largest), same and streamed.keys() == written.keys(), views

    (answers,) = on_processes(2, look)
    for stacks, largest, same, views in succeeded(answers):
        assert {shape[0] for shape in stacks} == {2}
        assert largest == 32 * 64
        assert same
        assert views
        assert not any(views)


@pytest.mark.full
def test_plan_counts_what_a_process_holds(tmp_path: Path) -> None:
    """Experts are shared by fewer processes than all other weights: by two of four."""
    model = write_tiny("qwen3_moe", tmp_path / "model")
    settings = {"model.path": str(model), "tuner.kind": "full", "model.dtype": "float32", **EP}

    def held() -> int:
        from swift.parsing import config_from_mapping
        from swift.train.prepare import open_job

        with open_job(config_from_mapping(settings), rows=ROWS) as job:
            state: Any = job.state
            return sum(each.local.numel() * each.local.element_size() for each in state.parts)

    words = ["--model", str(model), "--backend", "fsdp", "--train_type", "full", "--torch_dtype", "float32"]
    planned = planned_backends(words, "sft")[0][0]
    run = planned.run({"ep": 2}, 4)
    work = Workload.of(planned, processes=4, on_cpu=True)
    shape = shape_of(json.loads((model / "config.json").read_text()), "tiny")
    (stage,) = StagesOf(planned, shape, work).under(planned.layout(run))
    told = planned.memory(run, stage.weights)
    assert told is not None
    (answers,) = on_processes(4, held)
    assert max(succeeded(answers)) == pytest.approx(told["weights"], rel=0.02)
    assert told["optimizer"] == pytest.approx(2 * told["weights"])


@pytest.mark.rare
def test_every_type_with_experts_is_listed(tmp_path: Path) -> None:
    """All mixtures of transformers train distributed, but for these, which are refused."""
    refused = {"doge", "jamba", "jetmoe", "llama4", "llama4_text", "longcat_flash"}
    mixtures = [name for name in types() if name not in NOT_MADE and experts_of(tiny_config(name).get_text_config())]
    subjects = [Subject(name, tmp_path / slug(name)) for name in mixtures]
    found = dict(zip(mixtures, verdicts(LAYOUTS["experts alone"], subjects), strict=True))
    others = {name: str(verdict) for name, verdict in found.items() if verdict.result != "equal"}
    assert {name: verdict.partition(":")[0] for name, verdict in others.items()} == dict.fromkeys(refused, "refused"), (
        others
    )
    assert len(found) >= 50


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("llama", EP, "distributes experts, and llama has none"),
        ("llama4_text", EP, "no experts that are stacked into one tensor per matrix"),
        ("longcat_flash", EP, "does not tell how many experts it has"),
        ("qwen3_moe", {**EP, "parallel.ep": 4}, "parallel.ep 4 does not divide the 2 processes"),
        ("qwen3_moe", {**EP, "parallel.tp": 2}, "does not combine parallel.tp 2 with parallel.ep 2"),
        ("qwen3_moe", {**EP, "backend.name": "torch"}, "The torch backend does not support parallel.ep 2"),
        ("qwen3_moe", {**EP, "backend.name": "deepspeed"}, "The deepspeed backend does not support parallel.ep 2"),
        ("qwen3_moe", {**EP, **LORA, "tuner.targets": ["q_proj", "gate_proj", "up_proj", "down_proj"]}, "has adapters"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_cannot_be_distributed_is_refused(name: str, settings: Any, reason: str, tmp_path: Path) -> None:
    model = write_tiny(name, tmp_path / "model")
    (answers,) = on_processes(2, lambda: run_training(model, tmp_path / "out", ROWS, settings))
    for answer in answers:
        assert isinstance(answer, UnsupportedLayout), answer
        assert reason in answer.message
        assert answer.hint
