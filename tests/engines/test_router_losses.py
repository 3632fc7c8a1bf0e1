"""Losses, load and biases of routers, compared with a plain loop over samples, on every backend and layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_torch import PlainTrainer, batches_of, conversation_tokens, load_model, response_logp
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiny_runs import Trained, conversations, run_training
from tiny_types import write_tiny
from transformers import AutoTokenizer
from type_cells import preload

ROWS = conversations(9, seed=3, lengths=[2, 11, 23, 31, 36, 49, 57, 64, 40])
AUX, Z, RATE = 0.5, 0.02, 0.05
SIZE, STEPS = 8, 3
"""Rows of a global batch: the second one is short, and leaves a process without rows."""
SETTINGS: dict[str, Any] = {
    "train.global_batch": SIZE,
    "train.micro_batch": 2,
    "train.max_steps": STEPS,
    "train.router_aux_loss": AUX,
    "train.router_z_loss": Z,
    "optim.eps": 1e-5,
    "optim.warmup_steps": 0,
    "data.padding_free": False,
}
PACKED = {"data.packing": True, "data.max_length": 4096, "train.global_batch": 1, "train.micro_batch": 1}
"""All rows in one pack."""
CHECKPOINTED = {"train.gradient_checkpointing": True}
TYPES = {"qwen3_moe": 0.0, "deepseek_v3": RATE}
"""Softmax; sigmoid in groups, with a bias. And the rate by which biases change."""


@dataclass(frozen=True)
class Layout:
    """A backend and what it does with a batch."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "torch"
    processes: int = 1


LAYOUTS = {
    "padded": Layout(),
    "alone": Layout({"train.micro_batch": 1, **CHECKPOINTED}),
    "padding-free": Layout({"data.padding_free": True}),
    "packed": Layout({**PACKED, **CHECKPOINTED}),
    "DDP": Layout(CHECKPOINTED, "torch", 2),
    "FSDP2": Layout(CHECKPOINTED, "fsdp", 2),
    "FSDP2, CP 2": Layout({"parallel.cp": 2}, "fsdp", 2),
    "FSDP2, Ulysses 2": Layout({"parallel.ulysses": 2, "data.padding_free": True}, "fsdp", 2),
    "FSDP2, TP 2": Layout({"parallel.tp": 2, **CHECKPOINTED}, "fsdp", 2),
    "FSDP2, EP 2": Layout({"parallel.ep": 2, **CHECKPOINTED}, "fsdp", 2),
    "FSDP2, EP 2, CP 2": Layout({"parallel.ep": 2, "parallel.cp": 2}, "fsdp", 2),
    "ZeRO 2": Layout({"backend.config": "zero2"}, "deepspeed", 2),
    "ZeRO 3": Layout({"backend.config": "zero3", **CHECKPOINTED}, "deepspeed", 2),
    "ZeRO 2, TP 2": Layout({"backend.config": "zero2", "parallel.tp": 2}, "deepspeed", 2),
    "Megatron": Layout({"data.padding_free": True}, "megatron"),
    "Megatron, TP 2": Layout({"parallel.tp": 2}, "megatron", 2),
    "Megatron, PP 2": Layout({"parallel.pp": 2, **CHECKPOINTED}, "megatron", 2),
    "Megatron, CP 2": Layout({"parallel.cp": 2, **CHECKPOINTED}, "megatron", 2),
    "Megatron, EP 2": Layout({"parallel.ep": 2, "data.padding_free": True, **CHECKPOINTED}, "megatron", 2),
}
ALONE = [name for name, layout in LAYOUTS.items() if layout == Layout(layout.settings)]
FORKED = [name for name in LAYOUTS if name not in ALONE]


@dataclass
class Expected:
    """What a plain loop gives for each step."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    balances: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    loads: list[torch.Tensor] = field(default_factory=list)
    """[layers, experts]"""
    biases: list[torch.Tensor] = field(default_factory=list)
    """Of each router, after the last step."""


def routed_by(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.endswith(("TopKRouter", "TopkRouter"))]


def plain(folder: Path, rate: float, size: int, *, frozen: bool = False) -> Expected:
    """Train with transformers alone, one sample after the other."""
    model: Any = load_model(folder).train()
    behind = AutoTokenizer.from_pretrained(folder)("\n").input_ids  # what the template ends with
    routers = routed_by(model)
    for router in routers if frozen else []:
        router.requires_grad_(False)
    routed: list[tuple[torch.Tensor, torch.Tensor]] = []
    for router in routers:
        router.register_forward_hook(lambda _module, _inputs, output: routed.append((output[0], output[2])))
    trainer = PlainTrainer(model, steps=STEPS, warmup=0, eps=1e-5)
    found = Expected()
    for batch in batches_of(conversation_tokens(folder, ROWS), size, STEPS):
        weight = sum(len(answer) for _, answer in batch)
        tokens = sum(len(prompt + answer + behind) for prompt, answer in batch)
        trainer.begin()
        loss = balance = square = 0.0
        load = torch.zeros(len(routers), routers[0].weight.shape[0])
        for prompt, answer in batch:
            loss += trainer.add(-response_logp(model, (prompt, answer)) / weight)
            routed.clear()
            model(input_ids=torch.tensor([prompt + answer + behind]), use_cache=False)
            one = sum(balance_of(logits, chosen.shape[1], len(routers)) for logits, chosen in routed)
            two = sum(logits.exp().sum(-1).log().square().sum() for logits, _ in routed) / len(routers)
            trainer.add((AUX * len(routed[0][0]) * one + Z * two) / tokens)
            balance += float(len(routed[0][0]) * one.detach()) / tokens
            square += float(two.detach()) / tokens
            for layer, (_, chosen) in zip(load, routed, strict=True):
                for expert in chosen.flatten():
                    layer[expert] += 1
        found.losses.append(loss)
        found.grad_norms.append(trainer.update())
        found.balances.append(balance)
        found.sizes.append(square)
        found.loads.append(load)
        for router, layer in zip(routers if rate else [], load, strict=False):
            router.e_score_correction_bias += rate * torch.sign(layer.mean() - layer)
    found.biases = [router.e_score_correction_bias.clone() for router in routers if rate]
    return found


def balance_of(logits: torch.Tensor, top_k: int, layers: int) -> torch.Tensor:
    """Equations 17 to 20 of DeepSeek-V3's report, of one sample and layer, as a share of the mean over layers."""
    scores = logits.softmax(-1) if layers == 4 else logits.sigmoid()  # Qwen3 has experts in all layers
    scores = scores / scores.sum(-1, keepdim=True)
    tokens, experts = scores.shape
    share = torch.zeros(experts)
    for token in scores:
        share[token.argsort(descending=True)[:top_k]] += experts / (top_k * tokens)
    return (share * scores.mean(0)).sum() / layers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_tiny(name, folder / name) for name in TYPES}


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> dict[tuple[str, bool], Expected]:
    return {
        (name, packed): plain(models[name], TYPES[name], len(ROWS) if packed else SIZE)
        for name in TYPES
        for packed in (False, True)
    }


def trained(models: dict[str, Path], output: Path, kind: str, layout: Layout, **more: Any) -> Trained:
    run = f"{layout.backend}-{abs(hash(str(layout.settings) + str(more)))}"
    settings = {**SETTINGS, "train.router_bias_rate": TYPES[kind], "backend.name": layout.backend}
    return run_training(models[kind], output, ROWS, {**settings, "logging.run_name": run, **layout.settings, **more})


def check(run: Trained, expected: Expected) -> None:
    lines = list(run.lines.values())
    assert run.losses == pytest.approx(expected.losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)
    assert [line["router_aux_loss"] for line in lines] == pytest.approx(expected.balances, rel=1e-5)
    assert [line["router_z_loss"] for line in lines] == pytest.approx(expected.sizes, rel=1e-5)
    for line, load in zip(lines, expected.loads, strict=True):
        experts = load.shape[1]
        share = load / load.sum(1, keepdim=True)
        assert line["expert_load/max"] == pytest.approx(float(share.max()) * experts, rel=1e-6)
        assert line["expert_load/unused"] == int((load == 0).sum())
        entropies = [-sum(float(p) * math.log(p) for p in layer if p) / math.log(experts) for layer in share]
        assert line["expert_load/entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-6)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ALONE)
def test_routers_match_plain_loop(
    models: dict[str, Path], expected: dict[tuple[str, bool], Expected], tmp_path: Path, kind: str, name: str
) -> None:
    """Losses, gradient norms, load and updated biases are those of a loop over samples, however these are laid out."""
    check(trained(models, tmp_path, kind, LAYOUTS[name]), expected[kind, name == "packed"])


@pytest.mark.full
@pytest.mark.parametrize("name", FORKED)
def test_routers_match_on_each_backend(
    models: dict[str, Path], expected: dict[tuple[str, bool], Expected], tmp_path: Path, name: str
) -> None:
    """Several processes have the numbers of the loop, one of them without a row in the second step."""
    layout = LAYOUTS[name]
    preload(layout.backend)
    jobs = [partial(trained, models, tmp_path, kind, layout) for kind in TYPES]
    for kind, results in zip(TYPES, on_processes(layout.processes, *jobs), strict=True):
        check(succeeded(results)[0], expected[kind, False])


FROZEN = {
    "torch": Layout(CHECKPOINTED, "torch", 2),
    "FSDP2": Layout({}, "fsdp", 2),
    "ZeRO 3": Layout({"backend.config": "zero3"}, "deepspeed", 2),
    "Megatron": Layout({"parallel.pp": 2}, "megatron", 2),
}


@pytest.mark.full
def test_frozen_routers_match_on_each_backend(models: dict[str, Path], tmp_path: Path) -> None:
    """All weights but those of routers are trained; losses of routers reach the layers before them."""
    wanted = plain(models["qwen3_moe"], 0.0, SIZE, frozen=True)
    for layout in FROZEN.values():
        preload(layout.backend)
        job = partial(trained, models, tmp_path, "qwen3_moe", layout, **{"tuner.freeze_router": True})
        check(succeeded(on_processes(layout.processes, job)[0])[0], wanted)


ADAPTERS = {"tuner.kind": "lora", "tuner.rank": 4, "tuner.dropout": 0.0, "optim.lr": 0.1, "optim.eps": 0.1}
ON_ATTENTION, ON_EXPERTS = ({"tuner.targets": ["o_proj", each]} for each in ("q_proj", "experts"))
ADAPTED = {
    "FSDP2, EP 2": (ON_ATTENTION, Layout({"parallel.ep": 2}, "fsdp", 2)),
    "FSDP2, TP 2": (ON_ATTENTION, Layout({"parallel.tp": 2}, "fsdp", 2)),
    "FSDP2": (ON_EXPERTS, Layout(CHECKPOINTED, "fsdp", 2)),
    "ZeRO 3": (ON_EXPERTS, Layout({"backend.config": "zero3"}, "deepspeed", 2)),
    "Megatron, EP 2": (ON_EXPERTS, Layout({"parallel.ep": 2}, "megatron", 2)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_match_those_of_one_process(models: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Losses of routers reach the adapters before them."""
    targets, layout = ADAPTED[name]
    preload(layout.backend)
    found = []
    for each in (Layout(), layout):
        job = partial(trained, models, tmp_path, "qwen3_moe", each, **ADAPTERS, **targets)
        found.append(succeeded(on_processes(each.processes, job)[0])[0])
    expected, run = found
    assert run.losses == pytest.approx(expected.losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)
    for loss in ("router_aux_loss", "router_z_loss"):
        logged, wanted = ([line[loss] for line in each.lines.values()] for each in (run, expected))
        assert logged == pytest.approx(wanted, rel=1e-5)


CHAIN: list[dict[str, Any]] = [
    {"backend.name": "torch"},
    {"backend.name": "fsdp"},
    {"backend.name": "deepspeed", "backend.config": "zero3"},
    {"backend.name": "megatron"},
]


@pytest.mark.full
def test_biases_are_saved_resumed_and_exported(
    models: dict[str, Path], expected: dict[tuple[str, bool], Expected], tmp_path: Path
) -> None:
    """Each step is made by another backend, from the checkpoint of the one before; the last one has all biases."""
    wanted = expected["deepseek_v3", False]
    for backend in CHAIN:
        preload(backend["backend.name"])
    for first in range(0, len(CHAIN), 2):
        start: Path | None = None
        for step in range(STEPS):
            changes = {**CHAIN[(first + step) % len(CHAIN)], "checkpoint.save_steps": 1}
            changes |= {"logging.run_name": f"{first}-{step}", "checkpoint.resume": start and str(start)}
            job = partial(trained, models, tmp_path, "deepseek_v3", Layout(), **changes)
            run = succeeded(on_processes(1, job)[0])[0]
            assert run.losses == pytest.approx(wanted.losses[step:], rel=1e-5)
            assert run.grad_norms == pytest.approx(wanted.grad_norms[step:], rel=1e-4)
            check_biases(run.folder / f"checkpoint-{STEPS}", wanted)
            start = run.folder / f"checkpoint-{step + 1}"


def check_biases(folder: Path, wanted: Expected) -> None:
    found = load_file(folder / "model.safetensors")
    names = sorted(name for name in found if name.endswith("e_score_correction_bias"))
    assert len(names) == len(wanted.biases)
    for name, bias in zip(names, wanted.biases, strict=True):
        assert torch.equal(found[name].float(), bias)
