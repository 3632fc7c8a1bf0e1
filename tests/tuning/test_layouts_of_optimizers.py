"""Optimizers on every layout that claims them: the numbers of one process, and checkpoints for each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit_cases import WHOLE_KIT
from processes import on_processes, succeeded
from tiers import selected
from tiny_runs import Trained, conversations, run_training, write_model

from swift.checkpoint.load import open_checkpoint
from swift.errors import ConfigError, SwiftError

ROWS = conversations(8)
STEPS = 10
"""Of runs that are compared between layouts: enough for moments to matter, and for projections to be made anew."""
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}
"""Rows of matrices are whole blocks of 256."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
ADAM = {"optim.lr": 3e-4, "optim.eps": 1e-6}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": ADAM,
    # Lion takes signs: where a gradient is next to 0, rounding alone would move its weight by a whole step.
    "lion": {"optim.lr": 1e-6, "optim.beta1": 0.95},
    "sgd": {"optim.lr": 0.05, "optim.momentum": 0.9},
    "adamw_8bit": ADAM,
    "adamw_4bit": ADAM,
    "muon": {"optim.lr": 2e-3, "optim.eps": 1e-6},
    # Projections are made anew within the run, before it is saved and after.
    "galore": {**ADAM, "optim.rank": 4, "optim.update_proj_gap": 6, "optim.scale": 1.0},
    "q_galore": {**ADAM, "optim.rank": 8, "optim.update_proj_gap": 6, "optim.scale": 1.0},
    "apollo": {**ADAM, "optim.rank": 4, "optim.update_proj_gap": 6},
    "apollo_mini": {**ADAM, "optim.update_proj_gap": 6},
    "adam_mini": ADAM,
}
FSDP = {"backend.name": "fsdp"}
ZERO = {"backend.name": "deepspeed"}
WHOLE = ("q_galore", "apollo", "adam_mini")
"""Those that keep something for whole matrices."""


def more(*names: str) -> tuple[str, ...]:
    """Names of optimizers that only `make conformance` tries in a layout: others there are shared out alike."""
    return names if WHOLE_KIT else ()


LAYOUTS: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "two processes": (2, {}, ("muon", *more("adamw_4bit"))),
    "fsdp": (2, FSDP, ("lion", "muon", "q_galore", *more("sgd", "adamw_8bit", "adamw_4bit"))),
    "fsdp tp 2": (4, {**FSDP, "parallel.tp": 2}, ("muon", "galore", "adam_mini", *more("sgd"))),
    "fsdp with replicas": (
        4,
        {**FSDP, "parallel.dp_replicate": 2},
        ("muon", "apollo", *more("adamw_8bit", "adam_mini")),
    ),
    "zero 1": (2, {**ZERO, "backend.config": "zero1"}, ("lion",)),
    "zero 3": (2, {**ZERO, "backend.config": "zero3"}, ("lion", *more("sgd"))),
}


def settings(name: str, **changes: Any) -> dict[str, Any]:
    steps = {"train.max_steps": 20, "train.global_batch": 8, "train.micro_batch": 4, "optim.weight_decay": 0.5}
    return {**steps, "optim.name": name, **OPTIMIZERS[name], "logging.run_name": name, **changes}


def trained(model: Path, out: Path, name: str, plan: dict[str, Any]) -> Trained:
    return run_training(model, out, ROWS, settings(name, **{"train.max_steps": STEPS}, **plan))


def assert_same(run: Trained, alone: Trained, *, rel: float = 1e-4) -> None:
    assert len(run.losses) == STEPS
    assert run.losses == pytest.approx(alone.losses, rel=rel)
    assert run.grad_norms == pytest.approx(alone.grad_norms, rel=rel)
    assert run.losses[-1] < run.losses[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model that each optimizer trains."""
    folder = tmp_path_factory.mktemp("models")
    small, wide = write_model(folder / "small"), write_model(folder / "wide", **WIDE)
    return {name: wide if name.endswith("bit") else small for name in OPTIMIZERS}


@pytest.fixture(scope="module")
def alone(
    request: pytest.FixtureRequest, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """What came of one process, by optimizer; of those that the selected layouts are tried with."""
    folder = tmp_path_factory.mktemp("alone")
    names = sorted({name for layout in selected(request, "layout") for name in LAYOUTS[layout][2]})
    return dict(zip(names, on_processes(1, *[partial(trained, models[n], folder, n, {}) for n in names]), strict=True))


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_of_every_layout_are_those_of_one_process(
    tmp_path: Path, models: dict[str, Path], alone: dict[str, list[Any]], layout: str
) -> None:
    processes, plan, names = LAYOUTS[layout]
    runs = on_processes(processes, *[partial(trained, models[name], tmp_path, name, plan) for name in names])
    for name, answers in zip(names, runs, strict=True):
        try:
            assert_same(succeeded(answers)[0], succeeded(alone[name])[0])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.full
def test_muon_updates_each_expert_separately(tmp_path: Path) -> None:
    """Muon updates each expert by itself wherever its rows lie."""
    model = write_model(tmp_path / "tiny", architecture="Qwen3Moe", **EXPERTS)
    (expected,) = on_processes(1, partial(trained, model, tmp_path / "torch", "muon", {}))
    plans = {"runs": FSDP, "expert parallel": {**FSDP, "parallel.ep": 2}}
    jobs = [partial(trained, model, tmp_path / name, "muon", plan) for name, plan in plans.items()]
    for answers in on_processes(2, *jobs):
        assert_same(succeeded(answers)[0], succeeded(expected)[0])


@pytest.mark.full
def test_whole_matrix_state_resumes_on_other_owner_ranks(tmp_path: Path) -> None:
    """What is kept for whole matrices resumes where others own them."""
    model = write_model(tmp_path / "tiny", **WIDE)
    steps, first, then = 10, 4, 7

    def run(name: str, at: int, out: str, plan: dict[str, Any], start: Path | None = None) -> Trained:
        saving = {"checkpoint.save_steps": at, "checkpoint.save_last": False, "train.max_steps": steps}
        changes = {**saving, "optim.update_proj_gap": 3} if name != "adam_mini" else saving
        resume = {} if start is None else {"checkpoint.resume": str(start)}
        return run_training(model, tmp_path / out, ROWS, settings(name, **plan, **changes, **resume))

    def resumed(start: dict[str, Path], at: int, out: str, plan: dict[str, Any]) -> list[Any]:
        return [
            partial(run, name, at, out, plan, start[name] / f"checkpoint-{then if at == steps else first}")
            for name in WHOLE
        ]

    alone = {name: run(name, first, "alone", {}) for name in WHOLE}
    sharded = on_processes(2, *resumed({name: each.folder for name, each in alone.items()}, then, "sharded", FSDP))
    found = {name: succeeded(answers)[0] for name, answers in zip(WHOLE, sharded, strict=True)}
    back = on_processes(1, *resumed({name: each.folder for name, each in found.items()}, steps, "back", {}))
    for name, answers in zip(WHOLE, back, strict=True):
        losses = alone[name].losses
        assert found[name].losses == pytest.approx(losses[first:], rel=1e-4), name
        assert succeeded(answers)[0].losses == pytest.approx(losses[then:], rel=1e-4), name


def moments(folder: Path) -> dict[str, torch.Tensor]:
    reader = open_checkpoint(folder)
    return {name: reader.read(name) for name in reader.names()}


def test_optimizer_needing_shard_layout_is_refused_without_it(tmp_path: Path) -> None:
    """An optimizer that needs the shard layout is refused on a backend that does not report it."""
    model = write_model(tmp_path / "tiny")
    with pytest.raises(SwiftError, match="muon"):
        run_training(model, tmp_path, ROWS, settings("muon", **ZERO))


def test_rows_that_are_cut_inside_of_a_block_are_refused() -> None:
    from swift.contracts import Matrix, Placement
    from swift_tuning.low_bit_adam import _in_low_bit

    cut = Placement("down", (256, 512), (slice(0, 256), slice(0, 128)), (Matrix("down", 0, (256, 512)),))
    with pytest.raises(ConfigError, match="within such a block"):
        _in_low_bit(cut, 256)
